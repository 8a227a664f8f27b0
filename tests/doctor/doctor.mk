# SPDX-License-Identifier: MIT
#
# make check-doctor   [check 30 s] gdrcopy_doctor: its texts, the program on each simulated driver, docs/troubleshooting.md
