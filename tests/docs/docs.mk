# SPDX-License-Identifier: MIT
#
# make check-docs     [more 10 s] the pages: the files that they name, and what they say to type

.PHONY: check-docs
check-docs: all $(DOUBLES)
	@$(RUN) docs-paths tests/docs/paths.sh
	@$(RUN) docs-commands $(SIM) tests/docs/commands.sh $(B)
