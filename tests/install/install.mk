# SPDX-License-Identifier: MIT
#
# make check-install  [check 30 s] what is installed works in any prefix, and goes again

.PHONY: check-install
check-install: need-pkg-config need-readelf all
	@MAKE='$(MAKE)' CC='$(CC)' $(RUN) install tests/install/install.sh
