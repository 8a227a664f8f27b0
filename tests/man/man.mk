# SPDX-License-Identifier: MIT
#
# make check-man      the manual pages against the code (part of make check)

.PHONY: check-man
check: check-man
check-man: tools $(DOUBLES)
	@$(RUN) man-lint tests/man/lint.sh
	@CC='$(CC)' $(RUN) man-api $(SIM) tests/man/api.sh $(B)
	@$(RUN) man-tools tests/man/tools.sh $(TOOLS)
	@$(RUN) man-kmod tests/man/kmod.sh
