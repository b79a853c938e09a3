import json
import os

import numpy as np
import pytest

import verfedsv
from tests.report.test_summary import PIPES
from tests.report.valuations import make_summary
from tests.trainings import train
from tests.watch.runs import GrowingRun
from verfedsv.report.curves import curve
from verfedsv.report.metrics import METRICS
from verfedsv.report.reading import summarise
from verfedsv.transcript import verification
from verfedsv.transcript.streams import SegmentReader
from verfedsv.watch import growth as module
from verfedsv.watch.follower import Ended, Follower
from verfedsv.watch.state import State, with_values


@pytest.fixture
def follow():
    """Return a function that follows a folder without resting, and the states it published."""
    states, now = [], [0.0]

    def start(folder, **options):
        return Follower(folder, states.append, clock=lambda: now[0], **options)

    start.states, start.now = states, now
    return start


def metrics_of(n_evaluations):
    """Return noisy curves of all metrics."""
    return {name: curve(np.random.default_rng(0).normal(size=n_evaluations)) for name in METRICS}


def shares(state):
    names, parts = column(state, "Client"), column(state, "Share")
    return {name.text: part.number for name, part in zip(names, parts, strict=True)}


def column(state, heading):
    """Return the cells of a column of the table, none if there is no table."""
    if state.table is None:
        return []
    place = [each.text for each in state.table.headings].index(heading)
    return [row[place] for row in state.table.rows]


def test_states_of_a_growing_run_are_those_of_its_summary(run, follow):
    """Each state has the shares of the report at that time, and the loss."""
    watching = follow(run.folder)
    for _ in range(3):
        run.grow(2)
        watching.poll()
        state, summary = follow.states[-1], summarise(run.folder)
        assert state.status == "following"
        assert state.n_rounds == run.n_rounds == summary.n_rounds
        assert shares(state) == pytest.approx({client.name: client.share for client in summary.clients}, rel=1e-9)
        loss = next(chart for chart in state.charts if chart.title == "Loss")
        assert loss.lines[0].rounds[-1] == run.n_rounds
    assert len({json.dumps(shares(state)) for state in follow.states if state.table}) == 3


def test_asynchronous_runs_are_valued_on(run, follow, monkeypatch):
    """Only what is new is computed, from the last valuation, and nothing if nothing has changed."""
    called = []

    def value(*arguments, **options):
        called.append(options["since"])
        return verfedsv.value(*arguments, **options)

    monkeypatch.setattr(module, "value", value)
    watching = follow(run.folder)
    for n_rounds in (2, 0, 3):
        if n_rounds:
            run.grow(n_rounds)
        watching.poll()
    assert [None if since is None else since.n_rounds for since in called] == [None, 2]
    assert [state.n_rounds for state in follow.states] == [0, 2, 2, 5]
    assert follow.states[1] == follow.states[2]
    assert follow.states[0].charts[0].title == "Loss"  # which needs no valuation


def test_a_follower_rests_ten_times_as_long_as_it_worked(run, follow, monkeypatch):
    """Meanwhile the loss is updated and the shares stay."""

    def value(*arguments, **options):
        follow.now[0] += 0.9
        return verfedsv.value(*arguments, **options)

    monkeypatch.setattr(module, "value", value)
    watching = follow(run.folder)
    for rest in (0.0, 1.0):
        run.grow(1)
        follow.now[0] += rest  # the first valuation includes compiling, and is not held against the run
        watching.poll()
    assert follow.states[-1].n_rounds == 2
    run.grow(3)
    follow.now[0] += 8.5
    watching.poll()
    assert follow.states[-1].n_rounds == 2
    assert follow.states[-1].message == "Valued: 2 rounds. Training is at round 5."
    follow.now[0] += 1.0
    watching.poll()
    assert follow.states[-1].n_rounds == 5


def test_synchronous_runs_are_followed(tmp_path, follow):
    """Earlier values are shown during a valuation, which ends if the server is stopped."""
    training, path = train(n_samples=40, batch=20, n_epochs=4), tmp_path / "run"
    watching = follow(path, every=0.0)
    with training.record(path / "transcript", last=4) as recorder:
        watching.poll()
        assert any("Valuing: " in state.message for state in follow.states)
        training.record(recorder=recorder, first=4)
        watching.poll()
    state, valuation = follow.states[-1], verfedsv.value(path)
    assert shares(state) == dict(zip(valuation.clients, valuation.shares.tolist(), strict=True))
    with pytest.raises(Ended):
        follow(path, is_ended=lambda: True).poll()


def test_a_finished_run_is_not_valued_again(run, follow, monkeypatch):
    """Its valuation.json is shown."""
    run.grow(3)
    (run.folder / "valuation.json").write_text(verfedsv.value(run.folder).to_json())
    monkeypatch.setattr(module, "value", None)
    follow(run.folder).poll()
    assert (follow.states[-1].status, follow.states[-1].title) == ("finished", "Who contributed how much")
    assert follow.states[-1].problems == ()
    assert "so far" not in follow.states[-1].to_json()


def test_a_damaged_end_is_reported_once_nothing_is_recording(run, follow):
    """While a run records, an unfinished record is what a reader expects to see."""
    run.grow(2)
    last = sorted((run.folder / "transcript").glob("uploads-*.arrows"))[-1]
    with last.open("ab") as file:
        file.write(b"\0" * 4096)
    watching = follow(run.folder)
    watching.poll()
    assert follow.states[-1].n_rounds == 2
    assert follow.states[-1].alarms + follow.states[-1].warnings == ()
    run.close()
    watching = follow(run.folder)
    watching.poll()
    assert follow.states[-1].n_rounds == 2
    found = follow.states[-1].alarms + follow.states[-1].warnings
    assert any("uploads-00001.arrows has 4,096" in text for text in found), found


def test_the_end_of_a_run_is_shown_at_once(run, follow, monkeypatch):
    """A new valuation.json is only read, without a pause."""
    watching = follow(run.folder)
    run.grow(2)
    watching.poll()
    run.grow(3)
    watching._due = np.inf
    watching.poll()
    assert follow.states[-1].n_rounds == 2
    (run.folder / "valuation.json").write_text(verfedsv.value(run.folder).to_json())
    monkeypatch.setattr(module, "value", None)
    watching.poll()
    assert (follow.states[-1].status, follow.states[-1].n_rounds) == ("finished", 5)


def test_a_training_that_stands_still_is_reported(run):
    """At once, with the time of the last record, and in steps, so that the page does not change all the time."""
    states, moment = [], 1_800_000_000.0
    run.grow(2)
    run.close()
    for name in ("uploads-00001.arrows", "chain-00001.bin"):
        os.utime(run.folder / "transcript" / name, (moment, moment))
    later = [0.0]
    watching = Follower(run.folder, states.append, now=lambda: moment + later[0])
    for seconds, said in ((15, ""), (61, "1 minute"), (299, "1 minute"), (301, "5 minutes"), (7200, "1 hour")):
        later[0] = seconds
        watching.poll()
        assert states[-1].recorded.startswith("Last recorded: 20")
        assert (f"for more than {said}: the training may have ended" in states[-1].stalled) == bool(said)
    assert states[-3] != states[-2]


@pytest.mark.parametrize(("n_stamps", "message"), [(10, "Valued: 4 rounds. 10 rounds are planned."), (4, "")])
def test_the_plan_of_a_training_is_shown(run, follow, n_stamps, message):
    """From config.toml; a complete run may be quiet, and a stopped one is reported."""
    (run.folder / "config.toml").write_text(
        '[data]\nname = "adult"\nclients = 3\n[training]\nrate = 0.1\nbatch_size = 1\nmode = "asynchronous"\n'
        f'duration = {3.0 * n_stamps}\nstamp_every = 3.0\nperiod = 1.0\n[output]\nfolder = "run"\n'
    )
    run.grow(4)
    follow(run.folder, now=lambda: 1e11).poll()
    state = follow.states[-1]
    assert (state.n_rounds, state.n_planned) == (4, n_stamps)
    assert message in state.message
    assert (f"n the first 4 of {n_stamps} planned rounds" in state.headline) == (n_stamps > 4)
    assert ("may be hanging" in state.stalled) == (n_stamps > 4)
    assert ("there is no valuation.json of them yet" in state.stalled) == (n_stamps == 4)
    run.close()
    follow(run.folder).poll()
    assert ("The training was stopped" in follow.states[-1].stalled) == (n_stamps > 4)


def test_only_a_run_that_is_valued_later_is_said_to_lack_its_valuation(tmp_path, follow):
    """A recorder alone writes no valuation.json, and neither does any other program."""
    with verfedsv.Recorder(tmp_path / "run", [0, 1], ["a", "b"], n_planned=1) as recorder:
        recorder.log([0, 1], {"a": [-1.0, 1.0], "b": [0.0, 1.0]})
    follow(tmp_path / "run", now=lambda: 1e11).poll()
    assert follow.states[-1].stalled == "All planned rounds are recorded."


def test_numbers_of_a_state_are_those_of_its_texts(run, follow):
    """Values over all rounds, not of a single one."""
    run.grow(4)
    follow(run.folder).poll()
    for cell in column(follow.states[-1], "Total value"):
        assert float(cell.text) == pytest.approx(cell.number, rel=1e-2)


def test_a_run_that_is_not_there_is_waited_for(tmp_path, follow):
    """It may appear, disappear, and be replaced by another."""
    folder = tmp_path / "credit"
    watching = follow(folder)
    watching.poll()
    assert follow.states[-1].message == f"Waiting for a run in {folder}."
    run = GrowingRun(folder)
    watching.poll()
    assert follow.states[-1].message == "Recording has begun; there is no round yet."
    run.grow(2)
    run.close()
    watching.poll()
    assert follow.states[-1].n_rounds == 2
    folder.rename(tmp_path / "moved")
    watching.poll()
    assert (follow.states[-1].status, follow.states[-1].table) == ("waiting", None)
    run = GrowingRun(folder, ["other", "clients"])
    run.grow(1)
    run.close()
    watching.poll()
    assert set(shares(follow.states[-1])) == {"other", "clients"}


@pytest.mark.parametrize("name", ["transcript.json", "uploads-00001.arrows", "chain-00001.bin", "labels.arrow"])
@pytest.mark.parametrize("kind", ["changed", "cut", "random"])
def test_a_damaged_transcript_is_reported(run, follow, name, kind):
    """Earlier values stay, and nothing crashes."""
    run.grow(3)
    run.close()
    watching = follow(run.folder)
    watching.poll()
    path = run.folder / "transcript" / name
    content = bytearray(path.read_bytes())
    if kind == "changed":
        content[len(content) // 2] ^= 255
    elif kind == "cut":
        del content[len(content) // 3 :]
    else:
        content[:] = np.random.default_rng(0).bytes(len(content))
    path.unlink()
    path.write_bytes(content)
    watching.poll()
    watching.poll()
    assert follow.states[-1].problems
    follow.states[-1].to_json()


@pytest.mark.parametrize("name", ["config.toml", "valuation.json", "metrics.jsonl", "notes.json"])
def test_other_damaged_files_are_reported(run, follow, name):
    """An unreadable file of the run is named; metrics are shown as far as they can be read."""
    run.grow(3)
    with (run.folder / name).open("ab") as file:
        file.write(b"\xff{{{\n")
    follow(run.folder).poll()
    assert name in follow.states[-1].problems[0]
    assert any(chart.title == "Loss" for chart in follow.states[-1].charts)


def test_what_a_run_noted_of_its_data_is_a_warning(run, follow):
    """As a sentence."""
    run.grow(3)
    (run.folder / "notes.json").write_text("[\"bank: column 'copy' gives the label away\"]")
    follow(run.folder).poll()
    assert follow.states[-1].warnings[-1] == "bank: column 'copy' gives the label away."


def test_a_state_is_bounded(run, follow):
    """A hundred thousand evaluations, and 1,000 clients with long names: less than 300 kB each."""
    run.grow(2)
    lines = (
        f'{{"n_rounds":{t},"train_loss":{1 / t},"test_loss":{2 / t},"test_accuracy":0.5}}\n' for t in range(1, 100_001)
    )
    (run.folder / "metrics.jsonl").write_text("".join(lines))
    follow(run.folder).poll()
    state = follow.states[-1]
    assert state.n_evaluations == 100_000
    assert len(state.to_json().encode()) < 100_000
    names = [f"{m}{chr(0x1D538) * 300}" for m in range(1000)]
    values = np.linspace(1, -0.01, 1000)
    summary = make_summary(values, 1e-4, clients=names, n_rounds=5000)
    many = with_values(State("x" * 9999, "following", "y" * 99_999), summary, metrics_of(100_000))
    assert len(many.to_json().encode()) < 300_000
    assert (many.n_clients, len(many.table.rows)) == (1000, 205)


def test_what_was_checked_and_valued_is_not_read_again(run, follow, monkeypatch):
    """However long a run is, a poll reads only what was added."""
    watching = follow(run.folder)
    run.grow(50)
    watching.poll()
    read = []
    message = SegmentReader.message
    monkeypatch.setattr(SegmentReader, "message", lambda self, index: (read.append(index), message(self, index))[1])
    run.grow(1)
    watching.poll()
    assert follow.states[-1].n_rounds == 51
    assert min(read) == 2 + 50 * 4  # after the beginning of the stream
    assert {client.uploads.n_uploads for client in watching._summary.clients} == {51}


def test_a_long_run_is_valued_in_portions(run, follow, monkeypatch):
    """Each is shown with the progress; the final values are those of the whole run."""
    monkeypatch.setattr(module, "_SMALLEST_PORTION", 2)
    monkeypatch.setattr(module, "_SHORT", -1.0)
    run.grow(20)
    follow(run.folder).poll()
    valued = [state.n_rounds for state in follow.states if state.n_rounds]
    assert valued == [3, 7, 11, 15, 19, 20]
    assert follow.states[2].message == "Valued: 7 of about 20 rounds. Computing."
    assert follow.states[-1].message == "Valued: 20 rounds."
    whole = summarise(run.folder)
    assert shares(follow.states[-1]) == pytest.approx(
        {client.name: client.share for client in whole.clients}, rel=1e-12
    )


def test_a_training_that_is_far_ahead_is_caught_up_with_in_one_step(run, follow, monkeypatch):
    """Pending rounds are valued as one, on some samples; the page says so, and all charts share an axis."""
    monkeypatch.setattr(module, "_MOST_NUMBERS", 12)
    monkeypatch.setattr(module, "_FEWEST_SAMPLES", 1)
    monkeypatch.setattr(module, "_SMALLEST_PORTION", 4)
    monkeypatch.setattr(module, "_SKIMMED", 40)
    watching = follow(run.folder)
    run.grow(30)
    watching.poll()
    assert [state.n_rounds for state in follow.states if state.n_rounds][-1] == 30
    whole = watching._growth.valuation.losses
    read, message = [], SegmentReader.message
    monkeypatch.setattr(SegmentReader, "message", lambda self, index: (read.append(index), message(self, index))[1])
    for n_rounds in (300, 400):
        run.grow(n_rounds - run.n_rounds)
        follow.now[0] += 11.0  # no rest is longer than ten seconds, whatever was to be done
        n_steps = len(follow.states)
        read.clear()
        watching.poll()
        state = follow.states[-1]
        assert state.n_rounds == n_rounds
        assert len(follow.states) - n_steps <= 2
        assert len(read) < 100
        assert state.last_round == n_rounds
        assert {chart.lines[0].rounds[-1] for chart in state.charts} == {n_rounds}
    said = state.numerical_error
    assert "4 of 6 samples were drawn at random and valued, and about 400 rounds were valued in 32 steps" in said
    assert "proven" not in said
    ranges = [*column(state, "Share lies between"), *column(state, "Value lies between")]
    assert {cell.text for cell in ranges} == {"unknown"}
    # What was skipped changes who is credited with what, and not where the loss went.
    valuation = watching._growth.valuation
    rows = np.sort(np.random.default_rng(0).choice(6, 4, replace=False))
    exact = verfedsv.value(run.folder, rows=rows)
    assert valuation.losses[:31] == pytest.approx(whole)
    assert valuation.books == pytest.approx(exact.books, abs=1e-6)
    (run.folder / "valuation.json").write_text(verfedsv.value(run.folder).to_json())
    watching.poll()
    assert (follow.states[-1].status, follow.states[-1].n_rounds) == ("finished", 400)
    assert "keep up" not in follow.states[-1].numerical_error


def test_a_slower_training_is_valued_round_by_round(run, follow, monkeypatch):
    """As long as the backlog shrinks from poll to poll, however large it was."""
    monkeypatch.setattr(module, "_SMALLEST_PORTION", 2)
    monkeypatch.setattr(module, "_SHORT", -1.0)
    run.grow(40)
    watching = follow(run.folder)
    watching.poll()
    run.grow(15)
    watching.poll()
    assert follow.states[-1].n_rounds == 55
    assert watching._growth.rounds is None


def test_values_of_some_samples_are_near_those_of_all(run, follow, monkeypatch):
    """The latter are shown once there is a valuation.json."""
    monkeypatch.setattr(module, "_MOST_NUMBERS", 12)
    monkeypatch.setattr(module, "_FEWEST_SAMPLES", 1)
    run.grow(30)
    watching = follow(run.folder)
    watching.poll()
    whole = summarise(run.folder)
    expected = {client.name: client.share for client in whole.clients}
    assert shares(follow.states[-1]) == pytest.approx(expected, abs=0.05)
    (run.folder / "valuation.json").write_text(verfedsv.value(run.folder).to_json())
    watching.poll()
    assert shares(follow.states[-1]) == pytest.approx(expected)
    assert "drawn at random" not in follow.states[-1].numerical_error


def test_checking_and_valuing_show_how_far_they_are(run, follow, monkeypatch):
    """With the newest loss; both end if the server is stopped."""
    monkeypatch.setattr(verification, "_BETWEEN_REPORTS", 1)
    run.grow(3)
    watching = follow(run.folder, every=0.0)
    read = watching._metrics.read
    monkeypatch.setattr(watching._metrics, "read", lambda: (run.grow(0), read()))
    watching.poll()
    for word in ("Checking", "Valuing"):
        assert any(f"{word}: " in state.message for state in follow.states)
    evaluations = [state.n_evaluations for state in follow.states]
    assert evaluations[1:-1] == sorted(set(evaluations[1:-1]))
    with pytest.raises(Ended):
        follow(run.folder, is_ended=lambda: True).poll()


def test_uploads_truncated_while_they_are_read_are_reported(run, follow, monkeypatch):
    """As cp and rsync truncate files first: the page reports it, and the process survives."""
    run.grow(5)
    run.close()
    uploads = run.folder / "transcript" / "uploads-00001.arrows"
    value = module.value

    def cut_and_value(*arguments, **options):
        os.truncate(uploads, 0)
        return value(*arguments, **options)

    monkeypatch.setattr(module, "value", cut_and_value)
    follow(run.folder).poll()
    assert "the transcript was changed" in follow.states[-1].problems[0]


def test_a_valuation_of_an_earlier_state_does_not_end_the_rest(run, follow, monkeypatch):
    """Only one that covers all records does."""
    run.grow(2)
    (run.folder / "valuation.json").write_text(verfedsv.value(run.folder).to_json())
    run.grow(1)
    watching = follow(run.folder)
    watching.poll()
    watching._due = np.inf
    monkeypatch.setattr(watching, "_summarise", None)
    for moment in range(3):
        os.utime(run.folder / "valuation.json", ns=(moment, moment))
        watching.poll()
    assert follow.states[-1].n_rounds == 3


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_among_the_files_is_named_and_not_waited_for(run, follow, name):
    """For any file; once it is gone, the run is followed again."""
    run.grow(2)
    run.close()
    path, kept = run.folder / name, run.folder / "kept"
    if path.exists():
        path.rename(kept)
    watching = follow(run.folder)
    os.mkfifo(path)
    watching.poll()
    assert f"{name} is not a regular file" in follow.states[-1].problems[0]
    path.unlink()
    if kept.exists():
        kept.rename(path)
    watching.poll()
    assert follow.states[-1].n_rounds == 2
    assert follow.states[-1].problems == ()


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "notes.json", "valuation.json"])
def test_a_link_among_the_files_is_named_and_not_followed(run, follow, tmp_path, name):
    """As by other commands: it may lead to files that its author could not read."""
    run.grow(2)
    private, path = tmp_path / "private", run.folder / name
    private.write_text('{"n_rounds": 77, "train_loss": 0.5}\n')
    path.unlink(missing_ok=True)
    path.symlink_to(private)
    watching = follow(run.folder)
    watching.poll()
    assert f"{name} is a symbolic link" in follow.states[-1].problems[0]
    assert follow.states[-1].last_round == 0
    path.unlink()
    watching.poll()
    assert (follow.states[-1].n_rounds, follow.states[-1].problems) == (2, ())
