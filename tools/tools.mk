# SPDX-License-Identifier: MIT
#
# make tools          [build 20 s] the programs that are installed beside the library

TOOL_NAMES := sanity copybw copylat apiperf pplat
C_TOOLS   := $(addprefix $(BIN)/gdrcopy_,$(TOOL_NAMES))
GO_TOOLS  := $(addprefix $(BIN)/gdrcopy_,report doctor keep)
TOOLS     := $(C_TOOLS) $(GO_TOOLS)
INSTALLED  = $(C_TOOLS:$(BIN)/%=$(INSTALL_DIR)/%)
UNITS     := $(addprefix packaging/gdrcopy-keep@.,socket service)
# The reference installs these links, which scripts may call.
OLD_NAMES := sanity copybw copylat apiperf
CUDA_DL   := $(call of,tools/cuda_dl.c)
BENCH     := $(call of,tools/progress.c tools/bench/*.c) $(CUDA_DL)

# When they are installed, they find it by the way from bindir to libdir. In a folder
# that the loader looks into by itself no way is needed.
RUNPATH    = $(if $(filter /lib /usr/lib /lib64 /usr/lib64 /usr/lib/%-linux-gnu,$(DESTLIB:$(DESTDIR)%=%)),,$$ORIGIN/$(shell realpath -ms --relative-to='$(DESTBIN)' '$(DESTLIB)'))
INSTALL_DIR = $(B)/install/$(or $(subst /,_,$(RUNPATH:$$ORIGIN/%=%)),loader)

.PHONY: tools
tools: $(TOOLS) $(INSTALLED)

both       = $(addsuffix /gdrcopy_$(1),$(BIN) $(INSTALL_DIR))
$(call both,sanity): $(call of,tools/progress.c tools/sanity/*.c) $(CUDA_DL)
$(call both,copybw): $(call of,tools/copybw.c) $(BENCH)
$(call both,copylat): $(call of,tools/copylat*.c) $(BENCH)
$(call both,apiperf): $(call of,tools/apiperf*.c) $(BENCH)
$(call both,pplat): $(call of,tools/pplat.c) $(BENCH)
$(C_TOOLS) $(INSTALLED): $(LIB)
$(INSTALLED): private RPATH = $(if $(RUNPATH),-Wl$(comma)-rpath$(comma)'$(RUNPATH)')
comma     := ,
$(INSTALLED):
	$(link)

# Without cgo they are bound to no version of the C library. Made anew each time, for go
# knows what has changed.
.PHONY: $(GO_TOOLS)
$(GO_TOOLS): $(BIN)/%:
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false \
		-ldflags "-X gdrapi/cmd/internal/version.Release=$(RELEASE) -X gdrapi/cmd/internal/version.Commit=$(COMMIT)" -o $@ ./cmd/$*
