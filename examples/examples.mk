# SPDX-License-Identifier: MIT
#
# make demo           what the library is for, in ten lines; without a GPU, simulated

.PHONY: demo
demo: $(BIN)/demo $(DOUBLES)
	@$(BIN)/demo; rc=$$?; [ $$rc -ne 2 ] || { $(SIM) $(BIN)/demo; rc=$$?; }; exit $$rc

$(BIN)/demo: examples/demo.c $(T)/cuda_dl.c $(T)/bench_time.c $(LIB) $(wildcard $(T)/*.h)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -I$(T) -o $@ $(filter %.c,$^) $(LINK)
