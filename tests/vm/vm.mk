# SPDX-License-Identifier: MIT
#
# make check-vm       [more 15 min] the kernel module in a virtual machine: see docs/kmod.md
# make check-vm-all   [long 40 min] check-vm on every kernel
# make check-vm-arm64 [long 30 min] check-vm on an emulated arm64 machine, VMKERNELS='6.1 6.12'
# make check-vm-debug [long 1 h] check-vm on kernels that look for faults
# make check-vm-card  [long 10 min] 10 minutes of a capture card's frames, each of three ways, all compared
# make check-kmod-static  [more 2 min] the static checks of the kernel module
# make check-kmod-matrix  [long 30 min] builds of the kernel module for every kernel and driver
# make check-kmod-dkms    [long 20 min] DKMS beside each packaging of the driver

VM        := tests/vm

# Programs of the other machine.
.PHONY: vm-arm64-programs vm-arm64-build
vm-arm64-programs: ARCH := arm64
vm-arm64-programs: need-$(ARCH_CC_arm64)-gcc
	@$(ARCH_MAKE) vm-arm64-build

vm-arm64-build: $(addprefix $(BIN)/,gdrcopy_sanity badinput $(addprefix guest_,fork fds)) $(D)/libcuda.so.1
