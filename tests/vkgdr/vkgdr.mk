# SPDX-License-Identifier: MIT
#
# make check-vkgdr    [check 10 s] libvkgdr.so on the doubles, and as it is installed

$(BIN)/vkgdr_test: tests/vkgdr/vkgdr_test.c tools/tap.h $(CUDA_DL) $(VKGDR)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c %.o,$^) -L$(B) -lvkgdr -ldl -lpthread -Wl,-rpath,'$$ORIGIN/..'
