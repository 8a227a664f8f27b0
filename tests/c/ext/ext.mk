# SPDX-License-Identifier: MIT
#
# make check-ext      [check 1 min] what gdrapi_ext.h adds

# Programs over the library; the others are parts of it under a test.
EXTBINS   := $(patsubst $(T)/ext/%.c,$(BIN)/ext_%,$(filter-out %/engine.c %/extents.c %/ways.c %/cache_tsan.c %/beside_preload.c,$(wildcard $(T)/ext/*.c)))

$(BIN)/ext_beside $(BIN)/ext_calls $(BIN)/ext_cache $(BIN)/ext_many: $(CUDA_DL)
$(EXTBINS): $(BIN)/ext_%: $(T)/ext/%.c $(T)/guest/main.c $(wildcard $(T)/ext/*.h) $(LIB) $(GUEST_H)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -I$(T) -o $@ $(filter %.c %.o,$^) $(LINK)

CACHE_TEST = $(C11) -Icapi -I$(T) -Itests/callgrind -o $@ $(filter %.c,$^) -lpthread
$(BIN)/ext_cache_steps $(BIN)/ext_cache_tsan: $(T)/ext/cache_tsan.c capi/cache.c capi/host/guest.c capi/host/reserve.c $(CAPI_H) $(T)/front_double.h tools/tap.h

$(BIN)/ext_cache_steps:
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CACHE_TEST)

$(BIN)/ext_cache_tsan: | need-$(CLANG)
	@mkdir -p $(@D)
	$(CLANG) -O1 -g -fsanitize=thread $(CACHE_TEST)

ENGINE_TEST = $(C11) -Icapi -o $@ $(filter %.c,$^) -lpthread
$(BIN)/ext_engine $(BIN)/ext_engine_tsan: $(T)/ext/engine.c capi/long/engine.c capi/host/guest.c $(CAPI_H) tools/tap.h

$(BIN)/ext_engine:
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(ENGINE_TEST)

$(BIN)/ext_extents: $(T)/ext/extents.c capi/long/engine.c capi/host/guest.c $(CAPI_H) tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(ENGINE_TEST)

# It includes long.c and dma.c.
$(BIN)/ext_ways: $(T)/ext/ways.c capi/long/auto.c capi/long/plan.c capi/long/long.c capi/long/dma.c $(CAPI_H) tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(C11) -Icapi -o $@ $(filter-out capi/long/long.c capi/long/dma.c,$(filter %.c,$^)) -lpthread

$(BIN)/ext_engine_tsan: | need-$(CLANG)
	@mkdir -p $(@D)
	$(CLANG) -O1 -g -fsanitize=thread $(ENGINE_TEST)

# Runs any program beside a capture that is open the whole time.
$(B)/beside_preload.so: $(T)/ext/beside_preload.c
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -shared -fPIC -o $@ $< -ldl -lpthread
