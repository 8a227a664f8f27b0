# SPDX-License-Identifier: MIT
#
# make stress         [long 60 min] the guest tests at their full length, on each backend

GUEST_LONG ?= $(GUESTS)

.PHONY: stress
stress: $(GUESTBINS) $(DOUBLES)
	@for t in $(GUEST_LONG); do for b in $(BACKENDS); do \
		$(RUN) stress-$$t-$$b $(SIM) $(ON) $$b $(BIN)/guest_$$t --long; \
	done; done
	@$(MAKE) --no-print-directory check-tsan TSAN_LENGTH=--long
