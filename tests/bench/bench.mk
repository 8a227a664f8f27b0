# SPDX-License-Identifier: MIT
#
# make litmus         [measure 1 min] the programs that look for stale reads, and time pins (not installed)

.PHONY: litmus
litmus: $(BIN)/copy_litmus $(BIN)/pins

$(BIN)/copy_litmus: $(call of,tests/bench/copy_litmus.c) $(BENCH) $(LIB)
$(BIN)/pins: $(call of,tests/bench/pins.c) $(CUDA_DL) $(LIB)
