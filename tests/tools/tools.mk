# SPDX-License-Identifier: MIT
#
# make check-tools    [check 15 s] the tools' arguments, exit statuses and progress
# make check-sanity   [check 30 s] the conformance suite on each backend
