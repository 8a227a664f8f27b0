# SPDX-License-Identifier: MIT
#
# make check-vm       [more 15 min] the kernel module in a virtual machine: see docs/kmod.md
# make check-vm-all   [long 40 min] check-vm on every kernel
# make check-vm-arm64 [long 30 min] check-vm on an emulated arm64 machine, VMKERNELS='6.1 6.12'
# make check-vm-debug [long 2 h] check-vm on kernels that look for faults
# make check-vm-card  [long 10 min] 10 minutes of a capture card's frames, each of three ways, all compared
# make check-kmod-static  [more 2 min] the static checks of the kernel module
# make check-kmod-matrix  [long 30 min] builds of the kernel module for every kernel and driver
# make check-kmod-dkms    [long 20 min] DKMS beside each packaging of the driver

VM        := tests/vm
VMRUN     := env GDRAPI_VM_BUILD=$(abspath $(B))/vm $(VM)/run.sh
VMLIBS    := -f $(B)/$(SONAME):/lib -f $(D)/libcuda.so.1:/lib
VMFILES   := -f $(BIN)/gdrcopy_sanity -f $(BIN)/badinput $(VMLIBS)
VMSANITY  := $(VMRUN) -j $(VM)/job-sanity.sh $(VMFILES)
VMDOCTOR  := $(VMRUN) -j $(VM)/job-doctor.sh -f $(BIN)/gdrcopy_doctor -f /usr/bin/setpriv $(VMLIBS)
VMRM      := $(VMRUN) -j $(VM)/job-rm.sh $(VMFILES) -f $(BIN)/rm_test
VMCARD    := $(VMRUN) -j $(VM)/job-card.sh -D edu,dma_mask=0xffffffffffffffff \
	-f $(B)/examples/capture -f $(BIN)/card_test $(VMLIBS)
VMCARDDEP := $(B)/examples/capture $(BIN)/card_test $(DOUBLES)
# Those that race against time come to nothing on an emulated CPU of a busy host.
VMGUESTS  := $(addprefix $(BIN)/guest_,fork fds)
VMGUEST   := $(addprefix -f ,$(VMGUESTS))

.PHONY: check-vm check-vm-all check-vm-arm64 vm-arm64-run check-vm-debug check-vm-card check-kmod-static \
	check-kmod-matrix check-kmod-dkms

check-vm: VMKERNELS := 6.1
check-vm-all: VMKERNELS := 6.1 6.12 7.2
check-vm-all: VMHEADERS := older newer 570
check-vm check-vm-all: tools $(BIN)/badinput $(BIN)/rm_test $(VMGUESTS) $(VMCARDDEP)
	@for k in $(VMKERNELS); do \
		$(RUN) vm-kmod-$$k $(VMRUN) -t 900 $$k; \
		$(RUN) vm-sanity-$$k $(VMSANITY) -t 900 $$k; \
		$(RUN) vm-rm-$$k $(VMRM) $(VMGUEST) -t 1800 $$k; \
		$(RUN) vm-card-$$k $(VMCARD) -t 900 $$k; \
		$(RUN) vm-doctor-$$k $(VMDOCTOR) -t 900 $$k; \
	done
	@for h in $(VMHEADERS); do \
		$(RUN) vm-kmod-6.1-$$h $(VMRUN) -t 900 -n $$h 6.1; \
	done
	@test -z '$(VMHEADERS)' || GDR_MAKE=SIM_PROPRIETARY=y $(RUN) vm-kmod-6.1-proprietary $(VMRUN) -t 900 6.1

check-vm-arm64: ARCH := arm64
check-vm-arm64: need-$(ARCH_CC_arm64)-gcc need-qemu-system-aarch64
	@VM_ARCH=arm64 $(ARCH_MAKE) vm-arm64-run

# In it B and CC are the other machine's. What is more than elsewhere are guests that
# qemu-user cannot run in full.
VMGUESTS_ARM64 := $(addprefix $(BIN)/guest_,lazy rest signals)
vm-arm64-run: VMKERNELS := 6.1
vm-arm64-run: $(addprefix $(BIN)/,gdrcopy_sanity badinput rm_test) $(VMGUESTS) $(VMGUESTS_ARM64) $(D)/libcuda.so.1
	@for k in $(VMKERNELS); do \
		$(RUN) vm-kmod-arm64-$$k $(VMRUN) -t 1800 $$k; \
		$(RUN) vm-sanity-arm64-$$k $(VMSANITY) $(VMGUEST) -t 1800 $$k; \
		$(RUN) vm-rm-arm64-$$k $(VMRM) $(VMGUEST) $(addprefix -f ,$(VMGUESTS_ARM64)) -t 1800 $$k; \
	done

VMDEBUG := 6.1-kasan 6.1-kcsan
check-vm-debug: export GDR_LIMIT := 0
check-vm-debug: tools $(BIN)/badinput $(BIN)/rm_test $(VMCARDDEP)
	@for k in $(VMDEBUG); do \
		$(RUN) vm-kmod-$$k $(VMRUN) -M 2048 -t 3600 $$k; \
		$(RUN) vm-sanity-$$k $(VMSANITY) -M 2048 -t 3600 $$k; \
		$(RUN) vm-rm-$$k $(VMRM) -M 2048 -t 3600 $$k; \
		$(RUN) vm-card-$$k $(VMCARD) -M 2048 -t 3600 $$k; \
	done

check-vm-card: export GDR_LIMIT := 0
check-vm-card: $(VMCARDDEP)
	@$(RUN) vm-card-long $(VMCARD) -i -e CARD_ONLY=1 -e CARD_PERIOD=8000 -e CARD_FRAMES=75000 -t 7200 6.1

check-kmod-static:
	@$(RUN) kmod-static $(VM)/static.sh $(B)/vm
	shellcheck -x $(VM)/*.sh kmod/*.sh packaging/insmod.sh packaging/gdrdrv-node

check-kmod-matrix:
	@$(RUN) kmod-matrix $(VM)/matrix.sh $(B)/vm

$(BIN)/rm_test: tests/kmod/rm_test.c tests/doubles/rm_selftest_client.c tests/doubles/selftest_util.c \
		$(wildcard tests/doubles/*selftest.h) tests/doubles/rm_uapi.h $(D)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(D)/libcuda.so.1

$(BIN)/card_test: tests/kmod/card_test.c examples/capture/card_uapi.h tests/doubles/rm_selftest_client.c \
		tests/doubles/selftest_util.c $(wildcard tests/doubles/*selftest.h) tests/doubles/rm_uapi.h \
		$(LIB) $(D)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(LINK) $(D)/libcuda.so.1

check-kmod-dkms:
	@$(RUN) kmod-dkms $(VM)/dkms.sh $(B)/vm

# The simulated libcuda speaks to the simulated nvidia.ko.
$(D)/libcuda.so.1: tests/kmod/nvidia_sim_uapi.h
