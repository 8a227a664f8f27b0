# SPDX-License-Identifier: MIT
#
# make                [build 1 min] the libraries and their tools, under build/
# make lib            [build 1 min] libgdrapi alone
# make vkgdr          [build 1 min] libvkgdr, vkgdr's interface on it
# make install        [build 1 s] copies what make built, or builds it; DESTDIR=, prefix=, libdir=, bindir= as usual; make uninstall
# make lib_install    [build 1 s] libgdrapi alone; exes_install: the tools alone
# make driver         [build 1 min] the kernel module; make drv_install puts it into the running kernel's folder
# make version        [build 1 s] the version of the interface; make config: the architecture
# make clean          [build 1 s] removes build/
# make help           [build 1 s] this list

VERSION  := 2.6
SONAME   := libgdrapi.so.2
# PREFIX is its name in older releases of NVIDIA's GDRCopy.
prefix   ?= $(or $(PREFIX),/usr/local)
exec_prefix ?= $(prefix)
libdir   ?= $(exec_prefix)/lib
bindir   ?= $(exec_prefix)/bin
includedir ?= $(prefix)/include
# Recipes for NVIDIA's GDRCopy may set the last three. Then what only this project installs goes to prefix no more.
NAMED     = $(filter-out file,$(origin DESTLIB) $(origin DESTBIN) $(origin DESTINC))
mandir   ?= $(if $(NAMED),,$(prefix)/share/man)
datadir  ?= $(if $(NAMED),,$(prefix)/share)
unitdir  ?= $(if $(NAMED),,$(prefix)/lib/systemd/system)
DESTLIB   = $(DESTDIR)$(libdir)
DESTBIN   = $(DESTDIR)$(bindir)
DESTINC   = $(DESTDIR)$(includedir)
GDRAPI_ARCH ?= $(shell CC='$(CC)' ./config_arch)
$(if $(LIB_MAJOR_VER)$(LIB_MINOR_VER),$(warning LIB_MAJOR_VER and LIB_MINOR_VER say nothing here: the ABI is $(VERSION)))
CC       ?= cc
CXX      ?= c++
OBJCOPY  ?= objcopy
INSTALL  ?= install
LDCONFIG ?= ldconfig
# As setup.sh has it: without a home Go's caches lie in the build.
ifeq ($(shell [ -w "$$HOME" ] && echo yes),)
export GOPATH ?= $(CURDIR)/build/_go
export GOCACHE ?= $(GOPATH)/cache
endif
# The go in PATH, or a newer one that Debian keeps out of it. It is looked for where it is first used.
ifndef GO
GO        = $(eval GO := $(shell sh setup.sh --go))$(GO)
endif

# GNU make's lists are words.
$(foreach v,CURDIR DESTDIR DESTLIB DESTBIN DESTINC prefix exec_prefix libdir bindir includedir mandir,\
	$(if $(word 2,[$($v)]),$(error $v is "$($v)": make cannot build or install where a path has a space)))

B        := build
BIN      := $(B)/bin
LIB      := $(B)/libgdrapi.so.$(VERSION)
VKGDR    := $(B)/libvkgdr.so
WARN     := -Wall -Wextra -Werror
CFLAGS   ?= -O2 -g
C11      := -std=gnu11 $(WARN) -Iinclude -Itools
O        := $(B)/obj
SYMS     := capi/guest/build/glibc.syms
# $(call of,FILES) are the objects of C files, which may be patterns.
of        = $(patsubst %.c,$(O)/%.o,$(wildcard $(1)))
# $(call variant,FOLDER) makes targets again in build/FOLDER, with other variables.
variant   = $(MAKE) --no-print-directory B=$(B)/$(1)

.DEFAULT_GOAL := all
# In a recipe, too, the first command that fails is the last.
.SHELLFLAGS := -ec
.DELETE_ON_ERROR:

# A page that describes several functions has a link for each other one.
MANPAGES := $(patsubst docs/man/%,%,$(shell find docs/man -type f -name '*.[1-9]'))
MANLINKS := $(patsubst docs/man/%,%,$(shell find docs/man -type l -name '*.[1-9]'))

include tools/tools.mk tests/tests.mk packaging/packaging.mk

# One recipe for an object, one for a program, one for a shared library: a target's line names its
# objects and libraries. The compiler says which headers an object needs. FLAGS and HOW are options of
# a target alone. Programs find the library above their own folder. Newer C libraries have other symbols
# for functions that older ones have, too: see glibc.syms.
define object
@mkdir -p $(@D)
$(if $(filter %.cpp,$<),$(CXX) $(CXX98),$(CC) $(C11)) $(FLAGS) $(CFLAGS) -ffile-prefix-map=$(CURDIR)=. -MMD -MP -c -o $@ $<
$(OBJCOPY) --redefine-syms=$(SYMS) $@
endef
define link
@mkdir -p $(@D)
$(CC) $(CFLAGS) $(LDFLAGS) $(HOW) -o $@ $(filter %.o,$^) $(filter %.so %.so.1 $(LIB),$^) -ldl -lpthread -lm $(RPATH)
endef
RPATH     = -Wl,-rpath,'$$ORIGIN/..'

$(O)/%.o: %.c Makefile $(SYMS)
	$(object)
$(BIN)/%:
	$(link)
$(EX)/%:
	$(link)
$(B)/%.so $(B)/%.so.1: private HOW = -shared -Wl,-soname,$(@F)
$(B)/%.so $(B)/%.so.1: private RPATH =
$(BIN)/%.so:
	$(link)
$(B)/%.so:
	$(link)
$(B)/%.so.1:
	$(link)
-include $(shell find $(O) -name '*.d' 2>/dev/null)

.PHONY: all lib exes vkgdr driver version config help clean uninstall
.PHONY: install lib_install vkgdr_install exes_install man_install drv_install
all: lib exes
# Recipes take the library out of src/, where NVIDIA's Makefile has it. A tree that may not be written to needs no such links.
IN_SRC    = $(shell [ '$(B)' != build ] || [ ! -w src ] || echo src/$(notdir $(LIB)))
lib: $(LIB) $(IN_SRC)
src/$(notdir $(LIB)):
	ln -sf $(addprefix ../$(B)/,libgdrapi.so $(SONAME) $(@F)) src
# Recipes build lib and exes, then install: that has to be all.
exes: tools vkgdr
vkgdr: $(VKGDR)

# What gdr_ext_version says, but for the version of the Go that builds; it changes when the
# text does. Two makes may write it at once.
VERSION_C = $(dir $(LIB))version.c
.PHONY: version-text
$(VERSION_C): version-text
	@mkdir -p $(@D)
	@echo 'const char gdr_version_text[] = "libgdrapi $(RELEASE) (commit $(COMMIT), " GDR_GO ", backends gdrdrv dmabuf rm)";' >$@.$$$$; \
		cmp -s $@.$$$$ $@ && rm $@.$$$$ || mv $@.$$$$ $@

# The linker wrapper and the version script are no inputs that go knows of, nor are
# headers of another folder: their sum stands in for them. Go's build ID would tell the folder
# of the build; the linker's tells the content alone. With -buildmode=c-shared go compiles the C files of all
# packages each time, for a header that they do not have; pie is the same code, and the linker makes the library.
HEADERS = $(shell cat include/*.h capi/*.h capi/guest/*.h capi/copy/*.h | cksum | tr ' ' _)
$(LIB): $(wildcard capi/*.[ch] capi/*/*.[ch] capi/*.go capi/*/*.go capi/*.map capi/guest/build/*.sh capi/guest/build/*.syms capi/guest/build/*.in capi/guest/build/go_versions include/*.h) $(shell find core -name '*.go' -o -name '*.s') go.mod go.sum $(VERSION_C)
	rm -f $@
	GO='$(GO)' capi/guest/build/goroot.sh $(@D)/_goroot
	$(CC) -fPIC -fvisibility=hidden -DGDR_GO="\"$$(head -n 1 $(@D)/_goroot/root/VERSION)\"" -c -o $(@D)/version.o $(VERSION_C)
	CC='$(CC)' GDR_CC='$(CC)' GDR_OBJCOPY='$(OBJCOPY)' CGO_CPPFLAGS='-DGDR_HEADERS=$(HEADERS)' \
	GDR_MAP='$(abspath capi/libgdrapi.map)' GDR_VERSION='$(abspath $(@D)/version.o)' \
	CGO_ENABLED=1 GOTOOLCHAIN=local GOROOT='$(abspath $(@D)/_goroot/root)' $(@D)/_goroot/root/bin/go build -buildmode=pie -trimpath -buildvcs=false \
		-overlay $(abspath $(@D)/_goroot/overlay.json) \
		-ldflags '-buildmode=c-shared -buildid= -extld=$(abspath capi/guest/build/extld.sh) -extldflags "-Wl,-soname,$(SONAME) -Wl,--build-id"' \
		-o $@ ./capi
	capi/guest/build/check.sh $@
	ln -sf $(notdir $@) $(@D)/$(SONAME)
	ln -sf $(SONAME) $(@D)/libgdrapi.so

# vkgdr's interface; it finds libgdrapi.so.2 beside itself.
$(VKGDR): $(call of,vkgdr/vkgdr.c) $(LIB)
$(VKGDR): private RPATH = -Wl,-z,defs -Wl,-rpath,'$$ORIGIN'
$(O)/vkgdr/%.o: private FLAGS = -fPIC -fvisibility=hidden

driver:
	$(MAKE) -C kmod $(MAKE_PARAMS)

version:
	@echo $(VERSION)

config:
	@echo GDRAPI_ARCH=$(GDRAPI_ARCH)

# What pkg-config and CMake find. Their paths are relative to themselves: the tree may be moved.
cmakedir   = $(DESTLIB)/cmake/gdrapi
# $(call find_file,FILE,OUT): whatever the umask is, all may read it.
find_file  = sed -e 's|@soname@|$(SONAME)|' -e 's|@version@|$(VERSION)|' -e "s|@to_includedir@|$$(realpath -ms --relative-to=$(2) $(DESTINC))|" \
	pkg-config/$(1).in >$(2)/$(1) && chmod 644 $(2)/$(1)

# What is built is copied: that builds nothing, fetches nothing and writes nothing in this tree. What is
# not is built first. In one command with what builds (make all install) it comes after that.
install: lib_install vkgdr_install exes_install man_install
lib_install vkgdr_install exes_install drv_install: | $(filter all lib vkgdr exes tools driver,$(MAKECMDGOALS))
unbuilt = $(filter-out $(wildcard $(1)),$(1))
# Only for a folder of the loader's.
ldconfig = @[ -n '$(DESTDIR)' ] || [ "$$(id -u)" -ne 0 ] || { PATH="$$PATH:/sbin:/usr/sbin"; \
	! $(LDCONFIG) -NXv 2>&1 | grep -qw '$(DESTLIB)' || $(LDCONFIG); }

supp = $(if $(datadir),$(DESTDIR)$(datadir)/gdrapi)
lib_install: | $(call unbuilt,$(LIB)) $(IN_SRC)
	@now='$(COMMIT)'; [ ! -e $(VERSION_C) ] || [ "$$now" = unknown ] || grep -qF "(commit $$now," $(VERSION_C) || \
		echo "$(LIB) is of commit $$(sed 's/.*(commit \([^,]*\),.*/\1/' $(VERSION_C)), and the tree is of $$now: make builds it anew" >&2
	$(INSTALL) -d $(DESTLIB)/pkgconfig $(cmakedir) $(DESTINC) $(supp)
	$(INSTALL) -m 755 $(LIB) $(DESTLIB)/
	ln -sf libgdrapi.so.$(VERSION) $(DESTLIB)/$(SONAME)
	ln -sf $(SONAME) $(DESTLIB)/libgdrapi.so
	$(INSTALL) -m 644 include/gdrapi.h include/gdrapi_ext.h include/gdrconfig.h $(DESTINC)/
	$(if $(supp),$(INSTALL) -m 644 packaging/gdrapi.supp $(supp)/)
	$(call find_file,gdrapi.pc,$(DESTLIB)/pkgconfig)
	$(call find_file,gdrapi-config.cmake,$(cmakedir))
	$(call find_file,gdrapi-config-version.cmake,$(cmakedir))
	$(ldconfig)

vkgdr_install: | $(call unbuilt,$(VKGDR)) lib_install
	$(INSTALL) -m 755 $(VKGDR) $(DESTLIB)/
	$(INSTALL) -m 644 include/vkgdr.h $(DESTINC)/
	$(call find_file,vkgdr.pc,$(DESTLIB)/pkgconfig)
	$(ldconfig)

# Programs that know the way from bindir to ../lib serve too where the loader knows libdir itself.
READY      = $(if $(RUNPATH),$(INSTALLED),$(or $(wildcard $(INSTALLED)),$(wildcard $(C_TOOLS:$(BIN)/%=$(B)/install/.._lib/%)),$(INSTALLED)))
exes_install: | $(call unbuilt,$(READY) $(GO_TOOLS))
	$(INSTALL) -d $(DESTBIN)
	$(INSTALL) -m 755 $(READY) $(GO_TOOLS) $(DESTBIN)/
	for t in $(OLD_NAMES); do ln -sf gdrcopy_$$t $(DESTBIN)/$$t || exit 1; done
	$(if $(unitdir),$(INSTALL) -d $(DESTDIR)$(unitdir) && $(INSTALL) -m 644 $(UNITS) $(DESTDIR)$(unitdir)/)

man_install: MAN = $(if $(mandir),$(MANPAGES))
man_install:
	$(if $(MAN),$(INSTALL) -d $(addprefix $(DESTDIR)$(mandir)/,$(sort $(dir $(MAN)))))
	for p in $(MAN); do \
		$(INSTALL) -m 644 docs/man/$$p $(DESTDIR)$(mandir)/$$p || exit 1; done
	for p in $(if $(MAN),$(MANLINKS)); do \
		ln -sf "$$(readlink docs/man/$$p)" $(DESTDIR)$(mandir)/$$p || exit 1; done

drv_install: | $(if $(call unbuilt,$(B)/kmod/gdrdrv.ko),driver)
	$(MAKE) -C kmod modules_install $(MAKE_PARAMS) $(if $(DESTDIR),INSTALL_MOD_PATH=$(abspath $(DESTDIR))) $(if $(MODULE_SUBDIR),INSTALL_MOD_DIR=$(MODULE_SUBDIR))

uninstall:
	rm -f $(addprefix $(DESTLIB)/,libgdrapi.so.$(VERSION) $(SONAME) libgdrapi.so libvkgdr.so pkgconfig/gdrapi.pc pkgconfig/vkgdr.pc)
	rm -rf $(cmakedir)
	$(if $(supp),rm -f $(supp)/gdrapi.supp; [ ! -d $(supp) ] || rmdir --ignore-fail-on-non-empty $(supp))
	rm -f $(addprefix $(DESTINC)/,gdrapi.h gdrapi_ext.h gdrconfig.h vkgdr.h)
	rm -f $(addprefix $(DESTBIN)/,$(notdir $(TOOLS)) $(OLD_NAMES))
	$(if $(unitdir),rm -f $(addprefix $(DESTDIR)$(unitdir)/,$(notdir $(UNITS))))
	$(if $(mandir),rm -f $(addprefix $(DESTDIR)$(mandir)/,$(MANPAGES) $(MANLINKS)))
	$(ldconfig)

# What Go has fetched is read-only.
clean:
	[ ! -d $(B)/_go ] || chmod -R u+w $(B)/_go
	rm -rf $(B) src/libgdrapi.so*

help:
	@awk -f tests/help.awk Makefile $(filter %.mk,$(MAKEFILE_LIST))
