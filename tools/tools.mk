# SPDX-License-Identifier: MIT
#
# make tools          [build 20 s] the programs that are installed beside the library

TOOLS     := $(addprefix $(BIN)/gdrcopy_,sanity copybw copylat apiperf pplat report)
TOOL_H    := $(wildcard tools/*.h tools/*/*.h)
BENCH     := $(addprefix tools/bench/,opt.c timing.c out.c gpu.c loops.c race.c team.c cuda.c vk.c) tools/cuda_dl.c

.PHONY: tools
tools: $(TOOLS)

# Programs that use the library find it beside them, or where it is installed.
LINK       = -L$(B) -lgdrapi -ldl -lpthread -lm -Wl,-rpath,'$$ORIGIN/..:$(libdir)'

$(BIN)/gdrcopy_sanity: $(wildcard tools/sanity/*.c) tools/cuda_dl.c
$(addprefix $(BIN)/gdrcopy_,copybw copylat apiperf pplat): $(BIN)/gdrcopy_%: tools/%.c $(BENCH)
$(BIN)/gdrcopy_copylat: tools/copylat_modes.c tools/copylat_callers.c
$(BIN)/gdrcopy_report: tools/report.c $(addprefix tools/bench/,opt.c out.c json.c svg.c)

$(TOOLS): $(LIB) $(TOOL_H)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(LINK)
