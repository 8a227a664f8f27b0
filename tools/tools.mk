# SPDX-License-Identifier: MIT
#
# make tools          [build 20 s] the programs that are installed beside the library

TOOL_NAMES := sanity copybw copylat apiperf pplat
C_TOOLS   := $(addprefix $(BIN)/gdrcopy_,$(TOOL_NAMES))
GO_TOOLS  := $(addprefix $(BIN)/gdrcopy_,report doctor)
TOOLS     := $(C_TOOLS) $(GO_TOOLS)
INSTALLED  = $(C_TOOLS:$(BIN)/%=$(INSTALL_DIR)/%)
# The reference installs these links, which scripts may call.
OLD_NAMES := sanity copybw copylat apiperf
TOOL_H    := $(wildcard tools/*.h tools/*/*.h)
object     = $(patsubst %.c,$(B)/obj/%.o,$(wildcard $(addprefix tools/,$(1))))
BENCH     := $(call object,progress.c bench/*.c cuda_dl.c)
CUDA_DL   := $(call object,cuda_dl.c)

sanity_O  := $(call object,progress.c sanity/*.c) $(CUDA_DL)
copybw_O  := $(call object,copybw.c) $(BENCH)
copylat_O := $(call object,copylat*.c) $(BENCH)
apiperf_O := $(call object,apiperf*.c) $(BENCH)
pplat_O   := $(call object,pplat.c) $(BENCH)

# Programs find the library above their own folder, in the build tree.
WITH_LIB   = -L$(B) -lgdrapi -ldl -lpthread -lm
LINK       = $(WITH_LIB) -Wl,-rpath,'$$ORIGIN/..'

# When they are installed, they find it by the way from bindir to libdir. In a folder
# that the loader looks into by itself no way is needed.
RUNPATH    = $(if $(filter /lib /usr/lib /lib64 /usr/lib64 /usr/lib/%-linux-gnu,$(DESTLIB:$(DESTDIR)%=%)),,$$ORIGIN/$(shell realpath -ms --relative-to='$(DESTBIN)' '$(DESTLIB)'))
INSTALL_DIR = $(B)/install/$(or $(subst /,_,$(RUNPATH:$$ORIGIN/%=%)),loader)
LINK_INST  = $(WITH_LIB) $(if $(RUNPATH),-Wl$(comma)-rpath$(comma)'$(RUNPATH)')
comma     := ,

.PHONY: tools
tools: $(TOOLS) $(INSTALLED)

$(B)/obj/%.o: %.c $(TOOL_H) capi/guest/build/glibc.syms
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -ffile-prefix-map=$(CURDIR)=. -c -o $@ $<
	$(OBJCOPY) --redefine-syms=capi/guest/build/glibc.syms $@

define tool
$(BIN)/gdrcopy_$(1) $(INSTALL_DIR)/gdrcopy_$(1): $$($(1)_O) $$(LIB)
endef
$(foreach t,$(TOOL_NAMES),$(eval $(call tool,$(t))))

$(C_TOOLS):
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LINK)

$(INSTALLED):
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LINK_INST)

# Without cgo they are bound to no version of the C library. Made anew each time, for go
# knows what has changed.
.PHONY: $(GO_TOOLS)
$(GO_TOOLS): $(BIN)/%:
	@mkdir -p $(@D)
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false \
		-ldflags "-X gdrapi/cmd/internal/version.Release=$(RELEASE) -X gdrapi/cmd/internal/version.Commit=$(COMMIT)" -o $@ ./cmd/$*
