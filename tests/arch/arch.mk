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

# Makes targets of another machine.
ARCH_MAKE = GOOS=linux GOARCH=$(ARCH) $(call variant,$(ARCH)) ARCH=$(ARCH) CC=$(ARCH_CC)-gcc OBJCOPY=$(ARCH_CC)-objcopy

ARCH_PROGRAMS := abi_layout badinput gdrcopy_sanity vkgdr_test core_test \
	$(notdir $(EXTBINS) $(GUESTBINS))

# What the programs need, and the emulator with its arguments as one command.
.PHONY: arch-programs arch-programs-build
arch-programs: need-$(ARCH_CC)-gcc
	@$(ARCH_MAKE) ARCH_QEMU='$(ARCH_QEMU)' arch-programs-build

arch-programs-build: $(addprefix $(BIN)/,$(ARCH_PROGRAMS)) $(filter-out %/rm_sim,$(DOUBLES))
	@$(ARCH_QEMU) --version | head -n 1
	@printf '#!/bin/sh\nexec %s -L %s "$$@"\n' '$(ARCH_QEMU)' /usr/$(ARCH_CC) >$(B)/emulate && chmod 755 $(B)/emulate
