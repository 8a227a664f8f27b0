# SPDX-License-Identifier: MIT
#
# make check-guest    [check 5 min] the library in hosts that do what hosts do
# make stress         [long 60 min] the guest tests at their full length, and make check-tsan

GUESTS    := $(patsubst $(T)/guest/%.c,%,$(filter-out %/main.c %/secure_host.c %/plugin.c,$(wildcard $(T)/guest/*.c)))
GUESTBINS := $(addprefix $(BIN)/guest_,$(GUESTS))

.PHONY: stress
stress:
	@$(call RUN_SUITE,-test.run '^Test_stress$$')

$(addprefix $(BIN)/guest_,hosts footprint signals limits forced threads): $(CUDA_DL)
$(GUESTBINS): $(BIN)/guest_%: $(T)/guest/%.c $(T)/guest/main.c $(LIB) $(GUEST_H) $(EVERY_H)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) $(EVERY) -o $@ $(filter %.c %.o,$^) $(LINK)

# Its functions must be found before the library's.
$(BIN)/guest_static: CFLAGS += -rdynamic

$(BIN)/guest_loader: CFLAGS += -rdynamic
$(BIN)/guest_loader: | $(BIN)/guest_plugin.so
$(BIN)/guest_plugin.so: $(T)/guest/plugin.c $(LIB)
	@mkdir -p $(@D)
	$(CC) -shared -fPIC $(C11) $(CFLAGS) -o $@ $< $(LINK)

$(BIN)/guest_hosts: CFLAGS += -rdynamic
$(BIN)/guest_hosts: | $(BIN)/secure_host
$(BIN)/secure_host: $(T)/guest/secure_host.c
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $< -ldl
