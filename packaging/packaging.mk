# SPDX-License-Identifier: MIT
#
# make dist           [build 5 s] the source tarball, under build/packages; see packaging/README.md
# make deb            [build 2 min] ... and Debian's packages of it
# make rpm            [build 2 min] ... and RPMs of it
# make tarball        [build 2 min] ... and a tree that runs from any folder
# make sbom           [build 5 s] the Go modules in the built programs, as CycloneDX JSON
# make html           [build 1 s] the manual pages for a browser, build/html/index.html
# make channels       [build 5 s] the recipes for Spack, EasyBuild, conda-forge and Nix; URL= where the tarball lies
# make release        [build 5 min] all of these of a tag, and SHA256SUMS; see docs/release.md

PKG       := $(B)/packages
RELEASE    = $(shell packaging/version.sh)
COMMIT     = $(shell packaging/version.sh --commit)

.PHONY: dist deb rpm tarball sbom channels release html needed
# All that is missing, at once and before the work.
needed:
	@PYTHON='$(PYTHON)' packaging/needed.sh $(MAKECMDGOALS)
dist: needed
	GO='$(GO)' MAINTAINER='$(MAINTAINER)' URL='$(URL)' packaging/dist.sh $(PKG)
# NAMES=nvidia gives deb and rpm the names of NVIDIA's packages.
deb rpm tarball: dist
	GO='$(GO)' NAMES='$(NAMES)' packaging/$@.sh $(PKG)/gdrapi-$(RELEASE).tar.xz $(PKG)/$@

sbom: all
	$(GO) run ./packaging/sbom -version $(RELEASE) -epoch $(shell packaging/version.sh --epoch) -o $(B)/gdrapi.cdx.json $(LIB) $(GO_TOOLS)

channels: dist
	URL='$(URL)' packaging/channels.sh $(PKG)/gdrapi-$(RELEASE).tar.xz $(PKG)/channels

# Nothing that was built before is published.
release:
	packaging/release.sh
	rm -rf $(PKG)
	$(MAKE) deb rpm tarball channels wheel sbom
	cp $(B)/wheel/*.whl $(B)/gdrapi.cdx.json $(PKG)/
	packaging/release.sh $(PKG)

html:
	packaging/html.sh $(abspath $(B))/html
