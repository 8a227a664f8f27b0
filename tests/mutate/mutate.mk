# SPDX-License-Identifier: MIT
#
# make mutate         [long 90 min] small wrong changes in a copy of the tree, and how many the tests notice; ONLY= picks

.PHONY: mutate mutate-sim
mutate:
	$(GO) run ./tests/mutate -only '$(ONLY)' tests/mutate/changes.txt

# How the tests find the simulated drivers of the tree that make runs in.
mutate-sim:
	@echo "$(SIM)"
