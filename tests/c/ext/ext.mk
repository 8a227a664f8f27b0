# SPDX-License-Identifier: MIT
#
# make check-ext      [check 1 min] what gdrapi_ext.h adds

# Programs over the library; the others are parts of it under a test.
EXTBINS   := $(patsubst $(T)/ext/%.c,$(BIN)/ext_%,$(filter-out %/cache_tsan.c %/beside_preload.c,$(wildcard $(T)/ext/*.c)))

$(EXTBINS): $(BIN)/ext_%: $(O)/$(T)/ext/%.o $(CASES) $(CUDA_DL) $(LIB)
$(BIN)/cache_test: $(call of,$(T)/ext/cache_tsan.c capi/cache_hits.c)

# Runs any program beside a capture that is open the whole time.
$(B)/beside_preload.so: $(O)/$(T)/ext/beside_preload.o
