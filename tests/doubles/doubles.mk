# SPDX-License-Identifier: MIT
#
# make doubles        [build 10 s] the simulated libcuda, libvulkan and NVIDIA driver that the tests use
# make check-doubles  [check 15 s] the tests of the doubles

.PHONY: doubles check-doubles check-doubles-rm check-sanity-rm
doubles: $(DOUBLES)

check-doubles: $(BIN)/doubles_selftest $(BIN)/vulkan_selftest
	@$(RUN) doubles-libcuda $(SIM) $(BIN)/doubles_selftest
	@$(RUN) doubles-libvulkan $(SIM) $(BIN)/vulkan_selftest

# The simulated NVIDIA driver is not on every machine.
ifneq ($(filter rm,$(BACKENDS)),)
check-doubles: check-doubles-rm
check-sanity: check-sanity-rm
endif

check-doubles-rm: $(BIN)/doubles_selftest $(BIN)/rm_selftest $(DOUBLES)
	@$(RUN) doubles-libcuda-rm $(SIM) CUDA_SIM_DRIVER_VERSION=13030 CUDA_SIM_DMABUF_MMAP=1 $(D)/rm_sim $(BIN)/doubles_selftest
	@$(RUN) doubles-rm $(SIM) $(D)/rm_sim $(BIN)/rm_selftest
	@$(RUN) doubles-rm-options $(SIM) NVRM_SIM_DEVICES=1 NVRM_SIM_DRIVER=535 NVRM_SIM_CACHE=0 NVRM_SIM_BAR1_MIB=1 \
		NVRM_SIM_FAIL=DUP_OBJECT=0x51@2,UNMAP_MEMORY=0x1f@1,OPEN=13@5 $(D)/rm_sim $(BIN)/rm_selftest options

# rm on an older driver, and on one that exports nothing; what is taken unasked;
# dma-bufs of a driver, whose ranges may overlap.
check-sanity-rm: $(BIN)/gdrcopy_sanity $(DOUBLES)
	@$(RUN) sanity-rm-535 $(SIM) NVRM_SIM_DRIVER=535 NVRM_SIM_DEVICES=1 $(ON) rm $(BIN)/gdrcopy_sanity
	@$(RUN) sanity-rm-ipc $(SIM) CUDA_SIM_DMABUF=0 $(ON) rm $(BIN)/gdrcopy_sanity
	@$(RUN) sanity-unasked $(SIM) $(D)/rm_sim $(BIN)/gdrcopy_sanity
	@$(RUN) sanity-dmabuf-driver $(SIM) CUDA_SIM_DRIVER_VERSION=13030 CUDA_SIM_DMABUF_MMAP=1 \
		$(D)/rm_sim $(ON) dmabuf $(BIN)/gdrcopy_sanity

$(D)/libcuda.so.1: $(wildcard tests/doubles/cuda_sim*.[ch]) $(wildcard tests/doubles/sim_*.[ch]) tests/doubles/rm_uapi.h
	@mkdir -p $(@D)
	$(CC) -shared -fPIC -std=gnu11 $(CFLAGS) $(WARN) -Wl,-soname,$(@F) -o $@ $(filter %.c,$^) -lpthread

$(D)/libvulkan.so.1: tests/doubles/vulkan_sim.c $(wildcard tests/doubles/sim_*.[ch])
	@mkdir -p $(@D)
	$(CC) -shared -fPIC -fvisibility=hidden -std=gnu11 $(CFLAGS) $(WARN) -Wl,-soname,$(@F) -o $@ $(filter %.c,$^) -lpthread

$(D)/rm_sim: $(wildcard tests/doubles/rm_sim*.[ch]) tests/doubles/rm_uapi.h $(wildcard tests/doubles/sim_fault.[ch])
	@mkdir -p $(@D)
	$(CC) -std=gnu11 $(CFLAGS) $(WARN) -o $@ $(filter %.c,$^) -lpthread

# The simulated loader has its driver built in; the library looks for a manifest.
$(D)/nvidia_icd.json:
	@mkdir -p $(@D)
	echo '{ "ICD": { "library_path": "libvulkan.so.1" } }' >$@

$(BIN)/doubles_selftest: $(wildcard tests/doubles/selftest*.[ch]) $(D)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(D)/libcuda.so.1 -lpthread

$(BIN)/rm_selftest: $(wildcard tests/doubles/rm_selftest*.[ch]) $(wildcard tests/doubles/selftest*.h) tests/doubles/selftest_util.c $(D)/libcuda.so.1 $(D)/rm_sim
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(D)/libcuda.so.1

$(BIN)/vulkan_selftest: tests/doubles/vulkan_selftest.c $(D)/libvulkan.so.1
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $< $(D)/libvulkan.so.1 -lpthread -ldl
