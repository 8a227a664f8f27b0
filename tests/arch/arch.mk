# SPDX-License-Identifier: MIT
#
# make check-arch     [more 10 min] ARCH=arm64: the whole library of another machine, under emulation

ARCH      ?= arm64
ARCH_CC    = $(ARCH_CC_$(ARCH))
ARCH_QEMU  = $(ARCH_QEMU_$(ARCH))
ARCH_CC_arm64     := aarch64-linux-gnu
ARCH_QEMU_arm64   := qemu-aarch64
ARCH_CC_ppc64le   := powerpc64le-linux-gnu
ARCH_QEMU_ppc64le := qemu-ppc64le

# rm's simulated driver needs seccomp's notifications, which qemu-user has not. The emulator
# gives the program 8 GiB of addresses: it takes minutes for the TiB that the simulated
# libcuda would have.
ARCH_BACKENDS := dmabuf vulkan
ARCH_RUN = $(ARCH_QEMU) -R 8G -L /usr/$(ARCH_CC)

.PHONY: check-arch check-arch-run
check-arch: need-$(ARCH_CC)-gcc need-$(ARCH_QEMU)
	@GOOS=linux GOARCH=$(ARCH) $(MAKE) --no-print-directory check-arch-run ARCH=$(ARCH) B=$(B)/$(ARCH) \
		CC=$(ARCH_CC)-gcc OBJCOPY=$(ARCH_CC)-objcopy

# In it B and CC are the other machine's.
check-arch-run: $(addprefix $(BIN)/,badinput gdrcopy_sanity guest_static fork_advice abi_layout doubles_selftest vulkan_selftest) \
		$(filter-out %/rm_sim,$(DOUBLES))
	@$(RUN) abi-layout-$(ARCH) $(SIM) $(ARCH_RUN) $(BIN)/abi_layout
	@$(RUN) doubles-libcuda-$(ARCH) $(SIM) $(ARCH_RUN) $(BIN)/doubles_selftest
	@$(RUN) doubles-libvulkan-$(ARCH) $(SIM) $(ARCH_RUN) $(BIN)/vulkan_selftest
	@for b in $(ARCH_BACKENDS); do \
		$(RUN) badinput-$$b-$(ARCH) $(SIM) $(ON) $$b $(ARCH_RUN) $(BIN)/badinput; \
		$(RUN) guest-static-$$b-$(ARCH) $(SIM) $(ON) $$b $(ARCH_RUN) $(BIN)/guest_static; \
		$(RUN) sanity-$$b-$(ARCH) $(SIM) $(ON) $$b tests/arch/sanity.sh $(BIN) $(ARCH_RUN); \
	done

$(BIN)/fork_advice: tests/arch/fork_advice.c
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $<
