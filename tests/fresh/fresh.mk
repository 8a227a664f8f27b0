# SPDX-License-Identifier: MIT
#
# make check-fresh    [more 4 min] README.md on fresh Debians, as root; FRESH=--check: make check there, too
