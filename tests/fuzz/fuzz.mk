# SPDX-License-Identifier: MIT
#
# make check-fuzz     [more 3 min] replays the kept inputs, then fuzzes a little on each backend
# make fuzz           [long 60 min] the same for long: FUZZ_SECONDS

# A newer clang's AddressSanitizer puts each variable into a section of its own, and Go's are then not put back in a child.
TOGETHER   = $(shell f=-fno-sanitize-address-globals-dead-stripping; $(CLANG) $$f -E -x c /dev/null >/dev/null 2>&1 && echo $$f)

# The library's C side is under the sanitizers and covered; the model is no part of what is covered.
FUZZ      := $(B)/fuzz/bin/abi_fuzz
.PHONY: fuzz $(FUZZ)
$(FUZZ): need-$(CLANG)
	CGO_CFLAGS='-O1 -g $(SANITIZE) -fsanitize-coverage=inline-8bit-counters,pc-table $(TOGETHER)' CGO_LDFLAGS='-fsanitize=address,undefined' \
	$(call variant,fuzz) CC='$(CLANG)' CFLAGS='-O1 -g $(SANITIZE)' $@

$(BIN)/abi_fuzz: $(O)/tests/fuzz/abi_fuzz.o $(LIB)
$(BIN)/abi_fuzz: private HOW = -fsanitize=fuzzer -rdynamic

fuzz:
	@$(call RUN_SUITE,-test.run '^fuzz_long$$')
