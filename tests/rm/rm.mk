# SPDX-License-Identifier: MIT
#
# make check-rm       every kind of CUDA memory on the rm backend, on the simulated driver

.PHONY: check-rm
check-rm: $(BIN)/rm_memory $(DOUBLES)
	@$(RUN) rm-memory $(SIM) GDRCOPY_BACKEND=rm $(D)/rm_sim $(BIN)/rm_memory

# Part of make check.
check-c: check-rm

$(BIN)/rm_memory: tests/rm/rm_memory.c $(T)/cuda_dl.c $(LIB) $(wildcard $(T)/*.h)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -I$(T) -o $@ $(filter %.c,$^) $(LINK)
