import pytest

from tests.watch.runs import GrowingRun


@pytest.fixture
def run(tmp_path):
    """Return an asynchronous run that grows."""
    growing = GrowingRun(tmp_path / "credit")
    yield growing
    growing.close()
