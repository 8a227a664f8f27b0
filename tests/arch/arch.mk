# SPDX-License-Identifier: MIT
#
# make check-arch     [more 2 min] ARCH=arm64 or ppc64le: the whole library of that machine, under emulation

ARCH      ?= arm64
ARCH_CC    = $(ARCH_CC_$(ARCH))
ARCH_QEMU  = $(ARCH_QEMU_$(ARCH))
ARCH_CC_arm64     := aarch64-linux-gnu
ARCH_QEMU_arm64   := qemu-aarch64
ARCH_CC_ppc64le   := powerpc64le-linux-gnu
ARCH_QEMU_ppc64le := qemu-ppc64le

# The backends are dmabuf and vulkan: rm's simulated driver needs seccomp's notifications,
# which qemu-user does not have. For the simulated libcuda the emulator gives the program
# 8 GiB of addresses; it takes minutes for the TiB that libcuda reserves. The simulated
# Vulkan needs more addresses than those.
ARCH_RUN  = $(ARCH_QEMU) -L /usr/$(ARCH_CC)
ARCH_8G   = $(ARCH_RUN) -R 8G

.PHONY: check-arch arch-programs-run
check-arch: need-$(ARCH_CC)-gcc need-$(ARCH_QEMU)
	@GOOS=linux GOARCH=$(ARCH) $(MAKE) --no-print-directory arch-programs-run ARCH=$(ARCH) B=$(B)/$(ARCH) \
		CC=$(ARCH_CC)-gcc OBJCOPY=$(ARCH_CC)-objcopy

# In it B and CC are the other machine's.
arch-programs-run: $(addprefix $(BIN)/,badinput gdrcopy_sanity guest_static fork_advice abi_layout doubles_selftest vulkan_selftest) \
		$(filter-out %/rm_sim,$(DOUBLES))
	@$(RUN) abi-layout-$(ARCH) $(SIM) $(ARCH_8G) $(BIN)/abi_layout
	@$(RUN) doubles-libcuda-$(ARCH) $(SIM) $(ARCH_8G) $(BIN)/doubles_selftest
	@$(RUN) doubles-libvulkan-$(ARCH) $(SIM) $(ARCH_RUN) $(BIN)/vulkan_selftest
	@$(RUN) badinput-vulkan-$(ARCH) $(SIM) $(ON) vulkan $(ARCH_RUN) $(BIN)/badinput
	@$(RUN) badinput-dmabuf-$(ARCH) $(SIM) $(ON) dmabuf $(ARCH_8G) $(BIN)/badinput
	@$(RUN) guest-static-dmabuf-$(ARCH) $(SIM) $(ON) dmabuf $(ARCH_8G) $(BIN)/guest_static
	@$(RUN) sanity-dmabuf-$(ARCH) $(SIM) $(ON) dmabuf tests/arch/sanity.sh $(BIN) $(ARCH_8G)

$(BIN)/fork_advice: tests/arch/fork_advice.c
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $<
