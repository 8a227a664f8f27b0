# SPDX-License-Identifier: MIT
#
# make check          [check 12 min] every test that needs no GPU; CHECK='abi guest' picks some of them
# make check-all      [more 60 min] make check, make lint and most of these: what CI runs
# make check-go       [check 1 min] the tests of the Go packages
# make check-run      [check 10 s] tests/run.sh itself: a test that fails makes make fail
# make check-memory   [more 10 min] the sanitizers, valgrind and the race detector
# make lint           [more 2 min] the static checks

T         := tests/c
D         := $(B)/doubles
RUN       := tests/run.sh
ON        := tests/on.sh
BACKENDS  := $(shell $(ON))
SIM       := env LD_LIBRARY_PATH=$(abspath $(D)):$(abspath $(B)) VK_DRIVER_FILES=$(abspath $(D))/nvidia_icd.json RM_SIM=$(abspath $(D))/rm_sim GDR_TEST_DOUBLES=1
SIMASAN   := env LD_LIBRARY_PATH=$(abspath $(D)):$(abspath $(B)/asan) VK_DRIVER_FILES=$(abspath $(D))/nvidia_icd.json RM_SIM=$(abspath $(D))/rm_sim ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0
CLANG     ?= clang

DOUBLES   := $(D)/libcuda.so.1 $(D)/libvulkan.so.1 $(D)/nvidia_icd.json $(D)/rm_sim
# What programs are built from, or again for, beside their own source.
COPY_C    := $(wildcard capi/copy/*.c)
CAPI_H    := $(wildcard capi/*.h capi/copy/*.h)
GUEST_H   := $(wildcard $(T)/guest/*.h tools/*.h)

.PHONY: check check-all check-go check-run check-memory lint

# What make check runs, in this order, and what CI runs besides.
CHECK      = run go doubles abi capi install copy badinput sanity tools rm guest ext steps consumers-quick doctor vkgdr examples
CHECK_MORE = man docs python memory cross tsan fuzz counts go-oldest kmod-static vm fresh

# A target that fails does not keep the others from being made.
check:
	@MAKE='$(MAKE)' $(RUN) --make $(addprefix check-,$(CHECK))

check-all:
	@MAKE='$(MAKE)' $(RUN) --make all demo $(addprefix check-,$(CHECK)) lint $(addprefix check-,$(CHECK_MORE))

# Without that program a target cannot be made.
need-%:
	@$(RUN) --need $*

check-run:
	@$(RUN) run-itself tests/run_test.sh

check-go: $(DOUBLES)
	@$(RUN) --go go-test $(SIM) $(GO) test -v -count=1 ./core/... ./cmd/gdrcopy_report/... ./tests/mutate/...

# The C side under the sanitizers and valgrind, the Go side under the race detector.
# Valgrind must see that the simulated libcuda replaces mmap on rm.
SANITIZE  := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
check-memory: need-valgrind $(BIN)/badinput $(B)/asan/badinput $(B)/asan/copy_test $(DOUBLES)
	@$(RUN) copy-routines-asan $(B)/asan/copy_test
	@for b in $(BACKENDS); do \
		$(RUN) badinput-$$b-asan $(SIMASAN) $(ON) $$b $(B)/asan/badinput; \
		$(RUN) badinput-$$b-valgrind $(SIM) $(ON) $$b valgrind -q --smc-check=all --error-exitcode=9 \
			--suppressions=$(T)/abi/badinput.supp $(BIN)/badinput; \
	done
	@$(RUN) --go go-test-race $(SIM) $(GO) test -race -v -count=1 ./core/...

# The mark stands for a library of another make.
$(B)/asan/.built: $(LIB)
	@mkdir -p $(@D)
	CGO_CFLAGS='-O1 -g $(SANITIZE)' CGO_LDFLAGS='-fsanitize=address,undefined' \
	$(MAKE) --no-print-directory lib LIB=$(B)/asan/libgdrapi.so.$(VERSION)
	touch $@

GO_DIRS   := capi core cmd tests packaging
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
lint: need-shellcheck need-$(CLANG) need-aarch64-linux-gnu-gcc $(DOUBLES)
	@test -z "$$(gofmt -l $(GO_DIRS))" || { gofmt -d $(GO_DIRS); exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	shellcheck -x setup.sh capi/*.sh kmod/*.sh packaging/*.sh tests/*.sh tests/*/*.sh $(T)/*/*.sh .ci/run
	@mkdir -p $(B)/_cgo
	cd capi && $(GO) tool cgo -objdir ../$(B)/_cgo -- main.go
	for cc in $(CC) $(CLANG); do for f in capi/*.c capi/copy/*.c; do \
		$$cc -std=gnu11 -O2 $(WARN) -Icapi -I$(B)/_cgo -fsyntax-only $$f || exit 1; done; \
		for f in tools/*.c tools/*/*.c $(T)/*/*.c $(addprefix tests/,$(addsuffix /*.c,arch bench callgrind capi consumers doubles examples fuzz rm steps vkgdr)) \
			examples/*.c examples/*/*.c vkgdr/*.c; do \
		$$cc $(C11) -O2 -Icapi -Iexamples -I$(T) -Itests/callgrind -fsyntax-only $$f || exit 1; done; done
	aarch64-linux-gnu-gcc -std=gnu11 -O2 $(WARN) -Icapi -I$(B)/_cgo -fsyntax-only capi/*.c capi/copy/*.c
	GOARCH=arm64 $(GO) vet ./core/... ./cmd/...
	GOARCH=ppc64le $(GO) vet ./core/... ./cmd/...

include $(wildcard $(T)/*/*.mk) $(wildcard tests/*/*.mk) examples/examples.mk
