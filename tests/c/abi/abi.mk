# SPDX-License-Identifier: MIT
#
# make check-abi      [check 15 s] what the header and the library promise, and an install that is used
# make check-badinput [check 20 s] what no caller should pass, and what the reference takes, on each backend

$(BIN)/badinput: $(T)/abi/badinput.c $(EVERY_H)
$(BIN)/abi_layout: $(T)/abi/layout.c $(B)/tests/pages.h
$(BIN)/abi_reference: $(T)/abi/reference.c
$(BIN)/badinput $(BIN)/abi_layout $(BIN)/abi_reference: $(LIB) tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) $(EVERY) -o $@ $(filter %.c,$^) $(LINK)

$(BIN)/abi_cpp: $(T)/abi/cpp.cpp $(LIB) tools/tap.h $(B)/tests/functions.h $(B)/tests/pages.h
	@mkdir -p $(@D)
	$(CXX) -std=c++98 -pedantic $(WARN) $(CFLAGS) -Iinclude -Itools $(EVERY) -o $@ $< $(LINK)

$(B)/asan/badinput: $(T)/abi/badinput.c $(EVERY_H) $(B)/asan/.built
	$(CC) $(C11) $(EVERY) -O1 -g $(SANITIZE) -o $@ $< -L$(B)/asan -lgdrapi -ldl -lpthread
