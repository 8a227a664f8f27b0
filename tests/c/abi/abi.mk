# SPDX-License-Identifier: MIT
#
# make check-abi      [check 15 s] what the header and the library promise, and an install that is used
# make check-badinput [check 20 s] every function with what no caller should pass, on each backend

.PHONY: check-abi check-badinput
check-abi: need-pkg-config need-readelf $(addprefix $(BIN)/,abi_layout abi_cpp badinput) $(DOUBLES) all
	@$(RUN) abi-layout $(SIM) $(BIN)/abi_layout
	@$(RUN) abi-cpp $(SIM) $(BIN)/abi_cpp
	@$(RUN) abi-symbols $(T)/abi/symbols.sh $(LIB)
	@rm -rf $(B)/root
	@$(MAKE) --no-print-directory -s install DESTDIR=$(abspath $(B)/root) prefix=/usr libdir=/usr/lib
	@$(RUN) abi-pkg-config $(T)/abi/pc.sh $(abspath $(B)/root) /usr/lib
	@$(RUN) readme-example $(SIM) tests/fresh/readme.sh $(abspath $(B)/root) /usr/lib
	@rm -rf $(B)/root $(B)/gdrapi.pc

check-badinput: $(BIN)/badinput $(DOUBLES)
	@for b in $(BACKENDS); do $(RUN) badinput-$$b $(SIM) $(ON) $$b $(BIN)/badinput; done

$(BIN)/badinput: $(T)/abi/badinput.c
$(BIN)/abi_layout: $(T)/abi/layout.c
$(BIN)/badinput $(BIN)/abi_layout: $(LIB) tools/tap.h
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(LINK)

$(BIN)/abi_cpp: $(T)/abi/cpp.cpp $(LIB) tools/tap.h
	@mkdir -p $(@D)
	$(CXX) -std=c++98 -pedantic $(WARN) $(CFLAGS) -Iinclude -Itools -o $@ $< $(LINK)

$(B)/asan/badinput: $(T)/abi/badinput.c $(B)/asan/.built
	$(CC) $(C11) -O1 -g $(SANITIZE) -o $@ $< -L$(B)/asan -lgdrapi -ldl -lpthread
