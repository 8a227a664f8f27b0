# SPDX-License-Identifier: MIT
#
# make check-fresh    [long 1 h] README.md on fresh Debians and Ubuntu, as root: make check there as root and as a user
# make check-fresh-quick [more 10 min] the same: make check whole on Ubuntu, as root, and a part of it on the Debians
