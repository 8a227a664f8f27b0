# SPDX-License-Identifier: MIT
#
# make check-vkgdr    [check 10 s] libvkgdr.so on the doubles, and as it is installed

$(BIN)/vkgdr_test: tests/vkgdr/vkgdr_test.c tools/tap.h $(CUDA_DL) $(VKGDR)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c %.o,$^) -L$(B) -lvkgdr -ldl -lpthread -Wl,-rpath,'$$ORIGIN/..'

# It counts what vkgdr.c loads.
$(BIN)/vkgdr_counted.o: vkgdr/vkgdr.c tests/vkgdr/counted.h include/vkgdr.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -include tests/vkgdr/counted.h -c -o $@ $<

$(BIN)/vkgdr_steps: tests/vkgdr/steps.c $(BIN)/vkgdr_counted.o include/vkgdr.h tools/tap.h $(CUDA_DL)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c %.o,$^) -ldl -lpthread
