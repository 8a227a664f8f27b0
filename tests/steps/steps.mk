# SPDX-License-Identifier: MIT
#
# make check-steps    [check 30 s] signals at every instruction of a copy; STEPS=--full: all plans

STEPS ?=

.PHONY: check-steps
check-steps: $(BIN)/steps
	@$(RUN) steps $(BIN)/steps $(STEPS)

stress: STEPS := --full
stress: check-steps

$(BIN)/steps: tests/steps/steps.c $(wildcard capi/*.[ch] capi/copy/*.[ch]) $(T)/front_double.h tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -Icapi -I$(T) -o $@ $< capi/data.c capi/dma.c capi/driver.c capi/long.c capi/guest.c $(COPY_C) -lpthread -ldl
