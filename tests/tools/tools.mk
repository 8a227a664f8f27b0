# SPDX-License-Identifier: MIT
#
# make check-tools    [check 1 min] the tools' arguments, figures, exit statuses and progress
# make check-sanity   [check 30 s] the conformance suite on each backend

# Spoils copies of the program that it is preloaded into.
$(B)/tests/libspoil.so: $(call of,tests/doubles/spoil.c)
