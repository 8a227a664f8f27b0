# SPDX-License-Identifier: MIT
#
# make check-fuzz     [more 3 min] replays the kept inputs, then fuzzes a little on each backend
# make fuzz           [long 60 min] the same for long: FUZZ_SECONDS

F               := $(B)/fuzz
FUZZ_SANITIZE   := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer

.PHONY: fuzz fuzz-build

# The library with the C side under the sanitizers and covered. The target is a mark: the
# library itself is the other make's.
$(F)/.built: $(LIB) | need-clang
	@mkdir -p $(F)
	CGO_CFLAGS='-O1 -g $(FUZZ_SANITIZE) -fsanitize-coverage=inline-8bit-counters,pc-table' \
	CGO_LDFLAGS='-fsanitize=address,undefined' \
	$(MAKE) --no-print-directory lib CC='$(CLANG)' LIB=$(F)/libgdrapi.so.$(VERSION)
	touch $@

# The model is no part of what is covered.
$(F)/abi_fuzz: tests/fuzz/abi_fuzz.c $(F)/.built | need-clang
	$(CLANG) $(C11) -O1 -g $(FUZZ_SANITIZE) -c -o $@.o $<
	$(CLANG) -fsanitize=fuzzer,address,undefined -rdynamic -o $@ $@.o -L$(F) -lgdrapi -ldl -lpthread

fuzz-build: $(F)/abi_fuzz $(DOUBLES)

fuzz:
	@$(call RUN_SUITE,-test.run '^Test_fuzz_long$$')
