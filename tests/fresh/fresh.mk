# SPDX-License-Identifier: MIT
#
# make check-fresh    [more 4 min] README.md on fresh Debians, as root; FRESH=--check: make check there, too

FRESH     ?=

.PHONY: check-fresh
check-fresh:
	@for s in bookworm trixie; do GDR_LIMIT=0 $(RUN) fresh-$$s tests/fresh/fresh.sh $$s $(FRESH); done
