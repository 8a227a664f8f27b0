# SPDX-License-Identifier: MIT
#
# make stress         the guest tests at their full length, on each backend
# make check-tsan     the data plane under ThreadSanitizer

GUEST_LONG ?= $(GUESTS)

.PHONY: stress check-tsan

# Its functions must be found before the library's.
$(BIN)/guest_static: CFLAGS += -rdynamic

stress: $(CHECKS) $(DOUBLES)
	@for t in $(GUEST_LONG); do for b in $(BACKENDS); do \
		$(RUN) stress-$$t-$$b $(SIM) $(ON) $$b $(BIN)/guest_$$t --long; \
	done; done
	@$(MAKE) --no-print-directory check-tsan TSAN_LENGTH=--long

TSAN_LENGTH ?=
check-tsan: $(BIN)/guest_tsan
	@$(RUN) tsan $(BIN)/guest_tsan $(TSAN_LENGTH)

$(BIN)/guest_tsan: $(T)/guest_tsan.c $(wildcard capi/*.[ch])
	@mkdir -p $(@D)
	$(CLANG) $(C11) -O1 -g -fsanitize=thread -Icapi -o $@ $(T)/guest_tsan.c capi/data.c capi/dma.c $(wildcard capi/copy*.c) -lpthread
