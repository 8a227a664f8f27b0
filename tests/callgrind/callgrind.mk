# SPDX-License-Identifier: MIT
#
# make check-counts   the C front's instruction counts against tests/callgrind/counts.txt

.PHONY: check-counts
check-counts:
	@CC='$(CC)' $(RUN) callgrind-counts tests/callgrind/counts.sh $(B)
