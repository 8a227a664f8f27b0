# SPDX-License-Identifier: MIT
#
# make doubles        the simulated libcuda and libvulkan that the tests use
# make lint           the static checks

T         := tests/c
D         := $(B)/doubles
BIN       := $(B)/bin
RUN       := tests/run.sh
ON        := tests/on.sh
BACKENDS  := $(shell $(ON))
SIM       := env LD_LIBRARY_PATH=$(abspath $(D)):$(abspath $(B)) VK_DRIVER_FILES=$(abspath $(D))/nvidia_icd.json RM_SIM=$(abspath $(D))/rm_sim GDR_TEST_DOUBLES=1
SIMASAN   := env LD_LIBRARY_PATH=$(abspath $(D)):$(abspath $(B)/asan) VK_DRIVER_FILES=$(abspath $(D))/nvidia_icd.json RM_SIM=$(abspath $(D))/rm_sim ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0
CLANG     ?= clang

TOOLS     := $(addprefix $(BIN)/gdrcopy_,sanity copybw copylat apiperf pplat report)
DOUBLES   := $(D)/libcuda.so.1 $(D)/libvulkan.so.1 $(D)/nvidia_icd.json $(D)/rm_sim
GUESTS    := $(patsubst $(T)/guest_%.c,%,$(filter-out $(T)/guest_tsan.c,$(wildcard $(T)/guest_*.c)))
CHECKS    := $(addprefix $(BIN)/,copy_test abi_layout abi_cpp badinput doubles_selftest vulkan_selftest rm_selftest) \
	     $(addprefix $(BIN)/guest_,$(GUESTS))

.PHONY: doubles check check-go check-doubles check-abi check-c check-guest check-cross check-memory lint
doubles: $(DOUBLES)

$(D)/libcuda.so.1: $(wildcard tests/doubles/cuda_sim*.[ch]) $(wildcard tests/doubles/sim_*.[ch]) tests/doubles/rm_uapi.h
	@mkdir -p $(@D)
	$(CC) -shared -fPIC -std=gnu11 $(CFLAGS) $(WARN) -Wl,-soname,$(@F) -o $@ $(filter %.c,$^) -lpthread

$(D)/libvulkan.so.1: tests/doubles/vulkan_sim.c $(wildcard tests/doubles/sim_*.[ch])
	@mkdir -p $(@D)
	$(CC) -shared -fPIC -fvisibility=hidden -std=gnu11 $(CFLAGS) $(WARN) -Wl,-soname,$(@F) -o $@ $(filter %.c,$^) -lpthread

$(D)/rm_sim: $(wildcard tests/doubles/rm_sim*.[ch]) tests/doubles/rm_uapi.h $(wildcard tests/doubles/sim_fault.[ch])
	@mkdir -p $(@D)
	$(CC) -std=gnu11 $(CFLAGS) $(WARN) -o $@ $(filter %.c,$^) -lpthread

# The simulated loader has its driver built in; the library looks for a manifest.
$(D)/nvidia_icd.json:
	@mkdir -p $(@D)
	echo '{ "ICD": { "library_path": "libvulkan.so.1" } }' >$@

# Programs that use the library find it beside them, or where it is installed.
LINK      = -L$(B) -lgdrapi -ldl -lpthread -lm -Wl,-rpath,'$$ORIGIN/..:$(libdir)'
BENCH    := $(addprefix $(T)/bench_,opt.c time.c out.c gpu.c loops.c race.c team.c cuda.c vk.c) $(T)/cuda_dl.c

$(BIN)/gdrcopy_sanity: $(T)/gdrcopy_sanity.c $(wildcard $(T)/sanity_*.c) $(T)/cuda_dl.c
$(BIN)/gdrcopy_copybw $(BIN)/gdrcopy_copylat $(BIN)/gdrcopy_apiperf $(BIN)/gdrcopy_pplat: $(BIN)/%: $(T)/%.c $(BENCH)
$(BIN)/gdrcopy_copylat: $(T)/copylat_modes.c $(T)/copylat_callers.c
$(BIN)/gdrcopy_report: $(T)/gdrcopy_report.c $(addprefix $(T)/bench_,opt.c out.c json.c svg.c)
$(BIN)/badinput $(BIN)/abi_layout: $(BIN)/%: $(T)/%.c
$(addprefix $(BIN)/guest_,$(GUESTS)): $(BIN)/%: $(T)/%.c $(T)/guest_common.h
$(addprefix $(BIN)/guest_,hosts rest signals threads): $(T)/cuda_dl.c

$(TOOLS) $(BIN)/badinput $(BIN)/abi_layout $(addprefix $(BIN)/guest_,$(GUESTS)): $(LIB) $(wildcard $(T)/*.h)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(LINK)

# What control calls cost a host; docs/design.md has its figures.
$(BIN)/call_cost: $(T)/call_cost.c $(T)/cuda_dl.c $(LIB) $(wildcard $(T)/*.h)
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(LINK)

$(BIN)/guest_hosts: | $(BIN)/secure_host
$(BIN)/secure_host: $(T)/secure_host.c
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $< -ldl

$(BIN)/abi_cpp: $(T)/abi_cpp.cpp $(LIB)
	@mkdir -p $(@D)
	$(CXX) -std=c++98 -pedantic $(WARN) $(CFLAGS) -Iinclude -o $@ $< $(LINK)

$(BIN)/copy_test: $(T)/copy_test.c $(wildcard capi/copy*.[ch])
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -Icapi -o $@ $(filter %.c,$^)

$(BIN)/doubles_selftest: $(wildcard tests/doubles/selftest*.[ch]) $(D)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(D)/libcuda.so.1 -lpthread

$(BIN)/rm_selftest: $(wildcard tests/doubles/rm_selftest*.[ch]) $(wildcard tests/doubles/selftest*.h) tests/doubles/selftest_util.c $(D)/libcuda.so.1 $(D)/rm_sim
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $(filter %.c,$^) $(D)/libcuda.so.1

$(BIN)/vulkan_selftest: tests/doubles/vulkan_selftest.c $(D)/libvulkan.so.1
	@mkdir -p $(@D)
	$(CC) $(C11) $(CFLAGS) -o $@ $< $(D)/libvulkan.so.1 -lpthread -ldl

check:
	@$(RUN) --clear
	@$(MAKE) --no-print-directory check-go check-doubles check-abi check-c check-guest
	@$(RUN) --total

check-go: $(DOUBLES)
	@$(RUN) --go go-test $(SIM) $(GO) test -v -count=1 ./core/...

check-doubles: $(CHECKS)
	@$(RUN) doubles-libcuda $(SIM) $(BIN)/doubles_selftest
	@$(RUN) doubles-libvulkan $(SIM) $(BIN)/vulkan_selftest

check-abi: $(CHECKS) $(DOUBLES) all
	@$(RUN) abi-layout $(SIM) $(BIN)/abi_layout
	@$(RUN) abi-cpp $(SIM) $(BIN)/abi_cpp
	@$(RUN) abi-symbols $(T)/abi_symbols.sh $(LIB)
	@rm -rf $(B)/root
	@$(MAKE) --no-print-directory -s install DESTDIR=$(abspath $(B)/root) prefix=/usr libdir=/usr/lib
	@$(RUN) abi-pkg-config $(T)/abi_pc.sh $(abspath $(B)/root) /usr/lib
	@$(RUN) readme-example $(SIM) tests/fresh/readme.sh $(abspath $(B)/root) /usr/lib
	@rm -rf $(B)/root $(B)/gdrapi.pc

check-c: $(CHECKS) $(DOUBLES) tools
	@$(RUN) copy-routines $(BIN)/copy_test
	@for b in $(BACKENDS); do \
		$(RUN) badinput-$$b $(SIM) $(ON) $$b $(BIN)/badinput; \
		$(RUN) sanity-$$b $(SIM) $(ON) $$b $(BIN)/gdrcopy_sanity; \
	done

check-guest: $(CHECKS) $(DOUBLES)
	@for b in $(BACKENDS); do for t in $(GUESTS); do \
		$(RUN) guest-$$t-$$b $(SIM) $(ON) $$b $(BIN)/guest_$$t; \
	done; done

# The copy routines of other machines, under emulation.
check-cross:
	@mkdir -p $(BIN)
	aarch64-linux-gnu-gcc $(C11) $(CFLAGS) -Icapi -static -o $(BIN)/copy_test.arm64 $(T)/copy_test.c capi/copy*.c
	powerpc64le-linux-gnu-gcc $(C11) $(CFLAGS) -Icapi -static -o $(BIN)/copy_test.ppc64le $(T)/copy_test.c capi/copy*.c
	@$(RUN) copy-routines-arm64 qemu-aarch64 $(BIN)/copy_test.arm64
	@$(RUN) copy-routines-ppc64le qemu-ppc64le $(BIN)/copy_test.ppc64le

# The C side under the sanitizers and valgrind, the Go side under the race detector.
# Valgrind must see that the simulated libcuda replaces mmap on rm.
SANITIZE  := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
check-memory: $(CHECKS) $(DOUBLES)
	@mkdir -p $(B)/asan
	CGO_CFLAGS='-O1 -g $(SANITIZE)' CGO_LDFLAGS='-fsanitize=address,undefined' \
	$(MAKE) --no-print-directory lib LIB=$(B)/asan/libgdrapi.so.$(VERSION)
	$(CC) $(C11) -O1 -g $(SANITIZE) -o $(B)/asan/badinput $(T)/badinput.c -L$(B)/asan -lgdrapi -ldl -lpthread
	$(CC) $(C11) -O1 -g $(SANITIZE) -Icapi -o $(B)/asan/copy_test $(T)/copy_test.c capi/copy*.c
	@$(RUN) copy-routines-asan $(B)/asan/copy_test
	@for b in $(BACKENDS); do \
		$(RUN) badinput-$$b-asan $(SIMASAN) $(ON) $$b $(B)/asan/badinput; \
		$(RUN) badinput-$$b-valgrind $(SIM) $(ON) $$b valgrind -q --smc-check=all --error-exitcode=9 \
			--suppressions=$(T)/badinput.supp $(BIN)/badinput; \
	done
	@$(RUN) --go go-test-race $(SIM) $(GO) test -race -v -count=1 ./core/...

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
lint: $(DOUBLES)
	@test -z "$$(gofmt -l capi core)" || { gofmt -d capi core; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	shellcheck -x setup.sh capi/*.sh kmod/*.sh packaging/*.sh tests/*.sh tests/*/*.sh .ci/run
	@mkdir -p $(B)/_cgo
	cd capi && $(GO) tool cgo -objdir ../$(B)/_cgo -- main.go
	for cc in $(CC) $(CLANG); do for f in capi/*.c; do \
		$$cc -std=gnu11 -O2 $(WARN) -Icapi -I$(B)/_cgo -fsyntax-only $$f || exit 1; done; \
		for f in $(T)/*.c tests/doubles/*.c tests/fuzz/*.c tests/callgrind/*.c tests/consumers/*.c examples/*.c; do \
		$$cc $(C11) -O2 -Icapi -I$(T) -fsyntax-only $$f || exit 1; done; done
	aarch64-linux-gnu-gcc -std=gnu11 -O2 $(WARN) -Icapi -I$(B)/_cgo -fsyntax-only capi/*.c
	GOARCH=arm64 $(GO) vet ./core/...
	GOARCH=ppc64le $(GO) vet ./core/...

include examples/examples.mk $(wildcard tests/*/*.mk)
