# SPDX-License-Identifier: MIT
#
# make gpu-programs   [measure 2 min] what tests/gpu/check.sh and tests/bench/gpu.sh run on a real GPU
# make check-gpu      [long 10 min] the tests on a real GPU, with the driver that this machine has

.PHONY: gpu-programs
gpu-programs: all examples suite $(EXTBINS) $(GUESTBINS) $(BIN)/demo $(BIN)/badinput $(BIN)/rm_memory $(BIN)/copy_test $(BIN)/vkgdr_test litmus
check-gpu: gpu-programs
