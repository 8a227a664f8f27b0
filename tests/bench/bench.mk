# SPDX-License-Identifier: MIT
#
# make litmus         [measure 1 min] the program that looks for stale reads (not installed)

.PHONY: litmus
litmus: $(BIN)/copy_litmus

$(BIN)/copy_litmus: $(call of,tests/bench/copy_litmus.c) $(BENCH) $(LIB)
