# SPDX-License-Identifier: MIT
#
# make doubles        [build 10 s] the simulated libcuda and NVIDIA driver that the tests use
# make check-doubles  [check 1 s] the requests that each simulated driver answers alike

.PHONY: doubles
doubles: $(DOUBLES)

$(D)/libcuda.so.1: $(call of,tests/doubles/cuda_sim*.c)

# What programs that link against CUDA name.
$(D)/libcuda.so: $(D)/libcuda.so.1
	ln -sf $(<F) $@

$(D)/libnvidia-ml.so.1: $(call of,tests/doubles/nvml_sim.c)

$(D)/rm_sim: $(wildcard tests/doubles/rm_sim/*.go tests/doubles/nvrm/*.go) go.mod go.sum
	CGO_ENABLED=0 $(GO) build -buildvcs=false -o $@ ./tests/doubles/rm_sim

# The driver's requests in C.
$(B)/tests/rm_uapi.h: $(wildcard tests/doubles/uapi/*.go tests/doubles/nvrm/*.go) go.mod go.sum
	@mkdir -p $(@D)
	env -u GOOS -u GOARCH CGO_ENABLED=0 $(GO) run ./tests/doubles/uapi >$@.new && mv $@.new $@

# For a program that has no libcuda.
$(D)/rm_mmap.so: $(call of,tests/doubles/rm_mmap.c tests/doubles/cuda_sim_mmap.c)
