# SPDX-License-Identifier: MIT
#
# make check-steps    [check 40 s] every instruction of a copy: signals, fences; STEPS=--full: all plans

STEPS ?=

.PHONY: check-steps
check-steps: $(BIN)/steps $(BIN)/fences
	@$(RUN) steps $(BIN)/steps $(STEPS)
	@$(RUN) steps-fences $(BIN)/fences

stress: STEPS := --full
stress: check-steps

$(BIN)/steps $(BIN)/fences: $(BIN)/%: tests/steps/%.c tests/steps/table.h $(T)/front_double.h $(wildcard capi/*.[ch] capi/copy/*.[ch]) tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -Icapi -I$(T) -o $@ $< capi/data.c capi/dma.c capi/words.c capi/ring.c capi/locked.c capi/driver.c capi/long.c capi/guest.c $(COPY_C) -lpthread -ldl
