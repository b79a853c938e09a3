"""Runs in which clients join later, leave, or miss rounds."""

import itertools
import json
import math
import shutil

import numpy as np
import pytest

from tests.cli.inprocess import call
from tests.runs.test_execute import finish, make
from tests.runs.test_resume import Killed, stop_at
from tests.valuation.definition import Round, Story
from verfedsv import InputError, Recorder, Transcript
from verfedsv.federation.server import Server
from verfedsv.runs.extent import Extent
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.metrics import Patience, read_metrics
from verfedsv.runs.predicting import read_model, read_predictor
from verfedsv.runs.resume import Saver
from verfedsv.settlement.keys import read_private_key
from verfedsv.settlement.statement import Statement, canonical
from verfedsv.transcript import Stamp, Upload
from verfedsv.transcript.records import Join, Leave

CLIENTS = """
[[client]]
name = "client 1"
misses = 0.3
[[client]]
name = "client 2"
joins_after = 3
misses = [[6, 7]]
[[client]]
name = "client 3"
leaves_after = 8
misses = [[2, 2]]
[[client]]
name = "client 4"
joins_after = 5
leaves_after = 9
"""
SYNCHRONOUS = f"""[data]
name = "adult"
clients = 5
samples = 200
{CLIENTS}
[training]
batch_size = 20
rate = 0.5
rounds = 12
evaluate_every = 4

[output]
folder = "out"
"""
ASYNCHRONOUS = SYNCHRONOUS.replace(
    "rounds = 12", "mode = 'asynchronous'\nduration = 0.48\nperiod = 0.04\nintercept = true"
)
MLP = '[model]\nhead = "mlp"\nwidth = 2\n[head]\nhidden = [4]\n[training]'
TEXTS = {
    f"{mode} {head}": text if head == "sum" else text.replace("[training]", MLP).replace("intercept = true", "")
    for mode, text in (("synchronous", SYNCHRONOUS), ("asynchronous", ASYNCHRONOUS))
    for head in ("sum", "mlp")
}
both_modes_and_heads = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
N_ROUNDS = 12
PLAN = {
    "client 2": {4, 5, *range(8, 13)},
    "client 3": {1, *range(3, 9)},
    "client 4": set(range(6, 10)),
    "client 5": set(range(1, 13)),
}


def records(folder):
    """Return all that was recorded, as plain data."""
    result = []
    for record in Transcript.open(folder).records():
        match record:
            case Upload():
                own = record.client, record.samples.tolist(), record.embeddings.tolist()
            case Stamp():
                offset = None if record.offset is None else record.offset.tolist()
                own = offset, record.absent, record.state
            case _:
                own = (record.client,)
        result.append((type(record).__name__, record.time, own))
    return result


def rounds_of(folder):
    """Return the rounds in which each client uploaded anything, from 1."""
    number, result = 1, {}
    for record in Transcript.open(folder).records():
        if isinstance(record, Stamp):
            number += 1
        elif isinstance(record, Upload):
            result.setdefault(record.client, set()).add(number)
    return result


def kill_after(n_records, run, **options):
    """Train until the recorder has written that many records, of any kind; then it raises."""
    n_written = itertools.count(1)

    def count(write):
        def wrapped(recorder, *arguments, **keywords):
            write(recorder, *arguments, **keywords)
            # Before the first record, joining writes nothing.
            if recorder.transcript.n_records and next(n_written) == n_records:
                raise Killed

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in ("log", "update", "stamp", "join", "leave"):
            patch.setattr(Recorder, name, count(getattr(Recorder, name)))
        with pytest.raises(Killed):
            finish(run, **options)


def choose_records(folder):
    """Return after which records to kill: all of a synchronous run, else those next to joining and leaving, and a few.

    Synchronous rounds are one record each. With a network, whose steps take longer, there are fewer.
    """
    transcript = Transcript.open(folder)
    is_sum = transcript.description.head.kind == "sum"
    if transcript.description.mode == "synchronous":
        return range(1, transcript.n_records + 1, 1 if is_sum else 4)
    kinds = [type(record) for record in transcript.records()]
    near = {k + d for k, kind in enumerate(kinds, 1) if kind in (Join, Leave) for d in ((-1, 0) if is_sum else (0,))}
    return sorted(near | set(range(1, len(kinds), 20 if is_sum else 40)))


@both_modes_and_heads
def test_clients_take_part_as_planned(tmp_path, text):
    """A client uploads in all its rounds, and in no other; one that misses rounds at random misses some."""
    updates = finish(make(tmp_path, text))
    assert [update.n_rounds for update in updates] == list(range(1, N_ROUNDS + 1))
    found = rounds_of(tmp_path / "out")
    drawn = found.pop("client 1")
    assert found == PLAN
    assert {1, N_ROUNDS} < drawn < set(range(1, N_ROUNDS + 1))
    Transcript.open(tmp_path / "out").verify()


@both_modes_and_heads
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_killed_after_any_record(tmp_path, monkeypatch, text, has_checkpoint):
    """Also one of joining and leaving, and while clients are away: resumed, the transcript is that of a whole run."""
    monkeypatch.setattr(Saver, "is_due", lambda _: has_checkpoint)  # after every round, or only at the start
    whole = make(tmp_path, text.replace('"out"', '"whole"'), "whole.toml")
    finish(whole)
    expected = records(tmp_path / "whole")
    for n_records in choose_records(tmp_path / "whole"):
        folder = tmp_path / f"out{n_records}"
        first, second = (make(tmp_path, text.replace('"out"', f'"{folder.name}"')) for _ in range(2))
        first.data = second.data = whole.data  # to read them once
        kill_after(n_records, first)
        finish(second, resume=True)
        assert records(folder) == expected, n_records
        Transcript.open(folder).verify()
        shutil.rmtree(folder)


def story_of(folder, data, loss="logistic"):
    """Return what a transcript says as a story, from which the slow valuator computes values."""
    transcript = Transcript.open(folder)
    clients, rounds, uploads = list(transcript.description.clients), [], []
    for record in transcript.records():
        if isinstance(record, Upload):
            uploads.append((record.client, record.samples.astype(int), record.embeddings.reshape(-1, 1)))
        elif isinstance(record, Stamp):
            rounds.append(Round(uploads, record.offset))
            uploads = []
        elif isinstance(record, Join) and record.client not in clients:
            clients.append(record.client)
    return Story(transcript.description.mode, loss, data.targets[~data.is_test], clients, rounds)


@pytest.mark.parametrize("text", [SYNCHRONOUS, ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")
def test_values_are_those_of_all_coalitions(tmp_path, text):
    """On the server's table: zeros before a client joins, its last embeddings while it is away; value 0 there."""
    text = text.replace("[output]", "[valuation]\nmethod = 'exact'\nrank = 2\n[output]")
    run = make(tmp_path, text)
    finish(run)
    result = run.value()
    story = story_of(tmp_path / "out", run.data)
    assert result.clients == tuple(story.clients)
    expected = story.values(rank=2)
    np.testing.assert_allclose(result.per_round, expected[:, :-1], atol=result.per_round_errors.max() + 1e-10)
    there = rounds_of(tmp_path / "out")
    for m, name in enumerate(result.clients):
        away = [t for t in range(N_ROUNDS) if t + 1 not in there[name]]
        assert (result.per_round[away, m] == 0).all()
        assert result.per_round[:, m].any()


HEAD = """
[model]
head = "mlp"
width = 2
[head]
hidden = [4]
activation = "tanh"
[[client]]
name = "client 2"
width = 3
joins_after = 2
[[client]]
name = "client 3"
leaves_after = 4
[training]"""


def scores_of(state, x):
    """Return what a network of one hidden layer says of embeddings side by side, (samples,)."""
    first, shift, second, last = state
    return (np.tanh(x @ first.T + shift) @ second.T + last)[:, 0]


def values_under_a_network(folder, labels, widths):
    """Return the values of clients and server, (rounds, clients + 1), of the server's table and all coalitions."""
    transcript = Transcript.open(folder)

    def read(hashes):
        state = transcript.head_state(hashes)
        return [state[name].astype(float) for name in ("0.weight", "0.bias", "2.weight", "2.bias")]

    table = {name: np.zeros((len(labels), width)) for name, width in widths.items()}
    tables, states = [list(table.values())], [read(transcript.description.head.state)]
    for record in transcript.records():
        if isinstance(record, Upload):
            table[record.client] = table[record.client].copy()
            table[record.client][record.samples] = record.embeddings
        elif isinstance(record, Stamp):
            tables.append(list(table.values()))
            # A stamp without a state is of a round in which the network did not move.
            states.append(read(record.state) if record.state else states[-1])
    n, rows = len(widths) + 1, []
    for t in range(len(tables) - 1):
        gains = {}
        for members in itertools.product((0, 1), repeat=n):
            x = np.hstack([tables[t + moved][m] for m, moved in enumerate(members[:-1])])
            gains[members] = -np.logaddexp(0, -(2 * labels - 1) * scores_of(states[t + members[-1]], x)).mean()
        row = np.zeros(n)
        for members, gain in gains.items():
            size = sum(members)
            for m in range(n):
                weight = 1 / (n * math.comb(n - 1, size - members[m]))
                row[m] += weight * gain if members[m] else -weight * gain
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_values_under_a_network_are_those_of_all_coalitions(tmp_path, mode):
    """Zeros stand where a client has not joined yet, and the last embeddings of one that left stay in the table."""
    pytest.importorskip("torch")
    own = "rounds = 6" if mode == "synchronous" else "mode = 'asynchronous'\nduration = 0.24\nperiod = 0.04"
    # In synchronous rounds of all samples, nothing has to be completed.
    batch = "batch_size = 127" if mode == "synchronous" else "batch_size = 20"
    text = SYNCHRONOUS.replace(CLIENTS, "").replace("[training]", HEAD).replace("clients = 5", "clients = 4")
    text = text.replace("rounds = 12", own).replace("batch_size = 20", batch)
    run = make(tmp_path, text.replace("[output]", "[valuation]\nmethod = 'exact'\n[output]"))
    finish(run)
    labels = run.data.targets[~run.data.is_test]
    assert len(labels) == 127
    widths = {"client 1": 2, "client 2": 3, "client 3": 2, "client 4": 2}
    expected = values_under_a_network(run.folder, labels, widths)
    result = run.value()
    assert sorted(result.clients) == sorted(widths)
    order = [list(widths).index(name) for name in result.clients]
    np.testing.assert_allclose(result.per_round, expected[:, order], atol=1e-12)
    np.testing.assert_allclose(result.per_round_server, expected[:, -1], atol=1e-12)
    by_name = dict(zip(result.clients, result.per_round.T, strict=True))
    assert not by_name["client 2"][:2].any()
    assert by_name["client 2"][3:].all()  # linear models start at zero, so its first upload changes nothing
    assert not by_name["client 3"][4:].any()
    assert by_name["client 3"][1:4].all()


@both_modes_and_heads
def test_models_of_those_who_left(tmp_path, text):
    """Each client's model is that of its last checkpoint, also if it left; predictions need all of them or none."""
    finish(make(tmp_path, text), should_stop=stop_at(10))
    finish(make(tmp_path, text), resume=True)
    folder = RunFolder(tmp_path / "out")
    predictor = read_predictor(folder, "used")
    rounds = {name: predictor.rounds[name] for name in predictor.clients}
    assert rounds["client 5"] == N_ROUNDS
    assert 8 <= rounds["client 3"] <= 10
    for name in predictor.clients:
        assert read_model(folder, predictor, name).n_rounds == rounds[name]


@pytest.mark.parametrize("evaluate_every", [1, 6])
def test_the_mean_of_who_left_is_that_of_its_model(tmp_path, monkeypatch, evaluate_every):
    """When it last took part in an evaluation, else of what it uploaded; never of the server's zeros."""
    evaluated, evaluate = {}, Server.evaluate

    def keep(server, predictions):
        found = evaluate(server, predictions)
        evaluated[found.n_rounds] = found.of_clients[1].mean(axis=0)
        return found

    monkeypatch.setattr(Server, "evaluate", keep)
    leaves = '[[client]]\nname = "client 2"\nleaves_after = 3\n'
    text = SYNCHRONOUS.replace(CLIENTS, leaves).replace("evaluate_every = 4", f"evaluate_every = {evaluate_every}")
    run = make(tmp_path, text)
    finish(run)
    found = read_predictor(RunFolder(run.folder), "used").means["client 2"]
    uploads = [r for r in Transcript.open(run.folder).records() if isinstance(r, Upload) and r.client == "client 2"]
    rows = np.array([row for r in uploads for row in r.embeddings if row.any()])
    expected = evaluated[3] if evaluate_every == 1 else rows.mean(axis=0)
    assert len(uploads) == 3
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_no_model_of_who_never_joined(tmp_path):
    """If patience ends the training before, its name is known, and predictions take zeros for it."""
    text = SYNCHRONOUS.replace("evaluate_every = 4", "evaluate_every = 1\npatience = 1")
    text = text.replace("rate = 0.5", "rate = 30.0").replace("joins_after = 5\nleaves_after = 9", "joins_after = 11")
    finish(make(tmp_path, text))
    folder = RunFolder(tmp_path / "out")
    predictor = read_predictor(folder, "used")
    with pytest.raises(InputError, match=r"'client 4' has no model in .*: the training ended before it joined"):
        read_model(folder, predictor, "client 4")


def test_patience_begins_again_when_clients_leave(tmp_path):
    """The test loss rises because a client's embeddings are gone, which is no reason to end; also after a stop."""
    leaves = '[[client]]\nname = "client 4"\nleaves_after = 12\n'
    options = "rounds = 40\npatience = 3\nmin_improvement = 0.03"
    text = (
        SYNCHRONOUS.replace(CLIENTS, leaves).replace("rounds = 12", options).replace("samples = 200", "samples = 600")
    )
    text = text.replace("evaluate_every = 4", "evaluate_every = 2").replace("rate = 0.5", "rate = 0.2")
    text = text.replace("batch_size = 20", "batch_size = 400")
    finish(make(tmp_path, text), should_stop=stop_at(16))
    folder = RunFolder(tmp_path / "out")
    assert folder.extent(Transcript.open(folder.path)) == Extent(16, 40, is_running=False)
    run = make(tmp_path, text)
    finish(run, resume=True)
    measured = read_metrics(folder.metrics_path)
    losses = {int(each["n_rounds"]): each["test_loss"] for each in measured}
    assert losses[14] > losses[12] + 0.03
    assert Patience(3, 0.03).is_over([loss for number, loss in losses.items() if number <= 14])
    assert max(losses) == 20  # the first evaluation without the client, and three that are not much better
    assert losses[14] - 0.03 < min(losses[16], losses[18], losses[20])
    assert folder.extent(Transcript.open(folder.path)) == Extent(20, 20, is_running=False)
    notes = run.note_progress()
    assert any(note.startswith("training ended early, as agreed") for note in notes)
    assert any(note.startswith("'client 4' left before the end") for note in notes)


def test_nobody_left_a_training_that_ended_before(tmp_path):
    """A client that would have left after the round in which patience ended the training."""
    leaves = '[[client]]\nname = "client 4"\nleaves_after = 38\n'
    text = SYNCHRONOUS.replace(CLIENTS, leaves).replace(
        "rounds = 12", "rounds = 40\npatience = 1\nmin_improvement = 5.0"
    )
    run = make(tmp_path, text)
    finish(run)
    folder = RunFolder(tmp_path / "out")
    assert folder.extent(Transcript.open(folder.path)).n_planned < 38
    notes = run.note_progress()
    assert any(note.startswith("training ended early, as agreed") for note in notes)
    assert not any("left before the end" in note for note in notes)


def test_predictions_and_models_of_a_network(tmp_path):
    """Commands work for who joined later and for who left, with the files of all clients or of one; they say when."""
    pytest.importorskip("torch")
    from tests.runs.test_heads import write_credit

    text = write_credit(tmp_path).replace('id = "key"', 'id = "key"\njoins_after = 3')
    text = text.replace('file = "shop.csv"', 'file = "shop.csv"\nleaves_after = 8')
    run = make(tmp_path, text)
    finish(run)
    names = ("bank", "telco", "shop")
    for given in (names, ("shop",)):
        files = [part for name in given for part in ("--features", f"{name}={tmp_path / name}.csv")]
        done = call("predict", run.folder, *files, "-o", tmp_path / f"{len(given)}.csv")
        assert done.returncode == 0, done.stderr
        assert len((tmp_path / f"{len(given)}.csv").read_text().splitlines()) == 161
    for name in names:
        done = call("model", run.folder, "--client", name, "-o", tmp_path / f"{name}.npz")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"{name}.npz").is_file()
        when = "as of its last round, 8" if name == "shop" else "from the checkpoint after round 12"
        assert done.stdout.endswith(f"{when}\n")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("joins_after = 12", "joins_after.*must be less than the number of rounds, 12"),
        ("joins_after = 5\nleaves_after = 5", "leaves_after.*must be more than joins_after, 5"),
        ("joins_after = 0", "joins_after"),
        ("misses = [[1, 2]]", "misses.*must begin after the client's first round, 1; .*set joins_after = 2"),
        ("misses = [[5, 12]]", "misses.*must end before the client's last round, 12.*set leaves_after = 4"),
        ("misses = [[5, 4]]", "misses.*must be pairs of a first and a last round"),
        ("misses = 1.0", "misses.*should be a list of pairs"),
        ("misses = 'often'", "misses.*should be a list of pairs"),
    ],
)
def test_plans_that_cannot_be_carried_out(tmp_path, settings, says):
    """The message names the client and the setting, and nothing is written."""
    text = SYNCHRONOUS.replace(CLIENTS, f'[[client]]\nname = "client 2"\n{settings}\n')
    with pytest.raises(InputError, match=f"(?s)client.*{says}"):
        finish(make(tmp_path, text))
    assert not (tmp_path / "out").exists()


def test_every_round_needs_a_client(tmp_path):
    """All that take part in a round cannot miss it; nothing is written."""
    both = "".join(f'[[client]]\nname = "client {k}"\nmisses = [[4, 5]]\n' for k in (1, 2))
    text = SYNCHRONOUS.replace(CLIENTS, both).replace("clients = 5", "clients = 2")
    with pytest.raises(InputError, match="nobody takes part in round 4, and every round needs at least one client"):
        finish(make(tmp_path, text))
    late = text.replace("misses = [[4, 5]]", "joins_after = 2")
    with pytest.raises(InputError, match="nobody takes part in round 1"):
        finish(make(tmp_path, late))
    assert not (tmp_path / "out").exists()


def test_the_first_round_needs_an_upload_if_the_plan_counts_from_it(tmp_path):
    """In asynchronous training whose founders upload later than that, nothing could be recorded of joining."""
    slow = "".join(f'[[client]]\nname = "client {k}"\nperiod = 0.1\n' for k in (2, 3, 4, 5))
    text = ASYNCHRONOUS.replace(CLIENTS, f'[[client]]\nname = "client 1"\njoins_after = 3\n{slow}')
    with pytest.raises(InputError, match="client 'client 1' joins, leaves or misses rounds, so a client"):
        finish(make(tmp_path, text))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", [SYNCHRONOUS, ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
def test_everything_says_when_clients_took_part(tmp_path, text):
    """The table of values, report, settlement, statement and audit; and nothing extra of who was always there."""
    finish(make(tmp_path, text))
    out, key = tmp_path / "out", tmp_path / "server.key"
    stays = {"client 2": "rounds 4 to 12, missed 2 of these", "client 4": "rounds 6 to 9"}
    assert call("keys", "new", key.with_suffix("")).returncode == 0
    signed, payouts = tmp_path / "statement.json", tmp_path / "payouts.json"
    calls = {
        "value": ["value", out],
        "report": ["report", out, "-o", tmp_path / "r.md"],
        "settle": ["settle", out, "--budget", "100", "--currency", "EUR", "--negative", "zero", "-o", payouts],
        "statement": ["statement", out, "--key", key, "--settlement", payouts, "-o", signed],
        "audit": ["audit", signed],
    }
    for name, command in calls.items():
        done = call(*command)
        page = (tmp_path / "r.md").read_text() if name == "report" else ""
        said = " ".join(f"{done.stdout} {done.stderr} {page}".split())
        assert done.returncode == 0, (name, said)
        for client in stays:
            assert client in said, name
        if name != "value":  # its table is narrow
            assert all(when in said for when in stays.values()), (name, said)
            assert "'client 5': " not in said
    for path in (signed, payouts):
        stated = json.loads(path.read_text())["took_part"]
        assert {name: stated[name] for name in stays} == stays
        assert "client 5" not in stated
    command = [part if part != payouts else tmp_path / "payouts.csv" for part in calls["settle"]]
    assert call(*command).returncode == 0
    table = (tmp_path / "payouts.csv").read_text()
    assert all(f'"took part: {name}","{when}"' in table for name, when in stays.items())
    payouts.write_text(payouts.read_text().replace("rounds 6 to 9", "rounds 6 to 8"))
    refused = call(*calls["statement"][:-1], tmp_path / "again.json")
    assert refused.returncode == 2
    assert "who took part when" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("what", ["statement", "extract"])
def test_a_statement_cannot_leave_out_who_missed_rounds(tmp_path, what):
    """Although it is signed; that another version wrote it is a reservation, as early ones did not say it."""
    finish(make(tmp_path, SYNCHRONOUS))
    out, key = tmp_path / "out", tmp_path / "server.key"
    for command in (
        ("keys", "new", key.with_suffix("")),
        ("statement", out, "--key", key),
        ("extract", out, "--client", "client 5", "-o", tmp_path / "own.extract"),
    ):
        assert call(*command).returncode == 0
    path, private = out / "statement.json", read_private_key(key)
    signed = Statement.read(path)
    target = {"statement": [path], "extract": [tmp_path / "own.extract", "--statement", path]}[what]

    def audited(**changes):
        content = {**signed.content, **changes}
        if content["took_part"] is None:
            del content["took_part"]
        path.write_bytes(Statement(content, private.sign(canonical(content))).to_json())
        done = call("audit", *target)
        return done.returncode, " ".join(done.stdout.split())

    assert audited()[0] == 0
    says = 'took_part, client 1: the statement says "not stated", the transcript'
    for left_out in (None, {}, {"client 4": "rounds 6 to 9"}):
        code, said = audited(took_part=left_out)
        assert code == 1
        assert says in said
    code, said = audited(took_part=None, package="verfedsv 0.0.1")
    assert code == 3
    assert f"reservation: {says}" in said
    assert audited(took_part={}, package="verfedsv 0.0.1")[0] == 1
