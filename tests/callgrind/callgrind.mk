# SPDX-License-Identifier: MIT
#
# make check-counts   the C front's instruction counts against tests/callgrind/counts.txt

.PHONY: check-counts
check-counts:
	@CC='$(CC)' $(RUN) callgrind-counts tests/callgrind/counts.sh $(B)

# Part of make check.
check-c: check-counts

lint: lint-counts
.PHONY: lint-counts
lint-counts:
	shellcheck tests/callgrind/*.sh
	for cc in $(CC) $(CLANG); do \
		$$cc $(C11) -O2 -Icapi -Itests/callgrind -fsyntax-only tests/callgrind/counts.c || exit 1; done
