# SPDX-License-Identifier: MIT
#
# make check-install  [check 30 s] what is installed works in any prefix, and goes again
