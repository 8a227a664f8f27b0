# SPDX-License-Identifier: MIT
#
# make check          [check 6 min] every test that needs no GPU; CHECK='abi guest' picks some of them
# make check-all      [more 50 min] after make check: make lint and most of these; CI runs both
# make check-go       [check 1 min] the tests of the Go packages
# make suite          [check 10 s] build/suite: its -l lists the tests, and what each holds the library to
# make check-suite    [check 10 s] the runner of the tests itself: a test that fails makes make fail
# make check-memory   [more 10 min] the sanitizers, valgrind and the race detector
# make lint           [more 2 min] the static checks

T         := tests/c
D         := $(B)/doubles
SIM       := env LD_LIBRARY_PATH=$(abspath $(D)):$(abspath $(B)) RM_SIM=$(abspath $(D))/rm_sim GDR_TEST_DOUBLES=1
CLANG     ?= clang

DOUBLES   := $(D)/libcuda.so.1 $(D)/libcuda.so $(D)/libnvidia-ml.so.1 $(D)/rm_sim
# What is made of the public headers, the manual pages, and the simulated driver, for tests to include.
PUBLIC_H  := include/gdrapi.h include/gdrapi_ext.h
MADE_H    := $(B)/tests/functions.h $(B)/tests/pages.h $(B)/tests/rm_uapi.h
TEST_I    := -Icapi -Iexamples -I$(B)/tests -I$(T) -Itests/doubles
CXX98     := -std=c++98 -pedantic $(WARN) -Iinclude -Itools

# What runs the cases of a program, and what they are made of. A program that has only LOADERS is not linked to the library.
LOADERS   := $(addprefix $(O)/$(T)/guest/,main.o common.o)
CASES     := $(LOADERS) $(O)/$(T)/guest/buffer.o

# What tests are built of may lie in a shared library.
$(O)/tests/%.o: private FLAGS = -fPIC $(TEST_I)
$(O)/tests/%.o: tests/%.c Makefile $(SYMS) | $(MADE_H)
	$(object)
$(O)/tests/%.o: tests/%.cpp Makefile $(SYMS) | $(MADE_H)
	$(object)

# The program that builds what tests need, runs them, and ends with the counts.
SUITE     := $(B)/suite
# $(call RUN_SUITE,ARGUMENTS)
RUN_SUITE  = $(BUILD_SUITE) && B='$(B)' CC='$(CC)' CXX='$(CXX)' GO='$(GO)' MAKE='$(MAKE)' $(SUITE) -test.parallel $$(($$(nproc) + 1)) $(1)
KNOWN_GO    = GO='$(GO)' capi/guest/build/goroot.sh
BUILD_SUITE = $(KNOWN_GO) && mkdir -p $(B) && env -u GOOS -u GOARCH -u CGO_ENABLED $(GO) test -c -o $(SUITE) ./tests
empty     :=
space     := $(empty) $(empty)
# $(call GROUP,NAME...) is the pattern of these groups.
GROUP      = '^($(subst $(space),|,$(strip $(subst -,_,$(1)))))$$'

.PHONY: check check-all lint suite root known-go
known-go:
	@$(KNOWN_GO)

CHECK     ?=
check:
	@$(call RUN_SUITE,$(if $(strip $(CHECK)),-test.run $(call GROUP,$(CHECK))))

check-all:
	@$(call RUN_SUITE,-all)

# A group of tests/table_test.go.
check-%:
	@$(call RUN_SUITE,-test.run $(call GROUP,$*))

suite:
	@$(BUILD_SUITE)

# The library as it is installed, for the tests that want it so.
root: all
	@rm -rf $(B)/root
	@$(MAKE) --no-print-directory -s exes install DESTDIR=$(abspath $(B)/root) prefix=/usr libdir=/usr/lib

# The tests of core, and of rm, as programs without cgo.
$(BIN)/core_test $(BIN)/core_rm_test: $(shell find core -name '*.go' -o -name '*.s') go.mod go.sum
	CGO_ENABLED=0 $(GO) test -c -o $@ ./$(if $(findstring rm,$(@F)),core/internal/rm,core)

$(B)/tests/functions.h: tests/headers.sh $(PUBLIC_H)
	@mkdir -p $(@D)
	tests/headers.sh -c $(PUBLIC_H) >$@.new && mv $@.new $@

# The prototypes of the pages, which each function has.
$(B)/tests/pages.h: tests/headers.sh $(PUBLIC_H) $(wildcard docs/man/man3/gdr*.3)
	@mkdir -p $(@D)
	for f in $$(tests/headers.sh $(PUBLIC_H) | cut -f 1); do \
		tests/headers.sh -p docs/man/man3/$$f.3 | grep "[ *]$$f(" || { echo "docs/man/man3/$$f.3 does not declare it" >&2; exit 1; }; \
	done >$@.new && mv $@.new $@

# Without these programs, which commas part, a target cannot be made.
comma     := ,
need-%:
	@missing=; packages=; for p in $(subst $(comma), ,$*); do command -v $$p >/dev/null || { missing="$$missing $$p"; \
		known=$$(sed -n "s/^$$p //p" tests/suite/needs.txt); packages="$$packages $${known:-THE-PACKAGE-OF-$$p}"; }; done; \
		[ -z "$$missing" ] || { echo "missing:$$missing. Debian: apt-get install$$packages"; exit 1; }

# The C side under the sanitizers. One make makes what is wanted of a folder.
SANITIZE  := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
ASAN      := $(addprefix $(B)/asan/bin/,badinput copy_test hear_test)
TSAN      := $(addprefix $(B)/tsan/bin/,data_test cache_test hear_test)
.PHONY: asan tsan
asan:
	CGO_CFLAGS='-O1 -g $(SANITIZE)' CGO_LDFLAGS='-fsanitize=address,undefined' $(call variant,asan) CFLAGS='-O1 -g $(SANITIZE)' $(ASAN)
tsan: need-$(CLANG)
	$(call variant,tsan) CC='$(CLANG)' CFLAGS='-O1 -g -fsanitize=thread' $(TSAN)
$(ASAN): asan ;
$(TSAN): tsan ;

# What newer systems do by default, as far as this one can. Some warnings come after inlining alone.
FORTIFIED := -O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3
LINT_CC   := $(CC) $(CLANG) $(notdir $(wildcard /usr/bin/gcc-14))

# Not ./...: build/ has systems of check-fresh, with Go's own sources in them.
GO_DIRS   := capi core cmd examples tests
GO_ALL    := $(GO_DIRS:%=./%/...)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# go run takes the toolchain that staticcheck names, and what it reads is of go.mod's: one must be the other.
LINT_GO    = $(lastword $(GO))
lint: export GOTOOLCHAIN = $(shell sed -n 's/^toolchain //p' go.mod)
lint: known-go need-shellcheck,$(CLANG),aarch64-linux-gnu-gcc $(DOUBLES) $(MADE_H)
	@fmt=$$($(LINT_GO) env GOROOT)/bin/gofmt; bad=$$($$fmt -l $(GO_DIRS)); [ -z "$$bad" ] || { $$fmt -d $(GO_DIRS); exit 1; }
	$(LINT_GO) vet $(GO_ALL)
	$(LINT_GO) run $(STATICCHECK) $(GO_ALL)
	shellcheck -x setup.sh capi/guest/build/*.sh kmod/*.sh packaging/*.sh tests/*.sh tests/*/*.sh $(T)/*/*.sh .ci/run
	cd capi && $(LINT_GO) tool cgo -objdir ../$(B)/_cgo -- main.go
	for cc in $(LINT_CC); do for f in capi/*.c capi/*/*.c; do \
		$$cc -std=gnu11 $(FORTIFIED) $(WARN) -Icapi -I$(B)/_cgo -S -o /dev/null $$f || exit 1; done; \
		for f in tools/*.c tools/*/*.c $(T)/*/*.c $(addprefix tests/,$(addsuffix /*.c,bench callgrind capi consumers doubles examples fuzz rm vkgdr)) \
			examples/*.c examples/*/*.c vkgdr/*.c; do \
		$$cc $(C11) $(FORTIFIED) $(TEST_I) -S -o /dev/null $$f || exit 1; done; done
	aarch64-linux-gnu-gcc -std=gnu11 -O2 $(WARN) -Icapi -I$(B)/_cgo -fsyntax-only capi/*.c capi/*/*.c
	GOARCH=arm64 $(LINT_GO) vet ./core/... ./capi/cache ./capi/handle ./cmd/... ./examples/...
	GOARCH=ppc64le $(LINT_GO) vet ./core/... ./capi/cache ./capi/handle ./cmd/... ./examples/...

include $(wildcard $(T)/*/*.mk) $(wildcard tests/*/*.mk) examples/examples.mk
