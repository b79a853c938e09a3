import itertools
import json
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.cli.inprocess import call
from verfedsv import InputError, Transcript, Valuation, value
from verfedsv.federation import Client
from verfedsv.report.reading import summarise
from verfedsv.runs import EXAMPLE, Run
from verfedsv.transcript import Stamp

SYNCHRONOUS = """[data]
name = "adult"
clients = 4
samples = 3000

[training]
batch_size = 300
rate = 0.5
rounds = 30
evaluate_every = 10

[output]
folder = "out"
"""
ASYNCHRONOUS = SYNCHRONOUS.replace("rounds = 30", "mode = 'asynchronous'\nduration = 1.2")


def make(tmp_path, text=SYNCHRONOUS, name="run.toml"):
    """Return a run of a configuration."""
    path = tmp_path / name
    path.write_text(text)
    return Run.of_file(path)


def finish(run, **options):
    """Train to the end."""
    return list(run.train(**options))


def entries(folder):
    """Return all that was recorded, as plain numbers."""
    return [
        (r.time, None if isinstance(r, Stamp) else (r.client, r.samples.tolist(), r.embeddings.tolist()))
        for r in Transcript.open(folder)
    ]


@pytest.mark.parametrize("text", [SYNCHRONOUS, ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
def test_a_run_leaves_everything_in_its_folder(tmp_path, text):
    """Transcript, metrics, valuation and the configuration; training lowers the loss."""
    run = make(tmp_path, text)
    updates = finish(run)
    result = run.value()
    assert updates[-1].n_rounds == updates[-1].n_planned == 30
    assert (tmp_path / "out" / "config.toml").read_text() == text
    metrics = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["n_rounds"] for line in metrics] == [10, 20, 30]
    assert metrics[-1]["train_loss"] < metrics[0]["train_loss"] < np.log(2)
    assert 0.7 < metrics[-1]["test_accuracy"] < 0.9
    written = Valuation.from_json((tmp_path / "out" / "valuation.json").read_text())
    np.testing.assert_array_equal(written.values, result.values)
    np.testing.assert_array_equal(value(tmp_path / "out").values, result.values)
    Transcript.open(tmp_path / "out").verify()


@pytest.mark.slow
def test_the_example_ends_sound(tmp_path):
    """In the first run of a newcomer, nothing is to be doubted or even noted."""
    run = make(tmp_path, EXAMPLE)
    finish(run)
    run.value()
    verdict = summarise(tmp_path / "runs" / "adult").verdict
    assert (verdict.word, verdict.reasons) == ("sound", ())


@pytest.mark.parametrize("intercept", [False, True])
def test_live_shares_are_close_to_the_valuation(tmp_path, intercept):
    """Those of the last update, computed between evaluations, are near those computed by round."""
    text = ASYNCHRONOUS.replace("rate = 0.5", "rate = 0.5\nintercept = true") if intercept else ASYNCHRONOUS
    run = make(tmp_path, text)
    last = finish(run)[-1]
    assert last.shares.sum() == pytest.approx(1)
    np.testing.assert_allclose(last.shares, run.value().shares, atol=0.05)


@pytest.mark.parametrize("text", [SYNCHRONOUS, ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("n_before", [1, 13, 29])
def test_a_stopped_run_continues_to_the_same_result(tmp_path, text, n_before):
    """Transcript, metrics and values are those of an uninterrupted run, to the last bit."""
    whole = make(tmp_path, text.replace('"out"', '"whole"'), "whole.toml")
    finish(whole)
    run = make(tmp_path, text)
    n_asked = itertools.count(1)
    finish(run, should_stop=lambda: next(n_asked) == n_before)
    assert Transcript.open(tmp_path / "out").n_rounds == n_before
    finish(make(tmp_path, text), resume=True)
    assert entries(tmp_path / "out") == entries(tmp_path / "whole")
    for name in ("metrics.jsonl",):
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "whole" / name).read_text()
    np.testing.assert_array_equal(run.value().values, whole.value().values)


@pytest.mark.parametrize("text", [SYNCHRONOUS, ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_killed_run_continues_to_the_same_result(tmp_path, text, has_checkpoint):
    """What was recorded after the last checkpoint, if any, is computed again and found in the transcript."""
    whole = make(tmp_path, text.replace('"out"', '"whole"'), "whole.toml")
    finish(whole)
    run = make(tmp_path, text)
    rounds = run.train(should_stop=lambda: False)
    for update in rounds:
        if has_checkpoint and update.n_rounds == 7:
            # As a run that stopped here would have left it.
            kept = _checkpoints_of(tmp_path, text, 7)
        if update.n_rounds == 17:
            rounds.close()
            break
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    if has_checkpoint:
        kept.rename(tmp_path / "out" / "checkpoints")
    finish(make(tmp_path, text), resume=True)
    assert entries(tmp_path / "out") == entries(tmp_path / "whole")
    assert (tmp_path / "out" / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()


def _checkpoints_of(tmp_path, text, n_rounds):
    """Return the folder of checkpoints of a run that was stopped after that many rounds."""
    run = make(tmp_path, text.replace('"out"', '"stopped"'), "stopped.toml")
    n_asked = itertools.count(1)
    finish(run, should_stop=lambda: next(n_asked) == n_rounds)
    return tmp_path / "stopped" / "checkpoints"


@pytest.mark.parametrize("text", [SYNCHRONOUS, ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
def test_a_finished_run_has_nothing_left_to_train(tmp_path, text):
    """Resumed, it is valued again."""
    finish(make(tmp_path, text))
    before = entries(tmp_path / "out")
    assert finish(make(tmp_path, text), resume=True) == []
    assert entries(tmp_path / "out") == before


def test_folders_that_do_not_fit(tmp_path):
    """A folder in use, one without a run, and one of another configuration are refused and unchanged."""
    with pytest.raises(InputError, match="there is no run in"):
        finish(make(tmp_path), resume=True)
    finish(make(tmp_path))
    with pytest.raises(InputError, match="is not empty; continue its run with --resume"):
        finish(make(tmp_path))
    with pytest.raises(InputError, match=r"has another configuration, see its config\.toml"):
        finish(make(tmp_path, SYNCHRONOUS.replace("0.5", "0.6")), resume=True)


def test_artificial_clients(tmp_path):
    """Copies and random clients take part; an exact copy gets exactly the value of its original."""
    text = SYNCHRONOUS + (
        '[[client]]\nname = "copy"\ncopy_of = "client 1"\n[[client]]\nname = "random"\nrandom_level = 2\n'
    )
    run = make(tmp_path, text.replace("clients = 4", 'clients = 4\nscale = "standardise"'))
    finish(run)
    result = run.value()
    values = dict(zip(result.clients, result.values, strict=True))
    assert values["copy"] == values["client 1"]
    assert abs(values["random"]) < 0.05 * result.values.max()
    with pytest.raises(InputError, match="cannot be a copy of 'nobody'"):
        finish(make(tmp_path, SYNCHRONOUS.replace('"out"', '"o2"') + '[[client]]\nname = "x"\ncopy_of = "nobody"\n'))
    with pytest.raises(InputError, match="'x' has no file, copy_of or random_level"):
        finish(make(tmp_path, SYNCHRONOUS.replace('"out"', '"o3"') + '[[client]]\nname = "x"\n'))


def test_nothing_to_test_on(tmp_path):
    """Test figures are null, as NaN is not JSON."""
    run = make(tmp_path, SYNCHRONOUS.replace("samples = 3000", "samples = 3000\ntest = 0"))
    finish(run)
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1], parse_constant=pytest.fail)["test_loss"] is None


def test_samples_and_test_samples_are_chosen_independently(tmp_path):
    """With fewer samples, the fraction of test samples is still the requested one."""
    data = make(tmp_path, SYNCHRONOUS.replace("samples = 3000", "samples = 3000\ntest = 0.3")).data
    assert len(data.labels) == 3000
    assert 0.25 < data.is_test.mean() < 0.35


def test_a_client_with_a_period_of_its_own(tmp_path):
    """It uploads less often."""
    run = make(tmp_path, ASYNCHRONOUS + '[[client]]\nname = "client 2"\nperiod = 0.05\nbatch_size = 77\n')
    finish(run)
    uploads = [r for r in Transcript.open(tmp_path / "out") if not isinstance(r, Stamp)]
    counts = {name: sum(u.client == name for u in uploads) for name in run.data.names}
    assert counts == {"client 1": 120, "client 2": 24, "client 3": 120, "client 4": 120}
    assert len([u for u in uploads if u.client == "client 2"][-1].samples) == 77


def test_files_of_ones_own(tmp_path):
    """CSV files are joined, with categories and missing values."""
    rng = np.random.default_rng(0)
    n = 400
    score = rng.normal(size=n)
    bank = ["id,y,income"] + [f"{i},{int(score[i] > 0)},{score[i] + rng.normal():.3f}" for i in range(n)]
    shop = ["key,colour"] + [f"{i},{'red' if score[i] > 0.5 else 'blue'}" for i in rng.permutation(n + 50)[:n] if i < n]
    (tmp_path / "bank.csv").write_text("\n".join(bank))
    (tmp_path / "shop.csv").write_text("\n".join(shop))
    text = SYNCHRONOUS.replace(
        'name = "adult"\nclients = 4\nsamples = 3000', 'label = "y"\nlabel_client = "bank"\nscale = "standardise"'
    )
    text = text.replace("batch_size = 300", "batch_size = 50") + (
        '[[client]]\nname = "bank"\nfile = "bank.csv"\n[[client]]\nname = "shop"\nfile = "shop.csv"\nid = "key"\n'
    )
    run = make(tmp_path, text)
    finish(run)
    result = run.value()
    assert result.clients == ("bank", "shop")
    assert (result.values > 0).all()
    assert any("samples are in all files" in note for note in run.data.notes)


def test_a_client_with_labels_only_is_no_player(tmp_path):
    """The others are trained and valued; a period for it is refused."""
    rng = np.random.default_rng(0)
    income = rng.normal(size=200)
    (tmp_path / "judge.csv").write_text("id,y\n" + "".join(f"{i},{int(x > 0)}\n" for i, x in enumerate(income)))
    (tmp_path / "bank.csv").write_text("id,income\n" + "".join(f"{i},{x}\n" for i, x in enumerate(income)))
    text = ASYNCHRONOUS.replace('name = "adult"\nclients = 4\nsamples = 3000', 'label = "y"\nlabel_client = "judge"')
    text = text.replace("batch_size = 300", "batch_size = 50") + (
        '[[client]]\nname = "bank"\nfile = "bank.csv"\n[[client]]\nname = "judge"\nfile = "judge.csv"\n'
    )
    run = make(tmp_path, text)
    finish(run)
    assert run.value().clients == ("bank",)
    with pytest.raises(InputError, match="'judge' holds only the labels and uploads nothing"):
        finish(make(tmp_path, text.replace('"out"', '"other"') + "period = 0.02\n"))


def test_the_perceptron(tmp_path):
    """Two layers for each client, trained and continued to the same result."""
    text = SYNCHRONOUS + '[model]\nkind = "perceptron"\nhidden = 8\n'
    whole = make(tmp_path, text.replace('"out"', '"whole"'), "whole.toml")
    finish(whole)
    n_asked = itertools.count(1)
    finish(make(tmp_path, text), should_stop=lambda: next(n_asked) == 11)
    finish(make(tmp_path, text), resume=True)
    assert entries(tmp_path / "out") == entries(tmp_path / "whole")


def test_embeddings_that_are_too_large_end_the_training(tmp_path):
    """The error says what to do."""
    with pytest.raises(
        InputError,
        match=r'client 1: embeddings must be .* below 1e.*: training diverged; try a smaller rate, or scale = "stand',
    ):
        finish(make(tmp_path, SYNCHRONOUS.replace("rate = 0.5", "rate = 1e200")))


def test_other_refusals_come_without_advice_on_divergence(tmp_path, monkeypatch):
    """A smaller rate does not help a client that cannot answer."""
    monkeypatch.setattr(Client, "_take", _refuse)
    with pytest.raises(InputError) as caught:
        finish(make(tmp_path))
    assert str(caught.value) == "the features are gone"


def _refuse(*_):
    raise InputError("the features are gone")


@pytest.mark.parametrize("semivalue", ["banzhaf", "beta(2, 3)"])
def test_a_run_is_valued_with_the_semivalue_of_its_configuration(tmp_path, semivalue):
    """Which is also what was agreed, in the transcript."""
    run = make(tmp_path, ASYNCHRONOUS + f'[valuation]\nsemivalue = "{semivalue}"\n')
    finish(run)
    result = run.value()
    assert Transcript.open(tmp_path / "out").description.valuation.semivalue == semivalue == result.settings.semivalue
    np.testing.assert_array_equal(result.values, value(tmp_path / "out", semivalue=semivalue).values)
    assert np.abs(result.values - value(tmp_path / "out", semivalue="shapley").values).max() > 1e-6
    assert run.known_valuation() is not None


def test_the_real_clock_can_be_stopped_and_continued(tmp_path):
    """Time continues from the last record, and no stamp is missing."""
    text = ASYNCHRONOUS.replace("duration = 1.2", "duration = 0.6\nclock = 'real'\nstamp_every = 0.1")
    n_asked = itertools.count(1)
    before = finish(make(tmp_path, text), should_stop=lambda: next(n_asked) == 2)
    after = finish(make(tmp_path, text), resume=True)
    records = entries(tmp_path / "out")
    times = [time for time, _ in records]
    assert times == sorted(times)
    # On a busy machine the first stamps may come before the first upload, and are not recorded then.
    numbers = [update.n_rounds for update in before + after]
    assert numbers == list(range(numbers[0], 7))
    assert sum(upload is None for _, upload in records) == len(numbers)


SIGNALLED = """
import os, sys
from verfedsv import Recorder
from verfedsv.cli import app

write, number = Recorder.stamp, int(sys.argv.pop())

def stamp(recorder, *arguments, **options):
    write(recorder, *arguments, **options)
    if recorder.n_rounds == 13:
        os.kill(os.getpid(), number)

Recorder.stamp = stamp
app()
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_and_killed_on_the_command_line(tmp_path, how):
    """Ctrl-C ends with code 130 and says how to continue; after either, --resume gives the uninterrupted result."""
    (tmp_path / "run.toml").write_text(ASYNCHRONOUS)
    command = [sys.executable, "-c", SIGNALLED, "run", str(tmp_path / "run.toml"), str(int(how))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own script
    assert done.returncode == (130 if how == signal.SIGINT else -9)
    assert ("--resume" in done.stdout) == (how == signal.SIGINT)
    assert 13 <= Transcript.open(tmp_path / "out").n_rounds < 30
    assert call("run", tmp_path / "run.toml", "--resume").returncode == 0
    whole = make(tmp_path, ASYNCHRONOUS.replace('"out"', '"whole"'), "whole.toml")
    finish(whole)
    assert entries(tmp_path / "out") == entries(tmp_path / "whole")
    written = Valuation.from_json((tmp_path / "out" / "valuation.json").read_text())
    np.testing.assert_array_equal(written.values, whole.value().values)


def test_what_was_agreed_is_recorded(tmp_path):
    """Settings of the valuation and the step are in the transcript, and a run with others is not continued."""
    text = SYNCHRONOUS + "[valuation]\nrank = 4\n"
    finish(make(tmp_path, text), should_stop=iter([False, True]).__next__)
    with pytest.raises(InputError, match="rank was 4 and is 5"):
        finish(make(tmp_path, text.replace("rank = 4", "rank = 5")), resume=True)
    finish(make(tmp_path, text), resume=True)
    description = Transcript.open(tmp_path / "out").description
    assert description.valuation.rank == 4
    assert description.step == {"kind": "gradient descent", "rate": 0.5, "decay": "constant"}
