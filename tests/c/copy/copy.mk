# SPDX-License-Identifier: MIT
#
# make check-copy     [check 20 s] the copy routines, the threads behind them, and how the way is chosen
# make check-cross    [more 1 min] the copy routines of other machines, under emulation
# make check-tsan     [more 20 s] the data plane under ThreadSanitizer

COPY_TEST  = $(C11) -Icapi -I$(T) -o $@ $(filter %.c,$^) -lpthread -ldl
$(addprefix $(BIN)/,copy_test copy_test.arm64 copy_test.ppc64le) $(B)/asan/copy_test: $(T)/copy/test.c
$(BIN)/ext_pool $(BIN)/ext_pool_tsan: $(T)/copy/pool.c capi/long/pool.c capi/long/plan.c
$(BIN)/guest_tsan: $(T)/copy/tsan.c capi/data.c $(LONG_C) capi/host/guest.c
$(addprefix $(BIN)/,copy_test copy_test.arm64 copy_test.ppc64le ext_pool ext_pool_tsan guest_tsan) $(B)/asan/copy_test: \
		$(COPY_C) $(CAPI_H) $(T)/front_double.h tools/tap.h

$(BIN)/copy_test $(BIN)/ext_pool:
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(COPY_TEST)

$(BIN)/machines_test: $(T)/copy/machines.c $(filter-out %/threads.c,$(COPY_C)) $(CAPI_H) $(T)/copy/cpu_double.h tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(COPY_TEST) -include $(T)/copy/cpu_double.h

# These two have capi/long/pool.c in them.
$(BIN)/pool_rules: $(T)/copy/pool_rules.c $(LONG_C) $(CAPI_H) tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(C11) -Icapi -o $@ $< capi/long/plan.c

$(BIN)/pool_steps: $(T)/copy/pool_steps.c capi/long/pool.c $(COPY_C) $(CAPI_H) tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(C11) -Icapi -I$(T) -o $@ $(filter-out %/pool.c,$(filter %.c,$^)) -lpthread -ldl

$(BIN)/data_test: $(T)/copy/data.c capi/data.c capi/long/plan.c $(COPY_C) $(CAPI_H) $(T)/front_double.h $(T)/log_double.h tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(COPY_TEST)

$(BIN)/threads_test: $(T)/copy/threads.c capi/copy/threads.c $(CAPI_H) tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(COPY_TEST) -lm

# It has capi/long/auto.c in it.
$(BIN)/auto_test: $(T)/copy/auto.c capi/long/auto.c capi/long/plan.c $(CAPI_H) tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(C11) -Icapi -o $@ $(filter-out capi/long/auto.c,$(filter %.c,$^))

$(BIN)/ext_pool_tsan $(BIN)/guest_tsan: | need-$(CLANG)
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
