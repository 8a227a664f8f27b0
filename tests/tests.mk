# SPDX-License-Identifier: MIT
#
# make doubles        the simulated libcuda and libvulkan that the tests use
# make stress         the long forms of the tests (an hour)
# make lint           the static checks

T         := tests/c
D         := $(B)/doubles
BIN       := $(B)/bin
RUN       := tests/run.sh
LINK      := -L$(B) -lgdrapi -ldl -lpthread -Wl,-rpath,'$$ORIGIN/../lib:$$ORIGIN/..'
DOUBLES   := $(D)/libcuda.so.1 $(D)/libvulkan.so.1
WITHSIM   := LD_LIBRARY_PATH=$(abspath $(D)):$(abspath $(B)) GDR_TEST_DOUBLES=1

TOOLS     := $(addprefix $(BIN)/,gdrcopy_sanity)
.PHONY: doubles check stress lint
doubles: $(DOUBLES)

$(D)/libcuda.so.1: $(wildcard tests/doubles/cuda_sim*.[ch]) $(wildcard tests/doubles/sim_*.[ch])
	@mkdir -p $(D)
	$(CC) -shared -fPIC -std=gnu11 $(CFLAGS) $(WARN) -Wl,-soname,libcuda.so.1 -o $@ $(filter %.c,$^) -lpthread

$(D)/libvulkan.so.1: tests/doubles/vulkan_sim.c $(wildcard tests/doubles/sim_*.[ch])
	@mkdir -p $(D)
	$(CC) -shared -fPIC -std=gnu11 $(CFLAGS) $(WARN) -Wl,-soname,libvulkan.so.1 -o $@ $(filter %.c,$^) -lpthread
