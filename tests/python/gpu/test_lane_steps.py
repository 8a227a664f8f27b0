# SPDX-License-Identifier: MIT
"""lane_steps.py, which needs PyTorch."""
import pytest

pytest.importorskip("torch")
import lane_steps  # noqa: E402


@pytest.mark.parametrize("check", lane_steps.CHECKS, ids=lambda check: check.__name__)
def test_lane(check):
    check(lane_steps.STEPS)
