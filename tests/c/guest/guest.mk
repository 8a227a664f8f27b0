# SPDX-License-Identifier: MIT
#
# make check-guest    [check 5 min] the library in hosts that do what hosts do
# make stress         [long 60 min] the guest tests at their full length, and make check-tsan

GUESTS    := $(patsubst $(T)/guest/%.c,%,$(filter-out %/main.c %/common.c %/buffer.c %/secure_host.c %/plugin.c,$(wildcard $(T)/guest/*.c)))
GUESTBINS := $(addprefix $(BIN)/guest_,$(GUESTS))

.PHONY: stress
stress:
	@$(call RUN_SUITE,-test.run '^stress$$')

$(filter-out %_lazy,$(GUESTBINS)): $(BIN)/guest_%: $(O)/$(T)/guest/%.o $(CASES) $(CUDA_DL) $(LIB)
$(BIN)/guest_lazy: $(O)/$(T)/guest/lazy.o $(LOADERS) $(CUDA_DL) | $(LIB)

$(BIN)/guest_threads: $(O)/tests/fuzz/abi_fuzz.o

# The functions of these must be found before the library's.
$(addprefix $(BIN)/guest_,loader hosts hooks): private HOW = -rdynamic

$(BIN)/guest_loader: | $(BIN)/guest_plugin.so
$(BIN)/guest_plugin.so: $(O)/$(T)/guest/plugin.o $(LIB)
$(BIN)/guest_plugin.so: private RPATH = -Wl,-rpath,'$$ORIGIN/..'

$(BIN)/guest_hosts: | $(BIN)/secure_host
$(BIN)/secure_host: $(O)/$(T)/guest/secure_host.o
