# SPDX-License-Identifier: MIT
#
# make check-copy     [check 20 s] the copy routines, what copies refuse, and their fences
# make check-cross    [more 1 min] the copy routines of other machines, under emulation
# make check-tsan     [more 20 s] the data plane under ThreadSanitizer

COPY_TEST  = $(C11) -Icapi -I$(T) -o $@ $(filter %.c,$^) -lpthread -ldl
$(addprefix $(BIN)/,copy_test copy_test.arm64 copy_test.ppc64le) $(B)/asan/copy_test: $(T)/copy/test.c
$(addprefix $(BIN)/,copy_test copy_test.arm64 copy_test.ppc64le) $(B)/asan/copy_test: \
		$(COPY_C) $(CAPI_H) $(T)/front_double.h tools/tap.h

$(BIN)/copy_test:
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(COPY_TEST)

DATA_C := capi/copy.c capi/pieces.c $(COPY_C)
$(BIN)/data_test $(BIN)/fences $(BIN)/data_tsan: $(BIN)/%: $(DATA_C) $(CAPI_H) $(T)/front_double.h tools/tap.h
$(BIN)/data_test $(BIN)/data_tsan: $(T)/copy/data.c
$(BIN)/fences: $(T)/copy/fences.c

$(BIN)/data_test $(BIN)/fences:
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(COPY_TEST)

$(BIN)/data_tsan: | need-$(CLANG)
	@mkdir -p $(@D)
	$(CLANG) -O1 -g -fsanitize=thread $(COPY_TEST)

$(B)/asan/copy_test:
	@mkdir -p $(@D)
	$(CC) -O1 -g $(SANITIZE) $(COPY_TEST)

$(BIN)/copy_test.arm64: | need-aarch64-linux-gnu-gcc
	@mkdir -p $(@D)
	aarch64-linux-gnu-gcc $(CFLAGS) -static $(COPY_TEST)

$(BIN)/copy_test.ppc64le: | need-powerpc64le-linux-gnu-gcc
	@mkdir -p $(@D)
	powerpc64le-linux-gnu-gcc $(CFLAGS) -static $(COPY_TEST)
