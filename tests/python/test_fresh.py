# SPDX-License-Identifier: MIT
"""Reads after a copy within the GPU, of small allocations of each kind, in each way to a mapping."""
import fresh


def test_no_read_is_stale(cuda, capsys):
    wrong = fresh.main(100 if hasattr(cuda.lib, "cuda_sim_live") else 1000)
    assert wrong == 0, capsys.readouterr().out
