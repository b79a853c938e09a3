"""Settings of the tests of runs."""

from functools import cache

import pytest

from verfedsv.runs import execute


@pytest.fixture(scope="session", autouse=True)
def _data_sets_are_read_once():
    """Reading Adult takes a second, and nearly every test here is of a run on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "load", cache(execute.load))
        yield
