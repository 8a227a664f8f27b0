# SPDX-License-Identifier: MIT
#
# What runs on the simulated NVIDIA driver, beside each backend's tests.

.PHONY: check-doubles-rm check-c-rm

# It is not on every machine.
ifneq ($(filter rm,$(BACKENDS)),)
check-doubles: check-doubles-rm
check-c: check-c-rm
endif

check-doubles-rm: $(CHECKS) $(DOUBLES)
	@$(RUN) doubles-libcuda-rm $(SIM) CUDA_SIM_DRIVER_VERSION=13030 CUDA_SIM_DMABUF_MMAP=1 $(D)/rm_sim $(BIN)/doubles_selftest
	@$(RUN) doubles-rm $(SIM) $(D)/rm_sim $(BIN)/rm_selftest
	@$(RUN) doubles-rm-options $(SIM) NVRM_SIM_DEVICES=1 NVRM_SIM_DRIVER=535 NVRM_SIM_CACHE=0 NVRM_SIM_BAR1_MIB=1 \
		NVRM_SIM_FAIL=DUP_OBJECT=0x51@2,UNMAP_MEMORY=0x1f@1,OPEN=13@5 $(D)/rm_sim $(BIN)/rm_selftest options

# rm on an older driver, and on one that exports nothing; what is taken unasked;
# dma-bufs of a driver, whose ranges may overlap.
check-c-rm: $(CHECKS) $(DOUBLES) tools
	@$(RUN) sanity-rm-535 $(SIM) NVRM_SIM_DRIVER=535 NVRM_SIM_DEVICES=1 $(ON) rm $(BIN)/gdrcopy_sanity
	@$(RUN) sanity-rm-ipc $(SIM) CUDA_SIM_DMABUF=0 $(ON) rm $(BIN)/gdrcopy_sanity
	@$(RUN) sanity-unasked $(SIM) $(D)/rm_sim $(BIN)/gdrcopy_sanity
	@$(RUN) sanity-dmabuf-driver $(SIM) CUDA_SIM_DRIVER_VERSION=13030 CUDA_SIM_DMABUF_MMAP=1 \
		$(D)/rm_sim $(ON) dmabuf $(BIN)/gdrcopy_sanity
