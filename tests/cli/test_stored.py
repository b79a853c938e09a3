"""Commands on a run in an object store, held to what they say of the same run in a folder."""

import json

import pytest

from tests.cli.inprocess import call
from tests.settlement.runs import make_run, sign
from tests.stores import serving


@pytest.fixture(scope="module")
def store():
    with serving() as store:
        yield store


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the folder of a signed run."""
    folder = make_run(tmp_path_factory.mktemp("local") / "credit")
    sign(folder)
    return folder


@pytest.fixture(scope="module")
def uri(store, run):
    """Return where a copy of the run is."""
    for path in run.rglob("*"):
        if path.is_file() and path.name != ".lock":
            store.put(f"runs/credit/{path.relative_to(run).as_posix()}", path.read_bytes())
    return store.uri("runs/credit")


def without(document, *names):
    """Return a JSON object without what differs between any two calls."""
    return {name: said for name, said in json.loads(document).items() if name not in names}


def test_a_stored_run_is_valued(run, uri):
    """With the same values, and without its address in what is printed."""
    there, here = call("value", uri, "--json"), call("value", run, "--json")
    assert there.returncode == 0
    assert without(there.stdout, "seconds") == without(here.stdout, "seconds")
    assert "endpoint_override" not in there.stderr + there.stdout


def test_a_stored_run_is_reported(run, uri):
    """From its configuration, metrics and valuation too."""
    there, here = (call("report", place, "--format", "json", "-o", "-") for place in (uri, run))
    assert there.returncode == 0
    assert json.loads(there.stdout) == json.loads(here.stdout)


def test_a_stored_run_is_settled(run, uri):
    """To the same cent."""
    options = ["--budget", "1000", "--currency", "EUR", "--negative", "zero", "--even-if-the-loss-rose", "--json"]
    there, here = (call("settle", place, *options) for place in (uri, run))
    assert there.returncode == 0
    assert json.loads(there.stdout) == json.loads(here.stdout)


def test_an_extract_of_a_stored_run_is_the_same(run, uri, tmp_path):
    """Byte for byte."""
    for number, place in enumerate((uri, run)):
        assert call("extract", place, "--client", "bank", "-o", tmp_path / str(number)).returncode == 0
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()


def test_a_stored_run_is_audited(run, uri, store):
    """By the statement in it or elsewhere; a changed object differs, and so does one that is gone."""
    for arguments in ([uri], [run / "statement.json", "--run", uri]):
        there, here = call("audit", *arguments, "--json"), call("audit", run, "--json")
        assert (there.returncode, here.returncode) == (0, 0)
        assert json.loads(there.stdout)["checks"] == json.loads(here.stdout)["checks"]
    name = "runs/credit/checkpoints/server.npz"
    before = store.get(name)
    try:
        store.put(name, before + b"!")
        done = call("audit", uri)
        assert (done.returncode, "'checkpoints/server.npz' was changed" in done.stdout) == (1, True)
        store.delete(name)
        done = call("audit", uri)
        assert (done.returncode, "'checkpoints/server.npz' is missing" in done.stdout) == (1, True)
    finally:
        store.put(name, before)


@pytest.mark.parametrize(
    "command",
    [
        ["watch"],
        ["predict", "-o", "predictions.csv"],
        ["statement", "--key", "consortium.key"],
        ["model", "--client", "bank", "-o", "bank.npz"],
    ],
)
def test_other_commands_need_a_folder(run, uri, command, monkeypatch):
    """And say so in a line."""
    monkeypatch.chdir(run.parent)
    done = call(command[0], uri, *command[1:])
    assert done.returncode == 2
    assert "a folder on this machine is needed here, not an object store" in " ".join(done.stderr.split())


@pytest.mark.parametrize("command", ["value", "report", "audit"])
def test_a_run_that_is_not_there_is_one_line(store, command):
    """Without a traceback."""
    done = call(command, store.uri("runs/nothing"))
    assert done.returncode == 2
    assert "there is no transcript in s3://bucket/runs/nothing: it has no transcript.json" in done.stderr
    assert "Traceback" not in done.stderr
