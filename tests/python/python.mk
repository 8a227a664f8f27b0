# SPDX-License-Identifier: MIT
#
# make wheel          [build 5 s] the Python packages with their libraries, under build/wheel
# make check-python   [more 20 s] the Python packages on the doubles: pytest, mypy, pip

# The first that has pytest; Debian's python3 has it where another is before it in PATH.
PYTHON    ?= $(firstword $(foreach p,python3 /usr/bin/python3,$(shell $p -c 'import pytest' 2>/dev/null && echo $p)) python3)

.PHONY: wheel
wheel: needed $(LIB) $(VKGDR)
	rm -f $(B)/wheel/*.whl
	for p in python vkgdr/python; do \
		GDRAPI_LIBRARY='$(abspath $(LIB))' $(PYTHON) -m pip wheel -q --disable-pip-version-check --no-index --no-deps -w $(B)/wheel ./$$p; \
	done
	@ls $(B)/wheel/*
