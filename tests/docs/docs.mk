# SPDX-License-Identifier: MIT
#
# make check-docs     [more 1 s] the pages name no file that is not there

.PHONY: check-docs
check-docs:
	@$(RUN) docs-paths tests/docs/paths.sh
