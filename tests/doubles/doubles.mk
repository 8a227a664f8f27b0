# SPDX-License-Identifier: MIT
#
# make doubles        [build 10 s] the simulated libcuda and NVIDIA driver that the tests use
# make check-doubles  [check 1 s] the requests that each simulated driver answers alike

.PHONY: doubles
doubles: $(DOUBLES)

$(D)/libcuda.so.1: $(wildcard tests/doubles/cuda_sim*.[ch]) $(wildcard tests/doubles/sim_*.[ch]) tests/doubles/rm_uapi.h
	@mkdir -p $(@D)
	$(CC) -shared -fPIC -std=gnu11 $(CFLAGS) $(WARN) -Wl,-soname,$(@F) -o $@ $(filter %.c,$^) -lpthread

# What programs that link against CUDA name.
$(D)/libcuda.so: $(D)/libcuda.so.1
	ln -sf $(<F) $@

$(D)/libnvidia-ml.so.1: tests/doubles/nvml_sim.c tests/doubles/sim_machine.h
	@mkdir -p $(@D)
	$(CC) -shared -fPIC -fvisibility=hidden -std=gnu11 $(CFLAGS) $(WARN) -Wl,-soname,$(@F) -o $@ $<

$(D)/rm_sim: $(wildcard tests/doubles/rm_sim/*.go tests/doubles/nvrm/*.go) go.mod go.sum
	@mkdir -p $(@D)
	CGO_ENABLED=0 $(GO) build -buildvcs=false -o $@ ./tests/doubles/rm_sim

# For a program that has no libcuda.
$(D)/rm_mmap.so: tests/doubles/rm_mmap.c tests/doubles/cuda_sim_mmap.c tests/doubles/cuda_sim.h tests/doubles/rm_uapi.h
	@mkdir -p $(@D)
	$(CC) -shared -fPIC -std=gnu11 $(CFLAGS) $(WARN) -o $@ $(filter %.c,$^) -ldl

# The simulated driver's mmap is in the simulated libcuda.
$(BIN)/rm_selftest: $(wildcard tests/doubles/rm_selftest*.[ch]) tests/doubles/rm_uapi.h $(D)/libcuda.so.1 $(D)/rm_sim
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) -Wl,--no-as-needed $(D)/libcuda.so.1
