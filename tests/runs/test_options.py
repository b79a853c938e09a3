"""Optimisers, weights of classes, patience, and settings of single clients, in runs from a configuration."""

import json
import os
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.utils.class_weight import compute_class_weight

from tests.cli.inprocess import call
from tests.federation.textbook import joined, make_data, weights_of
from tests.runs.test_config import GOOD, write
from tests.runs.test_execute import ASYNCHRONOUS, SYNCHRONOUS, entries, finish, make
from tests.runs.test_resume import SMALL, kill_after, stop_at
from verfedsv import InputError, Transcript
from verfedsv.federation import Rate, Training
from verfedsv.runs.config import TrainingSection
from verfedsv.runs.extent import Extent
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.metrics import Patience, cut_metrics, read_metrics
from verfedsv.runs.models import weigh_classes
from verfedsv.runs.predicting import read_predictor
from verfedsv.runs.reading import parse_config

ADAM = "rate = 0.5", "rate = 0.05\noptimizer = 'adam'\nintercept = true"
MOMENTUM = "rate = 0.5", "rate = 0.1\noptimizer = 'momentum'\nmomentum = 0.5\nintercept = true"
MODES = ["synchronous", "asynchronous"]


def with_training(text, lines):
    """Return a configuration with more settings in [training]."""
    return text.replace("[training]\n", f"[training]\n{lines}\n")


def step_of(run):
    """Return the step that a run recorded as agreed."""
    return Transcript.open(run.folder).description.step


@pytest.mark.parametrize("text", SMALL, ids=MODES)
@pytest.mark.parametrize("change", [ADAM, MOMENTUM], ids=["adam", "momentum"])
@pytest.mark.parametrize("kind", ["linear", "perceptron"])
def test_a_killed_training_continues_with_what_its_optimisers_know(tmp_path, text, change, kind):
    """Every record is the same as in a training that was never stopped, to the last bit."""
    text = text.replace(*change) + f"\n[model]\nkind = '{kind}'\n"
    finish(make(tmp_path, text.replace('"out"', '"whole"'), "whole.toml"))
    finish(make(tmp_path, text), should_stop=stop_at(2))
    kill_after(3, make(tmp_path, text), resume=True)
    finish(make(tmp_path, text), resume=True)
    assert entries(tmp_path / "out") == entries(tmp_path / "whole")


def test_what_is_agreed_names_the_optimiser(tmp_path):
    """Plain gradient descent is recorded as ever; others with their settings, and rates of clients as JSON."""
    base = SMALL[0].replace("rounds = 16", "rounds = 1")
    plain = {"kind": "gradient descent", "rate": 0.5, "decay": "constant"}
    own = '\n[[client]]\nname = "client 2"\nrate = 0.25\n'
    cases = {
        "a": (base, plain),
        "b": (with_training(base, "optimizer = 'adam'"), {**plain, "kind": "Adam"}),
        "c": (
            with_training(base, "optimizer = 'momentum'"),
            {**plain, "kind": "gradient descent with momentum", "momentum": 0.9},
        ),
        "d": (base + own, {**plain, "rates of clients": '{"client 2": 0.25}'}),
        "e": (with_training(base, "class_weights = [1, 2]"), {**plain, "class weights": "[1.0, 2.0]"}),
        "f": (with_training(base, "class_weights = 'balanced'"), {**plain, "class weights": "balanced"}),
    }
    for name, (text, expected) in cases.items():
        run = make(tmp_path, text.replace('"out"', f'"{name}"'), f"{name}.toml")
        finish(run)
        assert step_of(run) == expected
        RunFolder(run.folder).config_of(Transcript.open(run.folder))
    changed = (tmp_path / "d" / "config.toml").read_text().replace("0.25", "0.75")
    (tmp_path / "d" / "config.toml").write_text(changed)
    with pytest.raises(InputError, match="is not the configuration of this transcript: step"):
        RunFolder(tmp_path / "d").config_of(Transcript.open(tmp_path / "d"))


def test_each_client_has_its_own_rate_and_scale(tmp_path):
    """With a rate of half the size, the first step of a client is half as long; other clients are unchanged."""
    base = SMALL[0].replace("rounds = 16", "rounds = 2").replace("batch_size = 300", "batch_size = 1000")
    first = '\n[[client]]\nname = "client 2"\n'
    found = []
    for number, own in enumerate(["", first + "rate = 0.25\n", first + "scale = 'unit-rows'\n"]):
        run = make(tmp_path, base.replace('"out"', f'"{number}"') + own, f"{number}.toml")
        finish(run)
        found.append([np.array(upload[2]) for time, upload in entries(run.folder) if time == 2 and upload])
    for m in range(4):
        np.testing.assert_allclose(found[1][m], found[0][m] * (0.5 if m == 1 else 1), rtol=1e-12)
        assert np.array_equal(found[2][m], found[0][m]) == (m != 1)


def test_balanced_weights_are_those_of_scikit_learn(tmp_path):
    """A class that only test samples have does not matter."""
    run = make(tmp_path, SYNCHRONOUS)
    labels = run.data.labels[~run.data.is_test]
    expected = compute_class_weight("balanced", classes=np.arange(2), y=labels)
    np.testing.assert_allclose(weigh_classes("balanced", run.data), expected, rtol=1e-12)
    np.testing.assert_array_equal(weigh_classes({run.data.classes[1]: 3.0}, run.data), [1, 3])


def test_weighted_training_finds_the_minimum_of_the_weighted_loss():
    """The weights are those of scikit-learn's regression with the same class weights, and not those without."""
    data = make_data(2, n_classes=2)
    is_flipped = np.random.default_rng(0).random(120) < 0.3  # so that no plane separates the classes
    data = replace(data, labels=np.where(is_flipped, 1 - data.labels, data.labels))
    weights = np.array([1.0, 6.0])
    training = Training.in_process(data, rate=Rate(2.0), intercept=True, class_weights=weights)
    for _ in range(3000):
        training.train_round(np.arange(100))
    x, y = joined(data)[~data.is_test], data.labels[~data.is_test]
    options = {"C": 1e8, "tol": 1e-10, "max_iter": 5000}
    gaps = []
    for class_weight in ({0: 1.0, 1: 6.0}, None):
        fitted = LogisticRegression(class_weight=class_weight, **options).fit(x, y)
        gaps.append(np.abs(weights_of(training)[:, 0] - fitted.coef_[0]).max())
    assert gaps[0] < 1e-3 < gaps[1]


@pytest.mark.parametrize("text", [SYNCHRONOUS, ASYNCHRONOUS], ids=MODES)
def test_weights_do_not_weigh_the_values(tmp_path, text):
    """Values are of the unweighted loss, which begins at log 2, and a note says so wherever they are shown."""
    run = make(tmp_path, with_training(text, "class_weights = [1, 4]\nintercept = true"))
    updates = finish(run)
    books = run.value().books
    assert books.start == pytest.approx(np.log(2))  # weighted, it would begin at 1.2
    assert updates[-1].evaluation.train_loss == pytest.approx(books.end, abs=0.05)
    (note,) = run.note_progress()
    assert "values are those of the unweighted loss" in note
    assert "values are those of the unweighted loss" in " ".join(
        call("report", run.folder, "-o", tmp_path / "report.html").stdout.split()
    )


FOLLOWED = "patience = 2\nmin_improvement = {least}\nevaluate_every = 2"


def patient(text, least=0.02):
    """Return a configuration that ends after two evaluations without progress."""
    return with_training(text.replace("evaluate_every = 10\n", ""), FOLLOWED.format(least=least))


@pytest.mark.parametrize("text", [SYNCHRONOUS, ASYNCHRONOUS], ids=MODES)
def test_a_training_ends_when_the_test_loss_does_not_fall(tmp_path, text):
    """At the evaluation that follows from the losses alone; it counts as finished, and cannot be continued."""
    free = make(
        tmp_path, text.replace("evaluate_every = 10", "evaluate_every = 2").replace('"out"', '"free"'), "free.toml"
    )
    finish(free)
    losses = [each["test_loss"] for each in read_metrics(free.folder / "metrics.jsonl")]
    least, stale, expected = losses[0], 0, None
    for number, loss in enumerate(losses[1:], 2):
        stale = 0 if loss < least - 0.02 else stale + 1
        least = loss if stale == 0 else least
        if stale == 2 and expected is None:
            expected = 2 * number
    assert 6 <= expected < 30
    run = make(tmp_path, patient(text))
    updates = finish(run)
    assert updates[-1].n_rounds == expected
    assert entries(run.folder) == entries(free.folder)[: len(entries(run.folder))]
    transcript = Transcript.open(run.folder)
    assert transcript.description.n_planned == 30
    assert RunFolder(run.folder).extent(transcript) == Extent(expected, expected, is_running=False)
    read_predictor(RunFolder(run.folder), "predicted")
    assert finish(run, resume=True) == []
    assert "set patience in [training] to more than 2" in run.how_to_train_longer
    assert next(iter(run.note_progress())).split(":")[0] == "training ended early, as agreed"


@pytest.mark.parametrize("text", [SYNCHRONOUS, ASYNCHRONOUS], ids=MODES)
def test_a_killed_training_ends_at_the_same_evaluation(tmp_path, text):
    """Evaluations before the checkpoint count, those after it are repeated; also if nothing but the end is missing."""
    text = patient(text)
    whole = make(tmp_path, text.replace('"out"', '"whole"'), "whole.toml")
    finish(whole)
    n_records = len(entries(whole.folder))
    expected = (whole.folder / "metrics.jsonl").read_bytes()
    for n_stop, n_killed in ((3, 2), (3, None), (5, 1)):
        run = make(tmp_path, text.replace('"out"', f'"{n_stop}-{n_killed}"'))
        run.data = whole.data
        finish(run, should_stop=stop_at(n_stop))
        n_left = n_records - len(entries(run.folder))
        kill_after(min(n_left, n_killed) if n_killed else _n_calls(text, n_left), run, resume=True)
        finish(run, resume=True)
        assert entries(run.folder) == entries(whole.folder)
        assert (run.folder / "metrics.jsonl").read_bytes() == expected


def _n_calls(text, n_records):
    """Return how many calls of the recorder write that many records: a synchronous round is one call."""
    return n_records // 5 if text.count("asynchronous") == 0 else n_records


def test_a_stopped_patient_training_is_unfinished(tmp_path):
    """Neither a short history nor one with progress ends it."""
    run = make(tmp_path, patient(SYNCHRONOUS))
    finish(run, should_stop=stop_at(3))
    assert RunFolder(run.folder).extent(Transcript.open(run.folder)) == Extent(3, 30, is_running=False)


def test_forged_measurements_do_not_end_a_training(tmp_path):
    """An early end needs a measurement at each evaluation that was agreed, up to the last round, and enough of them."""
    run = make(tmp_path, patient(SYNCHRONOUS))
    finish(run, should_stop=stop_at(6))
    folder, transcript = RunFolder(run.folder), Transcript.open(run.folder)
    line = '{{"n_rounds": {}, "train_loss": 0.5, "test_loss": 0.5}}\n'
    forged = {
        "one for all": [6],
        "the same again": [6, 6, 6],
        "too often": [4, 5, 6],
        "one is missing": [2, 6, 8],
        "before the last": [2, 4],
        "after what was recorded": [2, 4, 16],
        "no number": ["null", 4, 6],
        "infinite": [2, 4, "1e999"],
    }
    for what, rounds in forged.items():
        folder.metrics_path.write_text("".join(line.format(n) for n in rounds), encoding="utf-8")
        assert folder.extent(transcript).n_planned == 30, what
    folder.metrics_path.write_text("".join(line.format(n) for n in (2, 4, 6)), encoding="utf-8")
    assert folder.extent(transcript).n_planned == 6


def test_measurements_of_any_size_are_not_read(tmp_path):
    """An audit reads them if patience was agreed, and a sparse file claims any size; lines are read one by one."""
    path = tmp_path / "metrics.jsonl"
    line = b'{"n_rounds": 1, "train_loss": 1.0, "test_loss": 0.5}'
    path.write_bytes(b"ab\n" * 2**17 + line + b"\r\n")
    tracemalloc.start()
    try:
        assert [each["test_loss"] for each in read_metrics(path)] == [0.5]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    os.truncate(path, 2**31)
    for read in (read_metrics, lambda path: cut_metrics(path, 1)):
        with pytest.raises(InputError, match="it has 2,147,483,648 bytes, and at most 268,435,456 are read"):
            read(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="it is not a regular file"):
        read_metrics(path)


def test_an_early_end_is_settled_signed_and_audited(tmp_path):
    """As a finished training; the audit says that the test losses were not checked."""
    run = make(tmp_path, patient(SYNCHRONOUS))
    finish(run)
    run.value()
    n_rounds = Transcript.open(run.folder).n_rounds
    folder = str(run.folder)
    assert json.loads(call("value", folder, "--json").stdout)["finished"] is True
    settled = call("settle", folder, "--budget", "1000", "--currency", "EUR", "-o", tmp_path / "paid.json")
    assert settled.returncode == 0, settled.stderr
    assert call("keys", "new", tmp_path / "a").returncode == 0
    signed = call("statement", folder, "--key", tmp_path / "a.key", "--settlement", tmp_path / "paid.json")
    assert signed.returncode == 0, signed.stderr
    audited = call("audit", folder, "--public-key", tmp_path / "a.pub")
    said = " ".join((audited.stdout + audited.stderr).split())
    assert audited.returncode in (0, 3), said
    assert f"the training ended after {n_rounds} of at most 30 rounds" in said
    assert "was stopped after" not in said


def test_patience_is_read_from_what_was_agreed():
    """Anything else in an agreed step is no patience."""
    assert Patience.agreed_in({"patience": 3, "min improvement": 0.5, "evaluate every": 2}) == Patience(3, 0.5, 2)
    for other in (None, "sgd", {}, {"patience": "3", "min improvement": 0.0}, {"patience": 0, "min improvement": 0.0}):
        assert Patience.agreed_in(other) is None


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("optimizer = 'rmsprop'", "training.optimizer: input should be 'sgd', 'momentum' or 'adam'"),
        ("momentum = 0.5", 'training.momentum: is for optimizer = "momentum"'),
        ("optimizer = 'adam'\nmomentum = 0.5", 'training.momentum: is for optimizer = "momentum"'),
        ("optimizer = 'momentum'\nmomentum = 1.0", "training.momentum: input should be less than 1"),
        ("class_weights = 'even'", "training.class_weights: should be 'balanced', a list of positive numbers"),
        ("class_weights = [1, 0]", "training.class_weights: should be 'balanced', a list of positive numbers"),
        ("class_weights = { yes = -1 }", "training.class_weights: should be 'balanced', a list"),
        ("patience = 0", "training.patience: input should be greater than or equal to 1"),
        ("min_improvement = 0.1", "training.min_improvement: is for training that may end early"),
        ("patience = 2\nmin_improvement = -1.0", "training.min_improvement: input should be greater than or equal"),
    ],
)
def test_settings_that_cannot_be(tmp_path, lines, message):
    """An error names the setting and what is allowed."""
    text = with_training(GOOD, lines)
    with pytest.raises(InputError) as error:
        parse_config(text, write(tmp_path, text))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("class_weights = [1, 2, 3]", "must have a number for each of the 2 classes, -1, 1; received 3"),
        ("class_weights = { yes = 2 }", "has a weight for 'yes', which is not a class; the classes are -1, 1"),
        (
            "patience = 2",
            "patience = 2 has no effect: 30 rounds have only 3 evaluations.*at most 1, lower evaluate_every",
        ),
    ],
)
def test_settings_that_do_not_fit_the_data(tmp_path, lines, message):
    """They are refused before anything is written."""
    run = make(tmp_path, with_training(SYNCHRONOUS, lines))
    with pytest.raises(InputError, match=message):
        finish(run)
    assert not run.folder.exists()


def test_no_patience_is_short_enough_for_two_evaluations(tmp_path):
    """So that another patience is not what the message asks for."""
    text = patient(SYNCHRONOUS).replace("evaluate_every = 2", "evaluate_every = 20")
    with pytest.raises(InputError, match=r"2 evaluations, one every 20\. Lower evaluate_every, or leave patience out"):
        finish(make(tmp_path, text))


def test_patience_needs_test_samples(tmp_path):
    """Without any, nothing could end the training."""
    text = patient(SYNCHRONOUS).replace("samples = 3000", "samples = 3000\ntest = 0.0")
    with pytest.raises(InputError, match=r"training\.patience needs test samples"):
        finish(make(tmp_path, text))


def test_amounts_have_no_classes_to_weigh(tmp_path):
    """Neither where the loss says so, nor where the data do."""
    text = with_training(
        SYNCHRONOUS.replace("adult", "diabetes").replace("samples = 3000\n", ""), "class_weights = [1, 2]"
    )
    with pytest.raises(InputError, match=r"training\.class_weights: is for classes, and the labels are amounts"):
        make(tmp_path, text)


def test_defaults_are_plain():
    """Old configurations mean the same."""
    section = TrainingSection(batch_size=1, rate=1.0, rounds=1)
    assert (section.optimizer, section.class_weights, section.patience) == ("sgd", None, None)
