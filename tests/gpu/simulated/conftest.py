"""Kernels in numba's simulator, where threads of a GPU are threads of Python: NUMBA_ENABLE_CUDASIM=1 pytest."""

import os

import pytest

if os.environ.get("NUMBA_ENABLE_CUDASIM") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of few threads, and few of them, so that several tiles and blocks are summed."""
    from verfedsv.completion import gpu
    from verfedsv.shapley.gpu import closed_form

    as_is = closed_form._n_threads
    monkeypatch.setattr(closed_form, "_n_threads", lambda *sizes, **more: min(4, as_is(*sizes, **more)))
    monkeypatch.setattr(closed_form, "ARRAY_BLOCKS", 2)
    monkeypatch.setattr(closed_form, "FACTOR_BLOCKS", 2)
    monkeypatch.setattr(gpu, "N_SLICES", 2)
