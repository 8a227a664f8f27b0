# SPDX-License-Identifier: MIT
#
# make mutate         [long 90 min] small wrong changes in a copy of the tree; each must be noticed. PART=1/8, ONLY=rm
# make check-mutate   [more 3 min] a share of them, which the commit picks

PART ?= 1/1
.PHONY: mutate mutate-sim
mutate:
	$(GO) run ./tests/mutate -only '$(ONLY)' -part '$(PART)' tests/mutate/changes.txt

# How the tests find the simulated drivers of the tree that make runs in.
mutate-sim:
	@echo "$(SIM)"
