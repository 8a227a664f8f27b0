# SPDX-License-Identifier: MIT
#
# make check-ext      what gdrapi_ext.h adds, and the threads behind it

EXT       := $(addprefix $(BIN)/,ext_threads ext_dma ext_cache ext_many ext_auto)
POOL      := $(T)/ext_pool.c $(wildcard capi/copy*.c)

.PHONY: check-ext
check-ext: $(EXT) $(BIN)/ext_pool $(BIN)/ext_cache_steps $(BIN)/auto_test $(DOUBLES)
	@$(RUN) ext-pool $(BIN)/ext_pool
	@$(RUN) ext-cache-steps $(BIN)/ext_cache_steps --steps
	@$(RUN) ext-choice $(BIN)/auto_test
	@for b in $(BACKENDS); do \
		$(RUN) ext-threads-$$b $(SIM) $(ON) $$b $(BIN)/ext_threads; \
		$(RUN) ext-dma-$$b $(SIM) $(ON) $$b $(BIN)/ext_dma; \
		$(RUN) ext-cache-$$b $(SIM) $(ON) $$b $(BIN)/ext_cache; \
		$(RUN) ext-many-$$b $(SIM) $(ON) $$b $(BIN)/ext_many; \
		$(RUN) ext-auto-$$b $(SIM) $(ON) $$b $(BIN)/ext_auto; \
	done

# Part of make check, and of make check-tsan.
check-guest: check-ext
check-tsan: check-ext-tsan
.PHONY: check-ext-tsan
check-ext-tsan: $(BIN)/ext_pool_tsan $(BIN)/ext_cache_tsan
	@$(RUN) tsan-ext-pool env GDRCOPY_COPY_IMPL=portable $(BIN)/ext_pool_tsan
	@$(RUN) tsan-ext-cache $(BIN)/ext_cache_tsan

$(BIN)/ext_cache $(BIN)/ext_many: $(T)/cuda_dl.c
$(EXT): $(BIN)/%: $(T)/%.c $(LIB) $(wildcard $(T)/*.h)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(LINK)

$(BIN)/auto_test: $(T)/auto_test.c capi/copy_auto.c capi/copy_auto.h $(T)/sanity_tap.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -Icapi -o $@ $(filter %.c,$^)

$(BIN)/ext_pool: $(POOL) $(wildcard capi/*.h) $(T)/sanity_tap.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -Icapi -o $@ $(POOL) -lpthread

$(BIN)/ext_pool_tsan: $(POOL) $(wildcard capi/*.h) $(T)/sanity_tap.h
	@mkdir -p $(@D)
	$(CLANG) $(C11) -O1 -g -fsanitize=thread -Icapi -o $@ $(POOL) -lpthread

# A driver of its own, whose memory the test frees at any time.
CACHE_TSAN := $(T)/ext_cache_tsan.c capi/cache.c capi/guest.c
$(B)/cache-cuda/libcuda.so.1: $(T)/cache_cuda.c
	@mkdir -p $(@D)
	$(CLANG) -shared -fPIC $(C11) -O1 -g -Wl,-soname,$(@F) -o $@ $<

$(BIN)/ext_cache_steps: $(CACHE_TSAN) $(B)/cache-cuda/libcuda.so.1 $(wildcard capi/*.h) $(T)/sanity_tap.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -Icapi -o $@ $(filter %.c %.so.1,$^) -Wl,-rpath,'$$ORIGIN/../cache-cuda' -lpthread -ldl

$(BIN)/ext_cache_tsan: $(CACHE_TSAN) $(B)/cache-cuda/libcuda.so.1 $(wildcard capi/*.h) $(T)/sanity_tap.h
	@mkdir -p $(@D)
	$(CLANG) $(C11) -O1 -g -fsanitize=thread -Icapi -o $@ $(filter %.c %.so.1,$^) \
		-Wl,-rpath,'$$ORIGIN/../cache-cuda' -lpthread -ldl
