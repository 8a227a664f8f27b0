# SPDX-License-Identifier: MIT
#
# make check-fresh    README.md on fresh Debians; FRESH=--check: make check there, too

FRESH     ?=
FRESHRUN  := env GDR_RESULTS=$(B)/fresh/results $(RUN)

.PHONY: check-fresh
check-fresh:
	@$(FRESHRUN) --clear
	@for s in bookworm trixie; do $(FRESHRUN) fresh-$$s tests/fresh/fresh.sh $$s $(FRESH); done
	@$(FRESHRUN) --total
