# SPDX-License-Identifier: MIT
#
# make check-tools    [check 1 min] the tools' arguments, figures, exit statuses and progress
# make check-sanity   [check 30 s] the conformance suite on each backend

# Spoils copies of the program that it is preloaded into.
$(B)/tests/libspoil.so: tests/tools/spoil.c tests/tools/next.h $(wildcard include/*.h)
	@mkdir -p $(@D)
	$(CC) -shared -fPIC $(C11) $(CFLAGS) -o $@ $<

# Answers gdrcopy_sanity wrongly.
$(B)/tests/libwrong.so: tests/tools/wrong.c $(wildcard include/*.h)
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

# It notes their instructions, and includes what it tests.
$(BIN)/loops_test: tests/tools/loops.c tests/tools/said.h tools/bench/loops.c tools/bench/team.c $(filter-out %/loops.o %/team.o,$(BENCH)) $(TOOL_H) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $< $(filter %.o,$^) $(LINK)

# The linker puts the test's own functions in place of these. The vectors, which another
# libgdrapi lacks, are pointers there.
LATENCY_WRAPS := bench_race bench_verify bench_gpu_start bench_gpu_open bench_gpu_stop bench_gpu_facts bench_buf_alloc \
	bench_buf_free bench_map_make bench_map_drop bench_on_cpu bench_clock_init bench_clock_text bench_host_alloc \
	bench_cuda_load bench_store_fence progress_total progress progress_wipe usleep sysconf clock_gettime pthread_create pthread_join
$(BIN)/latency_test: tests/tools/latency.c tests/tools/said.h tools/copylat.c tools/copylat_modes.c $(call object,copylat_callers.c) $(BENCH) $(TOOL_H) $(LIB)
	@mkdir -p $(@D) $(B)/tests
	$(CC) $(C11) $(CFLAGS) -Dmain=copylat_main -c -o $(B)/tests/copylat.o tools/copylat.c
	$(CC) $(C11) $(CFLAGS) '-Dgdr_copy_to_mapping_v=(*vector_to)' '-Dgdr_copy_from_mapping_v=(*vector_from)' -c -o $(B)/tests/copylat_modes.o tools/copylat_modes.c
	$(CC) $(C11) $(CFLAGS) -o $@ $< $(B)/tests/copylat.o $(B)/tests/copylat_modes.o $(filter %.o,$^) $(LATENCY_WRAPS:%=-Wl,--wrap=%) $(LINK)

# Writes down the calls of the program that it is preloaded into, and fails one.
$(B)/tests/libtrace.so: $(addprefix tests/tools/,trace.c pretend.c trace.h) tests/doubles/ptx.c tests/doubles/ptx.h kmod/gdrdrv_uapi.h
	@mkdir -p $(@D)
	$(CC) -shared -fPIC $(C11) $(CFLAGS) -Itests/doubles -o $@ $(filter %.c,$^) -lpthread
