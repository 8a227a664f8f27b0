# SPDX-License-Identifier: MIT
#
# make litmus         [measure 1 min] the program that looks for stale reads (not installed)

.PHONY: litmus
litmus: $(BIN)/copy_litmus

$(BIN)/copy_litmus: tests/bench/copy_litmus.c $(BENCH) $(LIB) $(TOOL_H) $(CAPI_H)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -I$(T) -Icapi -o $@ $(filter %.c %.o,$^) $(LINK)
