# SPDX-License-Identifier: MIT
#
# make check-packages    packages: built twice, compared, installed, used and removed in a
#                        small Debian, with the commands of docs/install.md
# make check-containers  the CDI spec and the pods, by their schemas; part of check-packages

PKGTEST   := tests/packages
PKGRUN    := env GDR_RESULTS=$(PKG)/results $(RUN)

.PHONY: check-packages check-containers
check-packages: all $(DOUBLES) $(addprefix $(B)/,$(FINDFILES))
	@$(PKGRUN) --clear
	@$(PKGRUN) --go packages-sbom $(GO) test -v -count=1 ./packaging/...
	@$(PKGRUN) packages-version $(PKGTEST)/version.sh
	@$(PKGRUN) packages-build env GO='$(GO)' $(PKGTEST)/build.sh $(PKG)
	@$(PKGRUN) packages-find $(SIM) $(PKGTEST)/find.sh $(PKG)
	@$(PKGRUN) packages-again env GO='$(GO)' $(PKGTEST)/again.sh $(PKG)
	@GDR_RESULTS=$(PKG)/results $(MAKE) --no-print-directory check-containers
	@$(PKGRUN) packages-install env GO='$(GO)' $(PKGTEST)/install.sh $(PKG)
	@$(PKGRUN) --total

check-containers:
	@$(RUN) containers env GO='$(GO)' $(PKGTEST)/containers.sh
