"""Runs whose server has a network on top of all embeddings."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.cli.inprocess import call
from tests.runs.credit import CONFIG, make_rows, write_csv
from tests.runs.test_config import GOOD, write
from tests.runs.test_execute import ASYNCHRONOUS, SYNCHRONOUS, entries, finish, make
from tests.runs.test_predicting import files_of, restored
from tests.runs.test_resume import REAL, SMALL, kill_after, stop_at
from verfedsv import InputError, Transcript, value
from verfedsv.errors import DivergedError
from verfedsv.federation.checkpoints import as_bytes
from verfedsv.federation.predictions import Predictor
from verfedsv.head_layers import digest_of_layers
from verfedsv.runs import Run
from verfedsv.runs.extent import contradictions
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.reading import parse_config
from verfedsv.transcript import Stamp

torch = pytest.importorskip("torch")

MLP = """
[model]
kind = "perceptron"
hidden = 6
head = "mlp"
width = 3
[head]
hidden = [5]
[[client]]
name = "client 2"
width = 5
"""
FEW = [text.replace("rounds = 16", "rounds = 6").replace("0.12", "0.24") for text in SMALL]
MODES = ["synchronous", "asynchronous"]


@pytest.mark.parametrize("text", [SYNCHRONOUS, ASYNCHRONOUS], ids=MODES)
def test_a_run_with_a_network_is_valued(tmp_path, text):
    """It lowers the loss, shares while it trains are near the final ones, and the books balance."""
    text = text.replace("samples = 3000", "samples = 1000") + MLP
    run = make(tmp_path, text)
    updates = finish(run)
    shares = [update.shares for update in updates if update.shares is not None]
    result = run.value()
    books = result.books
    assert books.start - books.clients - books.server == pytest.approx(books.end, abs=1e-6)
    assert books.end < books.start - 0.1
    assert run.note_progress() == []
    np.testing.assert_allclose(shares[-1], result.shares, atol=0.1)
    head = Transcript.open(run.folder).description.head
    assert head is not None
    np.testing.assert_array_equal(value(run.folder).values, result.values)  # no module, no --trust-head


def states(folder):
    """Return the hashes of the network's parameters at each time; the first of all, then those of the stamps."""
    transcript = Transcript.open(folder)
    transcript.verify()
    return [transcript.description.head.state, *(r.state for r in transcript if isinstance(r, Stamp))]


@pytest.mark.parametrize("text", FEW, ids=MODES)
def test_a_killed_training_continues_with_its_network(tmp_path, text):
    """Every record and all parameters of the head are the same as in a training that was never stopped."""
    text += MLP
    whole = make(tmp_path, text.replace('"out"', '"whole"'), "whole.toml")
    finish(whole)
    finish(make(tmp_path, text), should_stop=stop_at(2))
    kill_after(4, make(tmp_path, text), resume=True)
    finish(make(tmp_path, text), resume=True)
    assert entries(tmp_path / "out") == entries(tmp_path / "whole")
    assert states(tmp_path / "out") == states(tmp_path / "whole")


def write_credit(folder):
    """Write the files of three clients and a configuration with a network; return its text."""
    for name, rows in make_rows().items():
        write_csv(folder / f"{name}.csv", rows)
    text = CONFIG.format(model="linear", scale="standardise").replace("intercept = true\n", "")
    return text.replace('kind = "linear"', 'kind = "linear"\nhead = "mlp"\nwidth = 2\n')


@pytest.fixture(scope="module")
def credit(tmp_path_factory):
    """Return a finished run on files."""
    folder = tmp_path_factory.mktemp("credit")
    run = make(folder, write_credit(folder))
    finish(run)
    return run


def test_new_rows_are_predicted_through_the_network(credit):
    """As in training; an absent client counts with its mean embedding."""
    training, order = restored(credit)
    found = credit.predict(files_of(credit)).predictions.scores
    expected = np.empty_like(found)
    expected[order] = training.predict(np.arange(len(order)))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    without = credit.predict(files_of(credit, "bank", "shop"))
    module, own = training.server.head.module, training.evaluate().of_clients
    mean = own[1].mean(axis=0)
    x = np.hstack([own[0], np.tile(mean, (len(own[0]), 1)), own[2]])
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(without.predictions.scores[order][: len(x)], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('head = "mlp"\nwidth = 2', "", "head is sum and not mlp"),
        ("width = 2", "width = 3", r"width of the head is \[3, 3, 3\] and not \[2, 2, 2\]"),
        ("[model]", "[head]\nhidden = [7]\n[model]", r"head is Linear\(6, 7, bias=True\), GELU.* not Linear\(6, 64"),
        ("[model]", '[head]\nactivation = "silu"\n[model]', r"SiLU, .* not Linear\(6, 64, .* GELU\(approximate=none\)"),
        ("[model]", "[head]\nrate = 0.5\n[model]", "'rate of the head': 0.5.* not .*'rate of the head': 0.01"),
        ("[model]", '[head]\noptimizer = "sgd"\n[model]', "'optimizer of the head': 'sgd'.* not .*: 'adam'"),
    ],
)
def test_a_configuration_of_another_network(credit, tmp_path, old, new, why):
    """Is not that of the transcript, whatever somebody wrote to the folder later."""
    folder = tmp_path / "run"
    shutil.copytree(credit.folder, folder)
    config = folder / "config.toml"
    config.write_text(config.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match=f"is not the configuration of this transcript: .*{why}"):
        RunFolder(folder).config_of(Transcript.open(folder))


LINEAR, LAST, GELU = ["Linear", 6, 64, True], ["Linear", 64, 1, True], ["GELU", "none"]


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ([["Linear", 6, 64, False], GELU, ["Linear", 64, 1, False]], r"not Linear\(6, 64, bias=False\)"),
        ([GELU, LINEAR, LAST], r"not GELU\(approximate=none\), Linear"),
        ([LINEAR, GELU, LAST, GELU], r"Linear\(64, 1, bias=True\), GELU\(approximate=none\)\. "),
        ([LINEAR, GELU, GELU, GELU, LAST], r"not Linear\(6, 64, bias=True\), GELU\(approximate=none\), GELU"),
        ([LINEAR, ["GELU", "tanh"], LAST], r"not Linear\(6, 64, bias=True\), GELU\(approximate=tanh\)"),
        (None, "head is mlp and not a function of another kind, of which no layers are recorded"),
    ],
)
def test_a_transcript_of_another_network(credit, layers, why):
    """Every layer has to be the configured one, with all its arguments; a program cannot be compared."""
    config, about = credit.config, Transcript.open(credit.folder).description
    assert list(contradictions(config, about)) == []
    if layers is not None:
        layers = ["Sequential", [[str(number), layer] for number, layer in enumerate(layers)]]
    architecture = "0" * 64 if layers is None else digest_of_layers(layers)
    other = replace(about, head=replace(about.head, layers=layers, architecture=architecture))
    assert re.search(why, "".join(f"{found}. " for found in contradictions(config, other)))


def test_a_transcript_whose_network_takes_others(credit):
    """A client that nobody knows, whose embeddings would be zeros, is not part of the configured network."""
    about = Transcript.open(credit.folder).description
    head = replace(about.head, clients=(*about.head.clients, "ghost"), widths=(*about.head.widths, 2))
    (found,) = list(contradictions(credit.config, replace(about, head=head)))[:1]
    assert found == "client 'ghost' is known to only one of the configuration and the head"


def test_commands_of_a_run_with_a_network(tmp_path):
    """From the configuration to predictions, a model for its owner, payouts, a signed statement and its audit."""
    (tmp_path / "run.toml").write_text(write_credit(tmp_path), encoding="utf-8")
    run, page = tmp_path / "runs" / "credit", tmp_path / "report.html"
    steps = [
        ("run", tmp_path / "run.toml"),
        ("value", run),
        ("report", run, "-o", page),
        ("predict", run, "--features", f"bank={tmp_path / 'bank.csv'}", "-o", tmp_path / "predictions.csv"),
        ("model", run, "--client", "telco", "-o", tmp_path / "telco.npz"),
        ("settle", run, "--budget", "1000", "--currency", "EUR", "-o", tmp_path / "paid.json"),
        ("keys", "new", tmp_path / "operator"),
        ("statement", run, "--key", tmp_path / "operator.key", "--settlement", tmp_path / "paid.json"),
        ("extract", run, "--client", "telco", "-o", tmp_path / "telco.extract"),
        ("audit", tmp_path / "telco.extract", "--statement", run / "statement.json"),
        ("audit", run, "--public-key", tmp_path / "operator.pub"),
    ]
    said = {}
    for step in steps:
        done = call(*step)
        assert done.returncode == 0, (step, done.stdout, done.stderr)
        said[step[:2]] = " ".join(done.stdout.split())
    for audited in (run, tmp_path / "telco.extract"):
        assert (
            "head: a network of the server, Linear(6, 64, bias=True), GELU(approximate=none), Linear(64, 1, bias=True)"
        ) in said["audit", audited]
        assert "optimizer of the head adam, rate of the head 0.01" in said["audit", audited]
        assert "that they were trained as agreed was not checked" in said["audit", audited]
    paid = json.loads((tmp_path / "paid.json").read_text(encoding="utf-8"))
    assert paid["clients"] == ["bank", "telco", "shop"]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ('[model]\nhead = "mlp"\n[head]\nhidden = [0]', "head.hidden 1: .*greater than or equal to 1"),
        ('[model]\nhead = "mlp"\n[head]\nactivation = "swish"', "head.activation: .*'gelu', 'relu', 'silu' or 'tanh'"),
        ('[model]\nhead = "mlp"\nwidth = 100000', "model.width: .*less than or equal to 16384"),
        ('[model]\nhead = "cnn"', "model.head: .*'sum' or 'mlp'"),
        ("[model]\nwidth = 4", r'model.width: .*is for head = "mlp"'),
        ("[head]\nhidden = [3]", r'head: is for head = "mlp" in \[model\], and the head of this run is a sum'),
        ('[[client]]\nname = "client 1"\nwidth = 4', r"client 'client 1'.width: is for head = .mlp."),
    ],
)
def test_wrong_settings(tmp_path, extra, expected):
    """Each is named, with what to do."""
    with pytest.raises(InputError, match=expected):
        parse_config(f"{GOOD}\n{extra}\n", tmp_path / "run.toml")


def test_a_network_has_its_own_intercept(tmp_path):
    """One more would be nobody's."""
    text = GOOD.replace("rounds = 3", "rounds = 3\nintercept = true") + '\n[model]\nhead = "mlp"\n'
    with pytest.raises(InputError, match=r"training.intercept: .*the network has biases already; leave it out"):
        Run.of_file(write(tmp_path, text))


def test_without_torch(tmp_path, monkeypatch):
    """Said before anything is written."""
    monkeypatch.setitem(sys.modules, "verfedsv.federation.torch_heads", None)
    run = make(tmp_path, FEW[0] + MLP)
    with pytest.raises(InputError, match=r'head = "mlp" in \[model\] needs PyTorch'):
        finish(run)
    assert not run.folder.exists()


def test_a_network_that_diverges(tmp_path):
    """It ends with advice, and what was recorded before stays readable."""
    run = make(tmp_path, FEW[0] + MLP.replace("hidden = [5]", "hidden = [5]\nrate = 1e300\noptimizer = 'sgd'"))
    with pytest.raises(DivergedError, match="head are not finite: training diverged; try a smaller rate"):
        finish(run)
    Transcript.open(run.folder).verify()


def test_a_network_goes_on_from_the_transcript_in_real_time(tmp_path):
    """What was recorded after the last checkpoint is not computed again, and the books balance nevertheless."""
    text = REAL.replace("samples = 3000", "samples = 500") + MLP
    kill_after(30, make(tmp_path, text))
    run = make(tmp_path, text)
    finish(run, resume=True)
    Transcript.open(run.folder).verify()
    books = run.value().books
    assert books.start - books.clients - books.server == pytest.approx(books.end, abs=1e-6)


N_UNITS, N_ROWS = 30_000, 20_000
SIZES = [(6, 1), (1, N_UNITS), (N_UNITS, 1)]
WIDE = ["Sequential", [[str(k), ["Linear", *sizes, False]] for k, sizes in enumerate(SIZES)]]


@pytest.fixture(scope="module")
def wide(credit, tmp_path_factory):
    """Return the folder of a run whose server's checkpoint has a wide layer, in 0.5 MB, and a file of many rows."""
    folder = tmp_path_factory.mktemp("wide")
    shutil.copytree(credit.folder, folder / "run")
    path = folder / "run" / "checkpoints" / "server.npz"
    with np.load(path) as arrays:
        content = {name: array for name, array in arrays.items() if not name.startswith("head.")}
    about = json.loads(content["about"].tobytes())
    about["head"]["layers"] = WIDE
    content["about"] = as_bytes(about)
    for k, (n_inputs, n_outputs) in enumerate(SIZES):
        content[f"head.{k}.weight"] = np.ones((n_outputs, n_inputs))
    np.savez(path, **content)
    assert path.stat().st_size < 10**6
    (folder / "new.csv").write_text("id,spent\n" + "".join(f"{k},{k % 7}\n" for k in range(N_ROWS)))
    return folder


def test_a_wide_layer_does_not_multiply_with_the_rows(wide):
    """It would take 4.8 GB for all rows at once, torch included; predictions do not depend on the parts."""
    process = f"""
from tests.memory import resident
from verfedsv.runs import predict
found = predict({str(wide / "run")!r}, {{"shop": {str(wide / "new.csv")!r}}}).predictions.scores
assert len(found) == {N_ROWS} and len(set(found.ravel().round(6))) == 7
print(resident(what="VmHWM") // 2**20)
"""
    done = subprocess.run([sys.executable, "-c", process], capture_output=True, text=True, check=True)  # noqa: S603
    assert int(done.stdout) < 2_000


@pytest.mark.parametrize(
    ("name", "array", "why"),
    [
        ("head.1.weight", np.ones((N_UNITS, 1), np.int8), "the parameters of the head do not fit its layers"),
        ("head.1.weight", np.ones((N_UNITS, 2)), "the parameters of the head do not fit its layers"),
    ],
)
def test_parameters_of_another_type_are_refused(wide, tmp_path, name, array, why):
    """As bytes, they would take eight times the memory of the file."""
    path = tmp_path / "server.npz"
    with np.load(wide / "run" / "checkpoints" / "server.npz") as arrays:
        np.savez(path, **{**arrays, name: array})
    with pytest.raises(InputError, match=why):
        Predictor.read(path)
