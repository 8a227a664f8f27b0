# SPDX-License-Identifier: MIT
#
# make check-tools    [check 15 s] the tools' arguments, exit statuses and progress
# make check-sanity   [check 30 s] the conformance suite on each backend

.PHONY: check-tools check-sanity
check-tools: need-script tools $(DOUBLES)
	@$(RUN) tools-arguments tests/tools/tools.sh $(abspath $(BIN)) $(SIM)

check-sanity: $(BIN)/gdrcopy_sanity $(DOUBLES)
	@for b in $(BACKENDS); do $(RUN) sanity-$$b $(SIM) $(ON) $$b $(BIN)/gdrcopy_sanity; done
	@$(RUN) sanity-dmabuf-coherent $(SIM) CUDA_SIM_COHERENT=1 $(ON) dmabuf $(BIN)/gdrcopy_sanity
