# SPDX-License-Identifier: MIT
#
# make demo           [build 2 min] make, then what the library is for, in ten lines; without a GPU, simulated
# make examples       [build 5 s] the programs of examples/, under build/examples
# make check-examples [check 5 s] the examples on the doubles

EX        := $(B)/examples
EXAMPLES  := $(addprefix $(EX)/,write_read flag cache pingpong capture)

.PHONY: demo examples
demo: all $(BIN)/demo $(DOUBLES)
	@rc=0; $(BIN)/demo || rc=$$?; [ $$rc -ne 2 ] || { rc=0; $(SIM) $(BIN)/demo || rc=$$?; }; exit $$rc

$(BIN)/demo: examples/demo.c $(CUDA_DL) $(call object,bench/timing.c) $(LIB) $(TOOL_H)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c %.o,$^) $(LINK)

examples: $(EXAMPLES) $(EX)/go

$(EX)/go: examples/go/main.go $(shell find core -name '*.go' -o -name '*.s') go.mod go.sum
	@mkdir -p $(@D)
	CGO_ENABLED=0 $(GO) build -buildvcs=false -o $@ ./examples/go

$(EX)/write_read $(EX)/flag $(EX)/cache: $(EX)/%: examples/%.c
$(EX)/pingpong: examples/mailbox/pingpong.c examples/mailbox/mailbox.h
$(EX)/capture: $(addprefix examples/capture/,capture.c card.c histogram.c) $(wildcard examples/capture/*.h)
$(EX)/mailbox_test: tests/examples/mailbox_test.c examples/mailbox/mailbox.h

# As a user builds them, against libcuda.so.1. It is the simulated one here; the same
# programs run with the real one.
$(EXAMPLES) $(EX)/mailbox_test: $(wildcard examples/*.h) $(LIB) $(D)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -Iexamples -o $@ $(filter %.c,$^) $(LINK) $(D)/libcuda.so.1
