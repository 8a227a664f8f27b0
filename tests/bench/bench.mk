# SPDX-License-Identifier: MIT
#
# make copy-bench     [measure 1 min] the program that compares copy routines on a mapping (not installed)
# make litmus         [measure 1 min] the program that looks for stale reads (not installed)
# make call-cost      [measure 1 min] the program that measures control calls (not installed)

.PHONY: copy-bench litmus call-cost
copy-bench: $(BIN)/copy_bench
litmus: $(BIN)/copy_litmus
call-cost: $(BIN)/call_cost

$(BIN)/copy_bench: tests/bench/copy_bench.c tests/bench/copy_trial.c $(BENCH) $(COPY_C)
$(BIN)/copy_litmus: tests/bench/copy_litmus.c $(BENCH)
$(BIN)/call_cost: tests/bench/call_cost.c $(CUDA_DL) $(GUEST_H)
$(addprefix $(BIN)/,copy_bench copy_litmus call_cost): $(LIB) $(TOOL_H) $(CAPI_H)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -I$(T) -Icapi -o $@ $(filter %.c %.o,$^) $(LINK)
