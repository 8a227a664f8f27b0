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

$(BIN)/demo: $(call of,examples/demo.c tools/bench/timing.c) $(CUDA_DL) $(LIB)
examples: $(EXAMPLES) $(EX)/go

$(EX)/go: examples/go/main.go $(shell find core -name '*.go' -o -name '*.s') go.mod go.sum
	CGO_ENABLED=0 $(GO) build -buildvcs=false -o $@ ./examples/go

$(EX)/write_read $(EX)/flag $(EX)/cache: $(EX)/%: $(O)/examples/%.o
$(EX)/pingpong: $(call of,examples/mailbox/pingpong.c)
$(EX)/capture: $(call of,examples/capture/*.c)
$(EX)/mailbox_test: $(call of,tests/examples/mailbox_test.c)

# As a user builds them, against libcuda.so.1. It is the simulated one here; the same
# programs run with the real one.
$(EXAMPLES) $(EX)/mailbox_test: $(LIB) $(D)/libcuda.so.1
$(O)/examples/%.o: private FLAGS = -Iexamples
