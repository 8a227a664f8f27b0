# SPDX-License-Identifier: MIT
#
# make check-steps    signals at every instruction of a copy; STEPS=--full: all plans

STEPS ?=

.PHONY: check-steps
check-steps: $(BIN)/steps
	@$(RUN) steps $(BIN)/steps $(STEPS)

# Part of make check.
check-guest: check-steps
stress: STEPS := --full
stress: check-steps

$(BIN)/steps: tests/steps/steps.c $(wildcard capi/*.[ch]) $(T)/sanity_tap.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -Icapi -I$(T) -o $@ $< capi/data.c capi/dma.c $(wildcard capi/copy*.c) -lpthread -ldl
