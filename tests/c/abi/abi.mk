# SPDX-License-Identifier: MIT
#
# make check-abi      [check 15 s] what the header and the library promise, and an install that is used
# make check-badinput [check 20 s] what no caller should pass, and what the reference takes, on each backend

$(BIN)/badinput: $(O)/$(T)/abi/badinput.o $(LIB)
$(BIN)/abi_layout $(BIN)/abi_cpp: $(BIN)/abi_%: $(O)/$(T)/abi/%.o $(LIB)
$(BIN)/abi_cpp: private CC = $(CXX)
