# SPDX-License-Identifier: MIT
#
# make                [build 1 min] the libraries and their tools, under build/
# make lib            [build 1 min] libgdrapi alone
# make vkgdr          [build 1 min] libvkgdr, vkgdr's interface on it
# make install        [build 5 s] DESTDIR=, prefix=, libdir=, bindir= as usual; make uninstall
# make clean          [build 1 s] removes build/
# make help           [build 1 s] this list

VERSION  := 2.6
SONAME   := libgdrapi.so.2
prefix   ?= /usr/local
libdir   ?= $(prefix)/lib
bindir   ?= $(prefix)/bin
includedir ?= $(prefix)/include
mandir   ?= $(prefix)/share/man
CC       ?= cc
CXX      ?= c++
OBJCOPY  ?= objcopy
INSTALL  ?= install
LDCONFIG ?= ldconfig
# The go in PATH, or a newer one that Debian keeps out of it.
ifndef GO
GO       := $(shell sh setup.sh --go)
endif

B        := build
BIN      := $(B)/bin
LIB      := $(B)/libgdrapi.so.$(VERSION)
VKGDR    := $(B)/libvkgdr.so
WARN     := -Wall -Wextra -Werror
CFLAGS   ?= -O2 -g
C11      := -std=gnu11 $(WARN) -Iinclude -Itools

.DEFAULT_GOAL := all
# In a recipe, too, the first command that fails is the last.
.SHELLFLAGS := -ec
.DELETE_ON_ERROR:

# A page that describes several functions has a link for each other one.
MANPAGES := $(patsubst docs/man/%,%,$(shell find docs/man -type f -name '*.[1-9]'))
MANLINKS := $(patsubst docs/man/%,%,$(shell find docs/man -type l -name '*.[1-9]'))

include tools/tools.mk tests/tests.mk packaging/packaging.mk

.PHONY: all lib vkgdr help install uninstall clean
all: lib vkgdr tools
lib: $(LIB)
vkgdr: $(VKGDR)

# What gdr_ext_version says, but for the version of the Go that builds; it changes when the
# text does.
VERSION_C = $(dir $(LIB))version.c
.PHONY: version-text
$(VERSION_C): version-text
	@mkdir -p $(@D)
	@echo 'const char gdr_version_text[] = "libgdrapi $(RELEASE) (commit $(COMMIT), " GDR_GO ", backends gdrdrv dmabuf rm vulkan)";' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# The linker wrapper and the version script are no inputs that go knows of, nor are
# headers of another folder: their sum stands in for them. Go's build ID would tell the folder
# of the build; the linker's tells the content alone.
HEADERS = $(shell cat include/*.h capi/*.h capi/copy/*.h | cksum | tr ' ' _)
$(LIB): $(wildcard capi/*.[ch] capi/copy/*.[ch] capi/*.go capi/copy/*.go capi/*.map capi/*.sh capi/*.in capi/go_versions include/*.h) $(shell find core -name '*.go') go.mod go.sum $(VERSION_C)
	@mkdir -p $(@D)
	rm -f $@
	GO='$(GO)' capi/goroot.sh $(@D)/_goroot
	$(CC) -fPIC -fvisibility=hidden -DGDR_GO="\"$$(head -n 1 $(@D)/_goroot/root/VERSION)\"" -c -o $(@D)/version.o $(VERSION_C)
	CC='$(CC)' GDR_CC='$(CC)' GDR_OBJCOPY='$(OBJCOPY)' CGO_CPPFLAGS='-DGDR_HEADERS=$(HEADERS)' \
	GDR_MAP='$(abspath capi/libgdrapi.map)' GDR_VERSION='$(abspath $(@D)/version.o)' \
	CGO_ENABLED=1 GOTOOLCHAIN=local GOROOT='$(abspath $(@D)/_goroot/root)' $(@D)/_goroot/root/bin/go build -buildmode=c-shared -trimpath -buildvcs=false \
		-overlay $(abspath $(@D)/_goroot/overlay.json) \
		-ldflags '-buildid= -extld=$(abspath capi/extld.sh) -extldflags "-Wl,-soname,$(SONAME) -Wl,--build-id"' \
		-o $@ ./capi
	capi/check.sh $@
	rm -f $(basename $@).h
	ln -sf $(notdir $@) $(@D)/$(SONAME)
	ln -sf $(SONAME) $(@D)/libgdrapi.so

# vkgdr's interface; it finds libgdrapi.so.2 beside itself.
$(VKGDR): vkgdr/vkgdr.c include/vkgdr.h $(LIB)
	$(CC) -shared -fPIC -fvisibility=hidden $(C11) $(CFLAGS) $(LDFLAGS) -ffile-prefix-map=$(CURDIR)=. -Wl,-soname,$(@F) -Wl,-z,defs -o $@ $< \
		-L$(B) -lgdrapi -ldl -Wl,-rpath,'$$ORIGIN'

# What pkg-config and CMake find. Made anew each time: it depends on the variables above.
FINDFILES := gdrapi.pc vkgdr.pc gdrapi-config.cmake gdrapi-config-version.cmake
cmakedir   = $(libdir)/cmake/gdrapi
.PHONY: $(addprefix $(B)/,$(FINDFILES))
$(addprefix $(B)/,$(FINDFILES)): $(B)/%: pkg-config/%.in
	@mkdir -p $(B)
	sed -e 's|@prefix@|$(prefix)|' -e 's|@libdir@|$(libdir)|' -e 's|@soname@|$(SONAME)|' \
	    -e 's|@includedir@|$(includedir)|' -e 's|@version@|$(VERSION)|' \
	    -e "s|@to_includedir@|$$(realpath -ms --relative-to=$(cmakedir) $(includedir))|" $< >$@

install: all tools-install $(addprefix $(B)/,$(FINDFILES))
	$(INSTALL) -d $(DESTDIR)$(libdir)/pkgconfig $(DESTDIR)$(cmakedir) $(DESTDIR)$(includedir) $(DESTDIR)$(bindir)
	$(INSTALL) -m 755 $(LIB) $(VKGDR) $(DESTDIR)$(libdir)/
	ln -sf libgdrapi.so.$(VERSION) $(DESTDIR)$(libdir)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(libdir)/libgdrapi.so
	$(INSTALL) -m 644 include/gdrapi.h include/gdrapi_ext.h include/gdrconfig.h include/vkgdr.h $(DESTDIR)$(includedir)/
	$(INSTALL) -m 644 $(addprefix $(B)/,$(filter %.pc,$(FINDFILES))) $(DESTDIR)$(libdir)/pkgconfig/
	$(INSTALL) -m 644 $(addprefix $(B)/,$(filter %.cmake,$(FINDFILES))) $(DESTDIR)$(cmakedir)/
	$(INSTALL) -m 755 $(INSTALLED) $(GO_TOOLS) $(DESTDIR)$(bindir)/
	$(INSTALL) -d $(addprefix $(DESTDIR)$(mandir)/,$(sort $(dir $(MANPAGES))))
	for p in $(MANPAGES); do \
		$(INSTALL) -m 644 docs/man/$$p $(DESTDIR)$(mandir)/$$p || exit 1; done
	for p in $(MANLINKS); do \
		ln -sf "$$(readlink docs/man/$$p)" $(DESTDIR)$(mandir)/$$p || exit 1; done
	@[ -n '$(DESTDIR)' ] || [ "$$(id -u)" -ne 0 ] || PATH="$$PATH:/sbin:/usr/sbin" $(LDCONFIG)

uninstall:
	rm -f $(addprefix $(DESTDIR)$(libdir)/,libgdrapi.so.$(VERSION) $(SONAME) libgdrapi.so libvkgdr.so pkgconfig/gdrapi.pc pkgconfig/vkgdr.pc)
	rm -rf $(DESTDIR)$(cmakedir)
	rm -f $(addprefix $(DESTDIR)$(includedir)/,gdrapi.h gdrapi_ext.h gdrconfig.h vkgdr.h)
	rm -f $(addprefix $(DESTDIR)$(bindir)/,$(notdir $(TOOLS)))
	rm -f $(addprefix $(DESTDIR)$(mandir)/,$(MANPAGES) $(MANLINKS))

clean:
	rm -rf $(B)

help:
	@awk -f tests/help.awk Makefile $(filter %.mk,$(MAKEFILE_LIST))
