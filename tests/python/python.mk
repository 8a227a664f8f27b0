# SPDX-License-Identifier: MIT
#
# make wheel          [build 5 s] the Python packages with their libraries, under build/wheel
# make check-python   [more 20 s] the Python packages on the doubles: pytest, mypy, pip

# The first that has pytest; Debian's python3 has it where another is before it in PATH.
PYTHON    ?= $(firstword $(foreach p,python3 /usr/bin/python3,$(shell $p -c 'import pytest' 2>/dev/null && echo $p)) python3)
PYTEST    := env PYTHONPATH=$(abspath python):$(abspath vkgdr/python):$(abspath tests/python/doubles) PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m pytest -q -p no:cacheprovider

.PHONY: wheel check-python
wheel: $(LIB) $(VKGDR)
	for p in python vkgdr/python; do \
		GDRAPI_LIBRARY='$(abspath $(LIB))' $(PYTHON) -m pip wheel -q --disable-pip-version-check --no-index --no-deps -w $(B)/wheel ./$$p; \
	done
	@ls $(B)/wheel/*

check-python: need-mypy $(LIB) $(VKGDR) $(DOUBLES)
	@$(PYTHON) -c 'import numpy, pip, pytest' || { $(RUN) --need pytest-3; exit 1; }
	cd python && mypy --strict --cache-dir=/dev/null gdrapi gdrapi_build.py
	cd vkgdr/python && mypy --strict --cache-dir=/dev/null vkgdr
	@for b in $(BACKENDS); do $(RUN) python-$$b $(SIM) $(ON) $$b $(PYTEST) tests/python --ignore=tests/python/gpu; done
