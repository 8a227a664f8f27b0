# SPDX-License-Identifier: MIT
#
# make check-man      [more 20 s] the manual pages against the code
