# SPDX-License-Identifier: MIT
#
# make check-ext      [check 1 min] what gdrapi_ext.h adds

# Programs over the library; the others are parts of it under a test.
EXTBINS   := $(patsubst $(T)/ext/%.c,$(BIN)/ext_%,$(filter-out %/cache_tsan.c %/beside_preload.c,$(wildcard $(T)/ext/*.c)))

$(BIN)/ext_race $(BIN)/ext_beside $(BIN)/ext_calls $(BIN)/ext_cache $(BIN)/ext_contexts $(BIN)/ext_many $(BIN)/ext_share $(BIN)/ext_unmap: $(CUDA_DL)
$(EXTBINS): $(BIN)/ext_%: $(T)/ext/%.c $(T)/guest/main.c $(wildcard $(T)/ext/*.h) $(LIB) $(GUEST_H)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -I$(T) -o $@ $(filter %.c %.o,$^) $(LINK)

$(BIN)/ext_cache_tsan: $(T)/ext/cache_tsan.c capi/cache.c $(CAPI_H) $(T)/front_double.h tools/tap.h

$(BIN)/ext_cache_tsan: | need-$(CLANG)
	@mkdir -p $(@D)
	$(CLANG) -O1 -g -fsanitize=thread $(C11) -Icapi -I$(T) -o $@ $(filter %.c,$^) -lpthread

# Its munmap must be found before the C library's.
$(BIN)/ext_unmap: CFLAGS += -rdynamic

# Runs any program beside a capture that is open the whole time.
$(B)/beside_preload.so: $(T)/ext/beside_preload.c $(B)/tests/functions.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) $(EVERY) -shared -fPIC -o $@ $< -ldl -lpthread
