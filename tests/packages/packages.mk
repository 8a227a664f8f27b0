# SPDX-License-Identifier: MIT
#
# make check-packages [more 20 min] packages built twice, compared, installed, used and removed, as root
# make check-containers [more 5 s] the CDI spec and the pods against their schemas; part of check-packages

PKGTEST   := tests/packages
PKGRUN     = env GDR_GO_ON=1 GDR_RESULTS=$(PKG)/results GO='$(GO)' $(RUN)

.PHONY: check-packages check-containers
check-packages: all $(DOUBLES)
	@$(RUN) --need cmake cpio debootstrap dh dpkg-buildpackage lintian python3 rpm2cpio rpmbuild
	@$(PKGRUN) --clear
	@$(PKGRUN) --go packages-sbom $(GO) test -v -count=1 ./packaging/...
	@$(PKGRUN) packages-version $(PKGTEST)/version.sh
	@$(PKGRUN) packages-build $(PKGTEST)/build.sh $(PKG)
	@$(PKGRUN) packages-find $(SIM) $(PKGTEST)/find.sh $(PKG)
	@$(PKGRUN) packages-again $(PKGTEST)/again.sh $(PKG)
	@$(PKGRUN) packages-install $(PKGTEST)/install.sh $(PKG)
	@GDR_GO_ON=1 GDR_RESULTS=$(PKG)/results $(MAKE) --no-print-directory check-containers
	@$(PKGRUN) --total

check-containers:
	@$(RUN) --need python3
	@GO='$(GO)' $(RUN) containers $(PKGTEST)/containers.sh
