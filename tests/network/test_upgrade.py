import os
import signal

import pytest

from tests.network.consortium import Consortium
from verfedsv._version import __version__
from verfedsv.network.messages import PROTOCOL

NEW = "import verfedsv.network.messages as messages\nmessages.PROTOCOL += 1\n"


@pytest.fixture
def consortium(tmp_path):
    whole = Consortium(tmp_path / "consortium")
    yield whole
    whole.stop()


def test_all_parties_upgrade_to_another_protocol(consortium, tmp_path, monkeypatch):
    """One that did it alone is refused with both versions; when all have, the training continues where it was."""
    for name in ("serve", *consortium.clients):
        consortium.start(name)
    consortium.wait_for(lambda: consortium.n_bytes() > 100_000)
    for name in ("serve", *consortium.clients):
        consortium.kill(name, signal.SIGINT)
    before = consortium.records()
    consortium.start("serve")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "sitecustomize.py").write_text(NEW, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "new"), os.environ.get("PYTHONPATH", "")]))
    early = consortium.start("shop")
    consortium.wait_for(lambda: consortium.is_over("shop"))
    assert early.returncode == 2
    reason = (
        f"protocol version {PROTOCOL + 1} of verfedsv {__version__} is not that of this server, {PROTOCOL} of verfedsv "
        f"{__version__}: install the same version"
    )
    assert reason in consortium.log("shop")
    assert reason in consortium.log("serve")
    consortium.kill("serve", signal.SIGINT)
    consortium.start_all()
    assert {*consortium.finish().values()} == {0}
    assert "Continuing from round" in consortium.log("serve")
    after = consortium.records()
    assert after[: len(before)] == before
    assert len(after) > len(before)
