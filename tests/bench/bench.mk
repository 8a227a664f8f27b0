# SPDX-License-Identifier: MIT
#
# make copy-bench     the tool that compares copy routines on a mapping (not installed)

.PHONY: copy-bench
copy-bench: $(BIN)/copy_bench

# make litmus         the program that looks for stale reads (not installed)
.PHONY: litmus
litmus: $(BIN)/copy_litmus
$(BIN)/copy_litmus: $(T)/copy_litmus.c $(BENCH) $(LIB) $(wildcard $(T)/*.h)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(LINK)

$(BIN)/copy_bench: $(T)/copy_bench.c $(T)/copy_trial.c $(BENCH) $(wildcard capi/copy*.[ch]) $(LIB) $(wildcard $(T)/*.h)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -Icapi -o $@ $(filter %.c,$^) $(LINK)
