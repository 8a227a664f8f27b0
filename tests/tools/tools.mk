# SPDX-License-Identifier: MIT
#
# make check-tools    [check 15 s] the tools' arguments, exit statuses and progress

.PHONY: check-tools
check-tools: need-script tools $(DOUBLES)
	@$(RUN) tools-arguments tests/tools/tools.sh $(abspath $(BIN)) $(SIM)
