# SPDX-License-Identifier: MIT
#
# make check-vkgdr    [check 10 s] libvkgdr.so on the doubles, and as it is installed

$(BIN)/vkgdr_test: $(call of,tests/vkgdr/vkgdr_test.c) $(CUDA_DL) $(VKGDR)
