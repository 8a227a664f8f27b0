# SPDX-License-Identifier: MIT
#
# make check-tools    [check 1 min] the tools' arguments, figures, exit statuses and progress
# make check-sanity   [check 30 s] the conformance suite on each backend

# Spoils copies of the program that it is preloaded into.
$(B)/tests/libspoil.so: tests/tools/spoil.c $(wildcard include/*.h)
	@mkdir -p $(@D)
	$(CC) -shared -fPIC $(C11) $(CFLAGS) -o $@ $<

# It has a GPU of its own, and includes what it tests.
$(BIN)/pingpong_test: tests/tools/pingpong.c tests/tools/said.h tests/doubles/ptx.c tests/doubles/ptx.h tools/pplat.c $(BENCH) $(TOOL_H) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -Itests/doubles -o $@ $< tests/doubles/ptx.c $(filter %.o,$^) $(LINK)

# It has a terminal and loops of its own, and includes what it tests.
$(BIN)/printed_test: tests/tools/printed.c tests/tools/said.h tools/copylat.c tools/progress.c $(call object,copylat_modes.c copylat_callers.c) $(filter-out %/progress.o,$(BENCH)) $(TOOL_H) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $< $(filter %.o,$^) $(LINK)

# It has a clock of its own, and includes what it tests.
$(BIN)/figures_test: tests/tools/figures.c tests/tools/said.h tools/copybw.c tools/apiperf.c tools/bench/race.c tools/bench/timing.c $(filter-out %/race.o %/timing.o,$(BENCH)) $(TOOL_H) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $< $(filter %.o,$^) $(LINK)
