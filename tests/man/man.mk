# SPDX-License-Identifier: MIT
#
# make check-man      [more 20 s] the manual pages against the code

MANROOT   := $(B)/man-root

.PHONY: check-man
check-man: need-mandoc all $(DOUBLES)
	@$(RUN) man-lint tests/man/lint.sh
	@CC='$(CC)' $(RUN) man-api $(SIM) tests/man/api.sh $(B)
	@$(RUN) man-tools tests/man/tools.sh $(TOOLS)
	@$(RUN) man-kmod tests/man/kmod.sh
	@rm -rf $(MANROOT) $(B)/gdrapi.pc
	@$(MAKE) --no-print-directory -s install DESTDIR=$(abspath $(MANROOT))
	@$(RUN) man-install tests/man/install.sh $(MANROOT)$(mandir) $(MANROOT)$(bindir)
	@rm -rf $(MANROOT) $(B)/gdrapi.pc
