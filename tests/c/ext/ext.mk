# SPDX-License-Identifier: MIT
#
# make check-ext      [check 1 min] what gdrapi_ext.h adds

EXTS      := threads dma cache many auto export
EXTBINS   := $(addprefix $(BIN)/ext_,$(EXTS))

.PHONY: check-ext check-ext-tsan
check-ext: $(EXTBINS) $(BIN)/ext_cache_steps $(BIN)/ext_words $(DOUBLES)
	@$(RUN) ext-words $(BIN)/ext_words
	@$(RUN) ext-cache-steps $(BIN)/ext_cache_steps --steps
	@for b in $(BACKENDS); do for t in $(EXTS); do \
		$(RUN) ext-$$t-$$b $(SIM) $(ON) $$b $(BIN)/ext_$$t; \
	done; done

check-tsan: check-ext-tsan
check-ext-tsan: $(BIN)/ext_cache_tsan $(BIN)/ext_words_tsan
	@$(RUN) tsan-ext-words $(BIN)/ext_words_tsan
	@$(RUN) tsan-ext-cache $(BIN)/ext_cache_tsan

$(BIN)/ext_cache $(BIN)/ext_many: $(CUDA_DL)
$(EXTBINS): $(BIN)/ext_%: $(T)/ext/%.c $(T)/ext/libcuda.h $(LIB) $(GUEST_H)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -I$(T) -o $@ $(filter %.c %.o,$^) $(LINK)

CACHE_TEST = $(C11) -Icapi -I$(T) -Itests/callgrind -o $@ $(filter %.c,$^) -lpthread
$(BIN)/ext_cache_steps $(BIN)/ext_cache_tsan: $(T)/ext/cache_tsan.c capi/cache.c capi/guest.c $(CAPI_H) $(T)/front_double.h tools/tap.h

$(BIN)/ext_cache_steps:
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CACHE_TEST)

$(BIN)/ext_cache_tsan: | need-$(CLANG)
	@mkdir -p $(@D)
	$(CLANG) -O1 -g -fsanitize=thread $(CACHE_TEST)

WORDS_TEST = $(C11) -Icapi -o $@ $(filter %.c,$^) -lpthread
$(BIN)/ext_words $(BIN)/ext_words_tsan: $(T)/ext/words.c capi/words.c capi/ring.c capi/locked.c $(CAPI_H) tools/tap.h

$(BIN)/ext_words:
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(WORDS_TEST)

$(BIN)/ext_words_tsan: | need-$(CLANG)
	@mkdir -p $(@D)
	$(CLANG) -O1 -g -fsanitize=thread $(WORDS_TEST)
