# SPDX-License-Identifier: MIT
#
# make check-counts   [more 20 s] the C front's instruction counts against tests/callgrind/counts.txt
