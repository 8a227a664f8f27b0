# SPDX-License-Identifier: MIT
#
# make check-steps    [check 40 s] every instruction of a copy: signals, fences; make stress: all plans

$(BIN)/steps $(BIN)/fences: $(BIN)/%: tests/steps/%.c tests/steps/table.h $(T)/front_double.h $(wildcard capi/*.[ch] capi/*/*.[ch]) tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -Icapi -I$(T) -o $@ $< capi/data.c $(LONG_C) capi/host/guest.c $(COPY_C) -lpthread -ldl
