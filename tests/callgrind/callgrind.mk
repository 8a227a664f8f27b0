# SPDX-License-Identifier: MIT
#
# make check-counts   [more 20 s] the C front's instruction counts against tests/callgrind/counts.txt

.PHONY: check-counts
check-counts: need-valgrind
	@CC='$(CC)' $(RUN) callgrind-counts tests/callgrind/counts.sh $(B)
