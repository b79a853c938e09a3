import json
import os
import re
import shutil
import tracemalloc

import numpy as np
import pytest

import verfedsv
from tests.report.valuations import make_large_summary, make_summary
from tests.trainings import train
from verfedsv import InputError, TranscriptError
from verfedsv.report import wording
from verfedsv.report.html import to_html
from verfedsv.report.markdown import escape, to_markdown
from verfedsv.report.reading import summarise
from verfedsv.report.summary import Payout, SettlementSummary


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a small run that was valued."""
    path = tmp_path_factory.mktemp("runs") / "credit"
    with train(n_samples=60, batch=20, n_epochs=4).record(path / "transcript"):
        pass
    (path / "valuation.json").write_text(verfedsv.value(path).to_json())
    return path


def test_a_summary_has_the_numbers_of_the_valuation(folder):
    """Clients are sorted by value, with what each uploaded."""
    summary, valuation = summarise(folder), verfedsv.value(folder)
    order = np.argsort(-valuation.values)
    assert [client.name for client in summary.clients] == [valuation.clients[m] for m in order]
    assert [client.value for client in summary.clients] == valuation.values[order].tolist()
    assert [client.share for client in summary.clients] == valuation.shares[order].tolist()
    assert [client.error for client in summary.clients] == valuation.errors[order].tolist()
    assert {client.uploads.n_uploads for client in summary.clients} == {12}
    assert {client.uploads.n_embeddings for client in summary.clients} == {240}
    assert {client.uploads.n_bytes for client in summary.clients} == {240 * 12}
    assert summary.quarters == (3, 6, 9, 12)
    np.testing.assert_allclose(summary.clients[0].quarters[-1], valuation.values.max() * 12)
    assert summary.books == valuation.books
    assert f"{summary.recorded}, by verfedsv {verfedsv.__version__}" in to_markdown(summary)
    assert json.loads(summary.to_json())["books"] == valuation.books._asdict()


def test_rounds_that_a_client_missed_are_reported(tmp_path, folder):
    """Whether it was absent, or not a member; a report of clients that missed none does not speak of it."""
    batch, uploads = [0, 1, 2], {"bank": [0.1, 0.2, 0.3], "shop": [0.3, -0.1, 0.2], "telco": [0.2, 0.0, 0.1]}
    with verfedsv.Recorder(tmp_path, [0, 1, 1], ["bank", "shop"]) as recorder:
        recorder.log(batch, {"bank": uploads["bank"], "shop": uploads["shop"]})
        recorder.join("telco")
        recorder.log(batch, uploads)
        recorder.log(batch, {"bank": uploads["bank"], "telco": uploads["telco"]}, absent=["shop"])
        recorder.leave("shop")
        recorder.log(batch, {"bank": uploads["bank"], "telco": uploads["telco"]})
    summary = summarise(tmp_path)
    assert {client.name: client.uploads.n_missed for client in summary.clients} == {"bank": 0, "shop": 2, "telco": 1}
    text = to_markdown(summary)
    assert "In some rounds" in text
    assert "| Rounds missed |" in text
    assert "missed" not in to_markdown(summarise(folder))


def test_a_valuation_of_this_transcript_is_not_computed_again(folder, monkeypatch):
    """The valuation in the folder is used if its head is the transcript's."""
    monkeypatch.setattr("verfedsv.report.reading.value", None)
    assert summarise(folder).n_rounds == 12


def test_an_outdated_valuation_is_not_used(folder, tmp_path):
    """If the transcript has grown since, the run is valued with the agreed settings, and nothing is written."""
    copy = shutil.copytree(folder, tmp_path / "run")
    training = train(n_samples=60, batch=20, n_epochs=4)
    labels, clients, loss = training.labels, training.clients, training.loss
    with verfedsv.Recorder(copy / "transcript", labels, clients, loss, resume=True) as recorder:
        training.record(recorder=recorder, first=3, last=6)
    before = (copy / "valuation.json").read_bytes()
    assert summarise(copy).n_rounds == 15
    assert (copy / "valuation.json").read_bytes() == before


def test_a_damaged_valuation_is_named(folder, tmp_path):
    """The message says what to do."""
    copy = shutil.copytree(folder, tmp_path / "run")
    (copy / "valuation.json").write_text("{")
    with pytest.raises(InputError, match=r"valuation.json cannot be used: .* Delete it"):
        summarise(copy)


def test_a_changed_transcript_gets_no_report(folder, tmp_path):
    """This holds even if there is a valuation."""
    copy = shutil.copytree(folder, tmp_path / "run")
    path = copy / "transcript" / "uploads-00001.arrows"
    content = bytearray(path.read_bytes())
    content[-600] ^= 1
    path.write_bytes(content)
    with pytest.raises(TranscriptError, match="was changed"):
        summarise(copy)


@pytest.mark.parametrize(
    "bad", ['{"n_ro', "[1]", '{"n_rounds": 2, "train_loss": "low"}', f'{{"n_rounds": 1{"0" * 400}}}', "[" * 50_000]
)
def test_metrics_that_cannot_be_read_are_left_out(folder, tmp_path, bad):
    """Damaged lines are skipped, and so are those after the last round that was valued."""
    copy = shutil.copytree(folder, tmp_path / "run")
    lines = ['{"n_rounds": 1, "train_loss": 0.5, "test_loss": NaN}', '{"n_rounds": 99, "train_loss": 1}', bad]
    (copy / "metrics.jsonl").write_text("\n".join(lines))
    summary = summarise(copy)
    assert summary.metrics["train_loss"].values == (0.5,)
    assert summary.metrics["test_loss"] is None
    assert "## How training went" in to_markdown(summary)


def test_a_metric_that_is_never_a_number_is_none(folder, tmp_path):
    """No format shows it."""
    copy = shutil.copytree(folder, tmp_path / "run")
    (copy / "metrics.jsonl").write_text('{"n_rounds": 1, "train_loss": NaN}\n{"n_rounds": 2, "train_loss": NaN}\n')
    summary = summarise(copy)
    assert summary.metrics["train_loss"] is None
    assert "## How training went" not in to_markdown(summary)
    assert "Nothing else was measured in this training" in to_html(summary)


def test_long_metrics_take_little_memory(folder, tmp_path):
    """They are kept in columns, 40 bytes a line."""
    copy = shutil.copytree(folder, tmp_path / "run")
    text = "".join(f'{{"n_rounds": 1, "train_loss": {1 / t}}}\n' for t in range(1, 100_001))
    (copy / "metrics.jsonl").write_text(text)
    tracemalloc.start()
    summarise(copy)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30e6


def test_json_has_everything_and_no_nan():
    """Unknown numbers are null."""
    content = json.loads(make_summary([3.0, 1.0], [0.1, np.nan], completed=True).to_json())
    assert content["format"] == "verfedsv report"
    assert (content["numerical_error"], content["estimator_error_kind"]) == ("estimated", "certified")
    assert content["clients"][1]["error"] is None
    assert content["clients"][0]["completion"]["rank"] == 3


def test_a_summary_is_bounded():
    """Ten times the clients and rounds do not make ten times the size."""
    small, large = (len(make_large_summary(*size).to_json()) for size in ((20, 600), (200, 6000)))
    assert large < 2 * small


@pytest.mark.parametrize(
    ("values", "clients"),
    [
        ([1.0] * 50 + [0.0] * 950, None),
        ([1.0] * 1000, None),
        (np.linspace(2, 1, 200), [f"{m} {'x' * 1000}" for m in range(200)]),
        (np.linspace(2, -0.1, 1000), [f"{m} {chr(0x1D538) * 300}" for m in range(1000)]),
    ],
    ids=["zeros", "equal", "long names", "long names of many"],
)
def test_pages_stay_small(values, clients):
    """At most 200 clients have curves, and names are cut, whatever the values and names are."""
    summary = make_summary(values, 1e-5, clients=clients, n_rounds=600, completed=True)
    assert sum(client.cumulative is not None for client in summary.clients) <= 200
    assert len(to_html(summary).encode()) < 2_500_000


def test_markdown_has_no_links_and_calls_nobody():
    """Addresses and mentions in names stay text, and look the same."""
    text = escape("https://evil.example WWW.evil.example @everyone a@b.example")
    assert not re.search(r"://|www\.|@\w", text, re.IGNORECASE)
    assert text.replace("\N{WORD JOINER}", "") == "https://evil.example WWW.evil.example @everyone a@b.example"


def test_markdown_shows_names_as_they_are():
    """Names add no markup, no HTML and no cells."""
    evil = ["<script>alert(1)</script>", "a|b\n# c", "=HYPERLINK(1)", "[x](http://y)", "\x1b[31m"]
    text = to_markdown(make_summary([5.0, 4.0, 3.0, 2.0, -1.0], 0.01, clients=evil, settings=[("<b>", "|", "*")]))
    assert "<script" not in text
    assert "<b>" not in text
    assert "\x1b" not in text
    assert "](http" not in text.replace("\\]", "")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(row.replace("\\|", "").count("|") in (3, 4, 5, 6, 7, 8) for row in rows)
    assert "What a negative share means" in text


def test_markdown_has_the_sections_of_the_page():
    """Its sentences and tables have the numbers."""
    text = to_markdown(make_large_summary(20))
    for heading in ("Contributions", "Ranking", "Value over rounds", "How training went", "Five terms"):
        assert f"## {heading}" in text
    assert "- Place 1: **bank 1** contributed 18.78 % (17.78 to 19.82 %)." in text
    assert "Held out as a check" in text
    assert "| test accuracy | 69.4 % after round 20, 85.0 % after round 600 |" in text
    assert "| Part | Setting | Was |\n| --- | --- | --- |" in text


def test_markdown_has_the_sum_of_the_payouts():
    """The sum is the last row, and notes are aligned to the left."""
    lines = (Payout("bank", "750.00", "746.20", "753.70", "agreed"), Payout("telco", "250.00", None, None, ""))
    text = to_markdown(make_summary([3.0, 1.0], 0.1, settlement=SettlementSummary("1,000.00", "EUR", ("So.",), lines)))
    assert "| Client | Payout, EUR | Range | Note |\n| --- | ---: | ---: | --- |" in text
    assert "| Sum | 1,000.00 |  |  |" in text


def run_of(tmp_path, training, n_rounds):
    """Return the folder of a run with that section of its configuration, and so many recorded rounds."""
    folder = tmp_path / "run"
    with verfedsv.Recorder(folder / "transcript", [0, 1], ["bank", "telco"]) as recorder:
        for t in range(n_rounds):
            if "asynchronous" in training:
                recorder.update("bank", [0, 1], [-1.0 - t, 1.0 + t], time=0.1 * t + 0.05)
                recorder.stamp(time=0.1 * (t + 1))
            else:
                recorder.log([0, 1], {"bank": [-1.0 - t, 1.0 + t], "telco": [-0.5, 0.5]})
    (folder / "config.toml").write_text(
        f'[data]\nname = "adult"\nclients = 2\n[training]\nrate = 0.1\nbatch_size = 1\n{training}\n'
        '[output]\nfolder = "run"\n'
    )
    return folder


@pytest.mark.parametrize(
    ("training", "n_planned"),
    [
        ("rounds = 4000", 4000),
        ("epochs = 5", 10),
        ('mode = "asynchronous"\nduration = 1.0\nstamp_every = 0.1\nperiod = 0.05', 10),
    ],
)
def test_a_training_that_was_stopped_is_said_to_be_unfinished(tmp_path, training, n_planned):
    """Every format says so at the top; the plan is in config.toml."""
    summary = summarise(run_of(tmp_path, training, 3))
    assert (summary.n_rounds, summary.n_planned, summary.is_unfinished) == (3, n_planned, True)
    said = f"The training was stopped after 3 of {n_planned:,} rounds"
    assert to_html(summary).index(said) < to_html(summary).index("Contributions</h2>")
    assert to_markdown(summary).index(said) < to_markdown(summary).index("## Contributions")
    assert f"n the first 3 of {n_planned:,} planned rounds" in wording.headline(summary)
    assert json.loads(summary.to_json())["n_planned"] == n_planned


def test_a_whole_training_is_not_called_unfinished(tmp_path):
    """Unfinished means fewer rounds than planned, if there is a plan."""
    assert not summarise(run_of(tmp_path, "rounds = 3", 3)).is_unfinished
    assert not make_summary([3.0, 1.0]).is_unfinished


def test_a_record_that_lost_its_end_is_noticed(folder, tmp_path):
    """If valuation.json is of rounds that are not recorded, the report is of those that are, and says so."""
    copy = tmp_path / "run"
    with train(n_samples=60, batch=20, n_epochs=4).record(copy / "transcript", last=11):
        pass
    shutil.copy(folder / "valuation.json", copy)
    summary = summarise(copy)
    assert summary.n_rounds == 11
    (fault,) = [reason.text for reason in summary.verdict.reasons if reason.kind == "record"]
    assert "its valuation.json is of 12 rounds" in fault
    assert fault in to_markdown(summary)
    assert all(reason.kind != "record" for reason in summarise(folder).verdict.reasons)


def test_unknown_errors_of_the_estimator_are_said_to_be_unknown(folder, tmp_path):
    """No format fails at NaN."""
    copy = shutil.copytree(folder, tmp_path / "run")
    content = json.loads((copy / "valuation.json").read_text())
    content["estimator_errors"] = content["errors"] = [None] * len(content["clients"])
    (copy / "valuation.json").write_text(json.dumps(content))
    summary = summarise(copy)
    assert json.loads(summary.to_json())["clients"][0]["estimator_error"] is None
    assert "unknown" in to_markdown(summary)


PIPES = ["config.toml", "notes.json", "metrics.jsonl", "valuation.json", "transcript/labels.arrow", "transcript/.lock"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_among_the_files_is_not_waited_for(folder, tmp_path, name):
    """The error names it, whichever file it replaces."""
    copy = shutil.copytree(folder, tmp_path / "run")
    (copy / name).unlink(missing_ok=True)
    os.mkfifo(copy / name)
    with pytest.raises(InputError, match=f"{name} is not a regular file"):
        summarise(copy)


def test_names_that_mislead_are_warned_of():
    """Every format says so, above the contributions."""
    summary = make_summary([3.0, 1.0], 0.01, clients=["bank", "b\u0430nk"])
    said = "'bank' and 'b\\\\u0430nk' look alike"
    assert to_markdown(summary).index(said) < to_markdown(summary).index("## Contributions")
    assert "look alike" in to_html(summary)
    reasons = json.loads(summary.to_json())["verdict"]["reasons"]
    assert any("look alike" in reason["text"] for reason in reasons)


def test_names_are_whole_in_markdown():
    """They are in full in sentences, lists and tables; only the page cuts them."""
    names = [f"{m} {'x' * 500}" for m in range(3)]
    summary = make_summary([3.0, 2.99, 2.98], [0.02, 0.02, np.nan], clients=names, completed=True)
    text = to_markdown(summary)
    # Only reasons not to trust the values, which are the same everywhere, cut them.
    assert text.count("…") == "".join(summary.verdict.texts()).count("…")
    assert text.count(names[2]) > 3
    assert names[2] not in to_html(summary)


def test_notes_of_a_run_are_in_its_report(folder, tmp_path):
    """Every format has them as sentences and plain text; a file that is not a list of sentences is an error."""
    copy = shutil.copytree(folder, tmp_path / "run")
    notes = ["column <b>age</b> of bank gives the label away", "telco: 12 cells were empty and filled in"]
    (copy / "notes.json").write_text(json.dumps(notes))
    summary = summarise(copy)
    assert [reason.brief for reason in summary.verdict.reasons if reason.kind == "data"] == notes
    assert "column &lt;b&gt;age&lt;/b&gt; of bank gives the label away." in to_html(summary)
    assert "telco: 12 cells were empty and filled in." in to_markdown(summary)
    for damaged in ("{}", "[1]", "[", '["\\ud800"]'):
        (copy / "notes.json").write_text(damaged)
        with pytest.raises(InputError, match=r"notes.json is (damaged|not valid JSON)"):
            summarise(copy)


def test_a_damaged_end_is_a_fault(folder, tmp_path):
    """The rest is reported, and the verdict says what is wrong."""
    copy = shutil.copytree(folder, tmp_path / "run")
    (copy / "valuation.json").unlink()
    chain = copy / "transcript" / "chain-00001.bin"
    chain.write_bytes(chain.read_bytes()[:-20])
    summary = summarise(copy)
    assert any(text.startswith("The transcript is complete up to round") for text in summary.verdict.texts("doubt"))
