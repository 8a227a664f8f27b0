# SPDX-License-Identifier: MIT
#
# make check-fresh    [long 1 h] README.md on fresh Debians and Ubuntu, as root: make check there as root and as a user
# make check-fresh-quick [more 6 min] the same with a part of make check
