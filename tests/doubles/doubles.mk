# SPDX-License-Identifier: MIT
#
# make doubles        [build 10 s] the simulated libcuda and NVIDIA driver that the tests use
# make check-doubles  [check 15 s] the tests of the doubles

.PHONY: doubles
doubles: $(DOUBLES)

$(D)/libcuda.so.1: $(wildcard tests/doubles/cuda_sim*.[ch]) $(wildcard tests/doubles/sim_*.[ch]) tests/doubles/rm_uapi.h
	@mkdir -p $(@D)
	$(CC) -shared -fPIC -std=gnu11 $(CFLAGS) $(WARN) -Wl,-soname,$(@F) -o $@ $(filter %.c,$^) -lpthread

# What programs that link against CUDA name.
$(D)/libcuda.so: $(D)/libcuda.so.1
	ln -sf $(<F) $@

$(D)/rm_sim: $(wildcard tests/doubles/rm_sim/*.go tests/doubles/nvrm/*.go) go.mod go.sum
	@mkdir -p $(@D)
	CGO_ENABLED=0 $(GO) build -buildvcs=false -o $@ ./tests/doubles/rm_sim

$(BIN)/doubles_selftest: $(filter-out %_libraries.c,$(wildcard tests/doubles/selftest*.[ch])) $(D)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(D)/libcuda.so.1 -lpthread

$(BIN)/libraries_selftest: $(addprefix tests/doubles/selftest,_libraries.c _util.c _tap.h .h) $(D)/libcudart.so $(D)/libnvidia-ml.so.1
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter-out %.h,$^) $(D)/libcuda.so.1

$(BIN)/rm_selftest: $(wildcard tests/doubles/rm_selftest*.[ch]) $(wildcard tests/doubles/selftest*.h) $(addprefix tests/doubles/selftest_,util.c vmm.c) $(D)/libcuda.so.1 $(D)/rm_sim
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(D)/libcuda.so.1
