# SPDX-License-Identifier: MIT
#
# make check-docs     [more 10 s] the pages: the files that they name, and what they say to type
