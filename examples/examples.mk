# SPDX-License-Identifier: MIT
#
# make demo           [build 5 s] what the library is for, in ten lines; without a GPU, simulated

.PHONY: demo
demo: $(BIN)/demo $(DOUBLES)
	@rc=0; $(BIN)/demo || rc=$$?; [ $$rc -ne 2 ] || { rc=0; $(SIM) $(BIN)/demo || rc=$$?; }; exit $$rc

$(BIN)/demo: examples/demo.c $(CUDA_DL) $(call object,bench/timing.c) $(LIB) $(TOOL_H)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c %.o,$^) $(LINK)
