"""Runs whose labels are amounts."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from tests.cli.inprocess import call
from tests.runs.test_execute import entries, finish, make
from verfedsv import InputError, Transcript
from verfedsv.report.html import to_html
from verfedsv.report.markdown import to_markdown
from verfedsv.report.reading import summarise
from verfedsv.watch.follower import Follower

DIABETES = """[data]
name = "diabetes"

[training]
loss = "squared"
batch_size = 177
rate = 0.1
rounds = 30
evaluate_every = 10

[output]
folder = "out"
"""


def last_metrics(folder):
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def joined_columns(data):
    return np.hstack([client.numeric.toarray() for client in data.clients])


def test_an_asynchronous_run_is_as_good_as_least_squares(tmp_path):
    """R² and RMSE on training and test samples are those of scikit-learn on the joined columns, to 0.01 and 1 %."""
    text = DIABETES.replace("batch_size = 177\nrate = 0.1", "batch_size = 354\nrate = 0.2\nintercept = true")
    text = text.replace("rounds = 30\n", 'mode = "asynchronous"\nduration = 4.0\n')
    text = text.replace("evaluate_every = 10", "evaluate_every = 100")
    run = make(tmp_path, text)
    finish(run)
    data, found = run.data, last_metrics(tmp_path / "out")
    columns, is_train = joined_columns(data), ~data.is_test
    best = LinearRegression().fit(columns[is_train], data.labels[is_train])
    for part, rows in (("train", is_train), ("test", data.is_test)):
        assert found[f"{part}_r2"] == pytest.approx(best.score(columns[rows], data.labels[rows]), abs=0.01)
        errors = best.predict(columns[rows]) - data.labels[rows]
        assert found[f"{part}_rmse"] == pytest.approx(np.sqrt(np.square(errors).mean()), rel=0.01)


def write_prices(folder, unit, offset):
    """Write the files of two clients, one with prices in some unit, and a configuration; return its text."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    price = offset + unit * (3 * x[:, 0] - x[:, 1] + rng.normal(size=80))
    rows = "".join(f"{i},{price[i]},{x[i, 0]}\n" for i in range(80))
    (folder / "bank.csv").write_text("id,price,size\n" + rows)
    (folder / "town.csv").write_text("id,noise\n" + "".join(f"{i},{x[i, 1]}\n" for i in range(80)))
    text = DIABETES.replace('name = "diabetes"', 'label = "price"\nlabel_client = "bank"').replace("177", "32")
    return text + "".join(f'[[client]]\nname = "{name}"\nfile = "{name}.csv"\n' for name in ("bank", "town"))


def test_the_unit_of_the_labels_changes_nothing_but_rmse(tmp_path):
    """Prices in 100,000s and in cents give the same values, with one rate."""
    found = []
    for number, (unit, offset) in enumerate([(1.0, 0.0), (1e7, 5e8)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = make(folder, write_prices(folder, unit, offset))
        finish(run)
        found.append((run.value().values, last_metrics(folder / "out"), run.data.label_scale.deviation))
    (plain, first, one), (cents, second, other) = found
    np.testing.assert_allclose(cents, plain, rtol=1e-6)
    assert second["train_r2"] == pytest.approx(first["train_r2"], rel=1e-6)
    assert first["train_r2"] > 0.8
    assert second["train_rmse"] / first["train_rmse"] == pytest.approx(1e7, rel=1e-6)
    assert other / one == pytest.approx(1e7, rel=1e-6)


def test_values_add_up_to_half_of_the_variance_explained(tmp_path):
    """The loss begins at 1/2 and ends at (1 - R²) / 2, where every client always uploads all samples."""
    run = make(tmp_path, DIABETES.replace("177", "354"))
    finish(run)
    books = run.value().books
    assert books.start == pytest.approx(0.5, rel=1e-12)
    assert books.start - books.end == pytest.approx(books.clients, rel=1e-6)
    labels = Transcript.open(tmp_path / "out").labels
    assert (labels.mean(), labels.std()) == (pytest.approx(0, abs=1e-12), pytest.approx(1))


def test_a_stopped_regression_continues(tmp_path):
    """To the same records; labels in another unit are other labels."""
    finish(make(tmp_path, DIABETES.replace('"out"', '"whole"'), "whole.toml"))
    n_asked = itertools.count(1)
    finish(make(tmp_path, DIABETES), should_stop=lambda: next(n_asked) == 11)
    run = make(tmp_path, DIABETES)
    run.__dict__["data"] = replace(run.data, labels=2 * run.data.labels)
    with pytest.raises(InputError, match="the data of the server have changed"):
        finish(run, resume=True)
    finish(make(tmp_path, DIABETES), resume=True)
    assert entries(tmp_path / "out") == entries(tmp_path / "whole")


@pytest.mark.parametrize(("loss", "says"), [(0.51, True), (0.49, False)])
def test_a_regression_that_diverged_is_noticed(tmp_path, loss, says):
    """If the loss is larger than 1/2, that of predicting the mean."""
    run = make(tmp_path, DIABETES.replace("rounds = 30", "rounds = 1"))
    finish(run)
    line = {"n_rounds": 1, "train_loss": loss, "test_loss": None}
    (tmp_path / "out" / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    expected = ["the loss is larger than at the start: training diverged; try a smaller rate"] if says else []
    assert run.note_progress() == expected


def test_a_configuration_with_another_loss_is_noticed(tmp_path):
    """It is not that of the transcript."""
    finish(make(tmp_path, DIABETES))
    path = tmp_path / "out" / "config.toml"
    files = "".join(f'[[client]]\nname = "client {m}"\nfile = "a.csv"\n' for m in range(1, 6))
    text = DIABETES.replace('name = "diabetes"', 'label = "y"\nlabel_client = "client 1"') + files
    path.write_text(text)
    assert call("value", tmp_path / "out").returncode == 0
    path.write_text(text.replace('loss = "squared"', 'loss = "logistic"'))
    done = call("value", tmp_path / "out")
    assert "is not the configuration of this transcript: loss is logistic and not squared" in done.stderr


def test_the_perceptron_learns_amounts(tmp_path):
    """With the same rate."""
    run = make(tmp_path, DIABETES + '[model]\nkind = "perceptron"\nhidden = 8\n')
    finish(run)
    assert last_metrics(tmp_path / "out")["train_r2"] > 0.4


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return the folder of a finished regression, and what the command printed."""
    folder = tmp_path_factory.mktemp("regression")
    (folder / "run.toml").write_text(DIABETES)
    return folder, call("run", folder / "run.toml")


def test_the_command_says_what_was_measured(done):
    """R² and RMSE in place of accuracy, and the units of losses and values."""
    folder, printed = done
    said = " ".join(printed.stdout.split())
    last = last_metrics(folder / "out")
    assert f"R² {last['train_r2']:.4f}, RMSE {last['train_rmse']:.2f}; on test samples" in said
    assert "in units of their standard deviation, 76.49, from their mean, 151.3. Multiply losses and val" in said
    assert "accuracy" not in said


def test_a_regression_is_valued_settled_signed_and_audited(done, tmp_path):
    """By the commands, with nothing to be doubted."""
    folder, printed = done
    run = folder / "out"
    assert printed.returncode == 0, printed.stderr
    assert json.loads(call("value", run, "--json").stdout)["loss"] == "squared"
    assert call("keys", "new", tmp_path / "operator").returncode == 0
    steps = [
        ("settle", run, "--budget", "1000", "--currency", "EUR", "-o", tmp_path / "payouts.json"),
        ("extract", run, "--client", "client 1", "-o", tmp_path / "part"),
        ("statement", run, "--key", tmp_path / "operator.key", "-o", tmp_path / "statement.json"),
        ("audit", run, "--statement", tmp_path / "statement.json"),
    ]
    for step in steps:
        outcome = call(*step)
        assert outcome.returncode == 0, (step, outcome.stdout, outcome.stderr)


def test_the_report_of_a_regression(done):
    """Charts and tables have R² and RMSE, nothing has accuracy, and a term explains the units."""
    summary = summarise(done[0] / "out")
    last = last_metrics(done[0] / "out")
    assert [name for name, curve in summary.metrics.items() if curve is not None] == [
        *("train_loss", "test_loss", "train_r2", "test_r2", "train_rmse", "test_rmse")
    ]
    assert summary.metrics["test_rmse"].values[-1] == pytest.approx(last["test_rmse"], rel=1e-4)
    text, page = to_markdown(summary), to_html(summary)
    assert f"{last['test_r2']:.3f} after round 30" in text.split("| test R² |")[1].splitlines()[0]
    for shown in (text, page):
        assert "accuracy" not in shown.lower()
        assert "half the squared error" in shown
        assert "standard deviation of the labels" in shown
    for chart in ("chart-loss", "chart-r2", "chart-rmse"):
        assert f'id="{chart}"' in page


def test_the_watch_page_of_a_regression(done):
    """It draws R² and RMSE."""
    states = []
    Follower(done[0] / "out", states.append).poll()
    assert [chart.title for chart in states[-1].charts[1:]] == ["Loss", "R²", "RMSE"]
    assert states[-1].charts[2].unit == ""
