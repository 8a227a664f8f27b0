# SPDX-License-Identifier: MIT
#
# make check-arch     [long 5 min] ARCH=arm64 or ppc64le: the whole library of that machine, under emulation

ARCH      ?= arm64
# The emulator may be another: ARCH_QEMU=PATH.
ARCH_QEMU ?= $(shell $(VM)/fetch.sh qemu-user)/$(ARCH_QEMU_$(ARCH))
ARCH_CC    = $(ARCH_CC_$(ARCH))
ARCH_CC_arm64     := aarch64-linux-gnu
ARCH_QEMU_arm64   := qemu-aarch64
ARCH_CC_ppc64le   := powerpc64le-linux-gnu
ARCH_QEMU_ppc64le := qemu-ppc64le

# Makes targets of another machine, with its B and CC.
ARCH_MAKE = GOOS=linux GOARCH=$(ARCH) $(MAKE) --no-print-directory ARCH=$(ARCH) B=$(B)/$(ARCH) \
	CC=$(ARCH_CC)-gcc OBJCOPY=$(ARCH_CC)-objcopy

# The backends are dmabuf and vulkan: rm's simulated driver needs seccomp's notifications,
# which qemu-user does not have. The guests' own number of rounds takes too long here.
ARCH_RUN   = $(ARCH_QEMU) -L /usr/$(ARCH_CC)
EMULATED   = $(SIM) GUEST_SCALE=0.05 $(ON) $(1) tests/arch/emulated.sh $(B)/emulator.lacks $(BIN)/$(2) $(ARCH_RUN)

ARCH_DMABUF := badinput gdrcopy_sanity vkgdr_test $(notdir $(EXTBINS) $(GUESTBINS))
ARCH_VULKAN := badinput gdrcopy_sanity vkgdr_test
# Those that start no program and compile none.
ARCH_GO     := ./core ./core/cache ./core/gdrdrv ./core/handle ./cmd/gdrcopy_report/...

.PHONY: check-arch arch-programs-run
check-arch: need-$(ARCH_CC)-gcc
	@$(ARCH_MAKE) ARCH_QEMU='$(ARCH_QEMU)' arch-programs-run

arch-programs-run: $(addprefix $(BIN)/,emulator abi_layout doubles_selftest vulkan_selftest $(ARCH_DMABUF)) \
		$(filter-out %/rm_sim,$(DOUBLES))
	@$(ARCH_QEMU) --version | head -n 1
	@$(ARCH_RUN) $(BIN)/emulator >$(B)/emulator.lacks
	@$(RUN) abi-layout-$(ARCH) $(SIM) $(ARCH_RUN) $(BIN)/abi_layout
	@$(RUN) doubles-libcuda-$(ARCH) $(SIM) $(ARCH_RUN) $(BIN)/doubles_selftest
	@$(RUN) doubles-libvulkan-$(ARCH) $(SIM) $(ARCH_RUN) $(BIN)/vulkan_selftest
	@$(foreach p,$(ARCH_DMABUF),$(RUN) $p-dmabuf-$(ARCH) $(call EMULATED,dmabuf,$p);)
	@$(RUN) sanity-coherent-$(ARCH) env CUDA_SIM_COHERENT=1 $(call EMULATED,dmabuf,gdrcopy_sanity)
	@$(foreach p,$(ARCH_VULKAN),$(RUN) $p-vulkan-$(ARCH) $(call EMULATED,vulkan,$p);)
	@CGO_ENABLED=1 $(RUN) --go go-test-$(ARCH) $(SIM) $(GO) test -v -count=1 -exec '$(ARCH_RUN)' $(ARCH_GO)

$(BIN)/emulator: tests/arch/emulator.c
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $< -lpthread
