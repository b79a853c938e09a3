import pytest

import verfedsv
from tests.trainings import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a small run that was valued."""
    path = tmp_path_factory.mktemp("runs") / "credit"
    with train(n_samples=60, batch=20, n_epochs=4).record(path):
        pass
    (path / "valuation.json").write_text(verfedsv.value(path).to_json())
    return path
