# SPDX-License-Identifier: MIT
#
# make dist           [build 5 s] the source tarball, under build/packages; see packaging/README.md
# make deb            [build 2 min] ... and Debian's packages of it
# make rpm            [build 2 min] ... and RPMs of it
# make tarball        [build 2 min] ... and a tree that runs from any folder
# make html           [build 1 s] the manual pages for a browser, build/html/index.html
# make channels       [build 5 s] the recipes for Spack, EasyBuild, conda-forge and Nix; URL= where the tarball lies
# make release        [build 5 min] all of these of a tag, and SHA256SUMS; see docs/release.md

PKG       := $(B)/packages
RELEASE    = $(shell packaging/version.sh)
COMMIT     = $(shell packaging/version.sh --commit)

.PHONY: dist deb rpm tarball channels release html needed
# All that is missing, at once and before the work.
needed:
	@PYTHON='$(PYTHON)' packaging/needed.sh $(MAKECMDGOALS)
dist: needed
	GO='$(GO)' MAINTAINER='$(MAINTAINER)' URL='$(URL)' packaging/dist.sh $(PKG)
# NAMES=nvidia gives deb and rpm the names of NVIDIA's packages.
deb rpm tarball: dist
	GO='$(GO)' NAMES='$(NAMES)' packaging/$@.sh $(PKG)/gdrapi-$(RELEASE).tar.xz $(PKG)/$@

channels: dist
	URL='$(URL)' packaging/channels.sh $(PKG)/gdrapi-$(RELEASE).tar.xz $(PKG)/channels

CYCLONEDX := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
# Nothing that was built before is published.
release:
	packaging/release.sh
	rm -rf $(PKG)
	$(MAKE) deb rpm tarball channels wheel lib
	cp $(B)/wheel/*.whl $(PKG)/
	$(GO) run $(CYCLONEDX) bin -json -std -noserial -notimestamp -version v$(RELEASE) -output $(PKG)/gdrapi.cdx.json $(LIB)
	packaging/release.sh $(PKG)

html:
	packaging/html.sh $(abspath $(B))/html
