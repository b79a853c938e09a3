"""Trainings cut into pieces on disk have the values of those in memory, to the last bit, and can be interrupted."""

import pickle
import re
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from tests import stores
from tests.trainings import train
from tests.valuation.small_trainings import small_training
from tests.valuation.test_values import Asynchronous, SerialExecutor
from verfedsv import InputError, Recorder, Transcript, Valuation, value
from verfedsv.completion.observations import HeldOut, Pattern
from verfedsv.losses import Logistic
from verfedsv.valuation import limits, partitioned
from verfedsv.valuation.limits import BASE, Cuts, Partitioning
from verfedsv.valuation.scratch import FOLDER, Scratch
from verfedsv.valuation.trainings import RecordedTraining

pytestmark = pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")

SAME = "values", "errors", "per_round", "per_round_errors", "losses", "per_round_server"


@pytest.fixture
def in_small_pieces(monkeypatch):
    """Cut parts into three pieces, and let a task read three rounds."""
    monkeypatch.setattr(Partitioning, "n_pieces", lambda *_: 3)
    monkeypatch.setattr(limits, "cut_rounds", lambda sizes, _: split_rounds(len(sizes)))


def split_rounds(n_rounds):
    """Return rounds by threes."""
    return [slice(t, min(t + 3, n_rounds)) for t in range(0, n_rounds, 3)]


def copied(recorder, path):
    """Write the training of a recorder in memory to a folder."""
    transcript = recorder.transcript
    about = transcript.description
    options = {"n_classes": about.n_classes} if about.loss == "softmax" else {}
    with Recorder(path, transcript.labels, about.clients, about.loss, **options) as written:
        uploads = {}
        for record in transcript:
            kind = type(record).__name__
            if kind == "Join":
                written.join(record.client)
            elif kind == "Upload":
                uploads[record.client] = record
            else:
                batches = {name: upload.samples for name, upload in uploads.items()}
                written.log(batches, {n: u.embeddings for n, u in uploads.items()}, absent=record.absent)
                uploads = {}
    return path


def assert_same(first, second):
    """Two valuations agree to the last bit."""
    for name in SAME:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
    assert first.completion == second.completion
    assert first.methods == second.methods
    assert (first.n_samples, first.n_unseen) == (second.n_samples, second.n_unseen)


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize(
    ("training", "options"),
    [
        (lambda: train(n_samples=300, batch=70, n_epochs=3), {}),
        (lambda: train("softmax", n_samples=203, batch=40, n_epochs=3, intercept=True), {"rank": 3}),
        (
            lambda: train("squared", n_samples=120, batch=30, n_epochs=3, intercept=True),
            {"rank": 2, "rows": [3, 5, 99]},
        ),
        (lambda: train(n_samples=40, batch=40, n_epochs=5, intercept=True, rate=4.0), {}),
        (lambda: Asynchronous("softmax", n_samples=40, offset=True), {}),
        (lambda: Asynchronous(n_samples=50, step=2.0), {"method": "auto", "seed": 3}),
    ],
)
def test_pieces_change_no_bit(tmp_path, training, options):
    """Synchronous and asynchronous, completed or not, refined or not: values, errors and reports are the same."""
    training().record(tmp_path).close()
    expected = value(tmp_path, **options)
    assert_same(value(tmp_path, memory="4GB", **options), expected)
    with ThreadPoolExecutor(3) as threads:
        assert_same(value(tmp_path, executor=threads, **options), expected)
    assert not (tmp_path / FOLDER).exists()


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize("most", [1, 300])
@pytest.mark.parametrize("method", ["auto", "permutation", "closed-form"])
def test_uploads_are_valued_some_rounds_at_a_time(tmp_path, monkeypatch, method, most):
    """A chunk with many rounds does not hold them all; rounds that are refined are in some of the parts only."""
    Asynchronous(n_samples=60, n_rounds=9, step=2.0).record(tmp_path).close()
    options = {"method": method, "seed": 3, "rows": [*range(0, 60, 3), 1, 59]}
    expected = value(tmp_path, **options)
    monkeypatch.setattr("verfedsv.valuation.pieces.MOST_NUMBERS", most)
    monkeypatch.setattr("verfedsv.valuation.chunks.MOST_ELEMENTS", most)
    assert_same(value(tmp_path, executor=SerialExecutor(), **options), expected)


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize("seed", [1, 4, 6, 7, 11, 12])
def test_clients_with_samples_of_their_own_join_and_miss_rounds(tmp_path, seed):
    """Random trainings, with and without a common batch: completed clients and others, samples that nobody uploaded."""
    recorder, _ = small_training(seed)
    copied(recorder, tmp_path)
    options = {"rank": 2}
    assert_same(value(tmp_path, executor=SerialExecutor(), **options), value(tmp_path, **options))


@pytest.mark.parametrize("first", [0, 1])
def test_an_offset_by_sample_is_completed(tmp_path, first):
    """The server's own part is one more player with uploads, also if it is the same for all samples in some rounds."""
    training = train(n_samples=90, batch=30, n_epochs=4)
    rng = np.random.default_rng(0)
    with Recorder(tmp_path, training.labels, training.clients) as recorder:
        for t, batch in enumerate(training.batches):
            uploads = {name: training.embeddings[t, m, batch] for m, name in enumerate(training.clients)}
            recorder.log(batch, uploads, offset=0.01 * (t + first) * rng.normal(size=(90, 1))[batch])
    assert_same(value(tmp_path, memory="1GB", rank=2), value(tmp_path, rank=2))


def test_what_is_held_out_can_be_drawn_in_parts():
    """Any part of the uploads gets the same draws as all at once."""
    rng = np.random.default_rng(5)
    for n_last in (20, 21):
        batches = [rng.permutation(50)[:n] for n in (10, n_last, 0, 30, 5)]
        pattern = Pattern.from_batches(batches, 50)
        draws = HeldOut(0.5, 3, len(pattern.rounds), 50)
        whole = draws.among(0, 0, pattern.starts)
        for first in range(1, 49):
            starts = pattern.starts[first:]
            part = draws.among(int(starts[0]), first, starts - starts[0])
            np.testing.assert_array_equal(part, whole[starts[0] :])


class Stop(Exception):  # noqa: N818
    """Ends a valuation in the middle."""


@pytest.mark.usefixtures("in_small_pieces")
def test_an_interrupted_valuation_is_continued(tmp_path, monkeypatch):
    """Stopped at any step or sweep, it goes on with what it had, to the same bits; no sweep is made twice."""
    train(n_samples=300, batch=70, n_epochs=3).record(tmp_path).close()
    expected = value(tmp_path)
    sweep, counts = partitioned.StoredSolver._sum_equations, {"made": 0, "allowed": 0}

    def count(*given):
        if counts["made"] == counts["allowed"]:
            raise Stop
        counts["made"] += 1
        return sweep(*given)

    monkeypatch.setattr(partitioned.StoredSolver, "_sum_equations", count)
    for step in (2, 10, 30):
        with pytest.raises(Stop):
            value(tmp_path, memory="4GB", resume=True, progress=stop_at(step))
    for counts["allowed"] in (3, 20, 45):
        with pytest.raises(Stop):
            value(tmp_path, memory="4GB", resume=True)
    counts["allowed"] = 1000
    with pytest.raises(Stop):
        value(tmp_path, memory="4GB", resume=True, progress=stop_at(56))
    assert_same(value(tmp_path, memory="4GB", resume=True), expected)
    assert counts["made"] == sum(report.n_sweeps for report in expected.completion)
    assert not (tmp_path / FOLDER).exists()


def stop_at(step):
    """Return a progress that stops at a step."""

    def progress(done, _total):
        if done >= step:
            raise Stop

    return progress


def test_work_of_another_valuation_is_not_continued(tmp_path):
    """With other settings it begins anew, or not at all."""
    train(n_samples=60, batch=20, n_epochs=2).record(tmp_path / "run").close()
    scratch = tmp_path / "scratch"
    with pytest.raises(Stop):
        value(tmp_path / "run", rank=2, scratch=scratch, progress=stop_at(1))
    with pytest.raises(InputError, match="holds the work of another valuation, with another rank; continue"):
        value(tmp_path / "run", rank=3, scratch=scratch, resume=True)
    assert_same(value(tmp_path / "run", rank=3, scratch=scratch), value(tmp_path / "run", rank=3))
    assert not scratch.exists()


class Scaled(Logistic):
    """A loss of the user's own, whose name does not say what it computes."""

    name, rounding_is_bounded, lipschitz = "own", False, 3.0

    def __init__(self, scale=1.0):
        self.scale = scale

    def value(self, x, labels):
        """Return the loss of each sample, some of it linear."""
        return super().value(x, labels) + self.scale * x[..., 0]

    def gradient(self, x, labels):
        """Return the gradient."""
        return super().gradient(x, labels) + self.scale


def test_work_with_another_loss_is_not_continued(tmp_path):
    """One of the same name that computes something else; with the same one it goes on."""
    training = train(n_samples=60, batch=20, n_epochs=2)
    with Recorder(tmp_path, training.labels, training.clients, Scaled()) as recorder:
        for t, batch in enumerate(training.batches):
            recorder.log(batch, {name: training.embeddings[t, m, batch] for m, name in enumerate(training.clients)})
    with pytest.raises(Stop):
        value(tmp_path, rank=2, loss=Scaled(), memory="4GB", progress=stop_at(18))
    with pytest.raises(InputError, match="another valuation, with another loss; continue with the same"):
        value(tmp_path, rank=2, loss=Scaled(1.0001), memory="4GB", resume=True)
    kept = tmp_path / FOLDER
    assert_same(
        value(tmp_path, rank=2, loss=Scaled(), memory="4GB", resume=True, progress=still_in(kept)),
        value(tmp_path, rank=2, loss=Scaled()),
    )


def still_in(folder):
    """Return a progress that checks that some pieces are never written again."""
    [work] = folder.glob("valuation-*")
    pieces = {path.name: path.stat().st_mtime_ns for path in work.glob("piece-*")}
    assert pieces

    def progress(_done, _total):
        for name, written in pieces.items():
            assert all(path.stat().st_mtime_ns == written for path in folder.glob(f"valuation-*/{name}"))

    return progress


def test_work_that_repeats_another_completion_is_not_continued(tmp_path):
    """A valuation to repeat belongs to what it was repeated for."""
    train(n_samples=60, batch=20, n_epochs=2).record(tmp_path).close()
    one, two = (value(tmp_path, rank=rank) for rank in (1, 2))
    with pytest.raises(Stop):
        value(tmp_path, like=one, memory="4GB", progress=stop_at(18))
    for like in (two, None):
        with pytest.raises(InputError, match="another valuation, with another like"):
            value(tmp_path, like=like, memory="4GB", resume=True)
    again = Valuation.from_json(one.to_json())
    assert_same(value(tmp_path, like=again, memory="4GB", resume=True), value(tmp_path, like=one))


@pytest.mark.parametrize(("synchronous", "n_pieces"), [(True, 3), (True, 2), (False, 3)])
def test_work_is_continued_as_it_was_cut(tmp_path, monkeypatch, synchronous, n_pieces):
    """With other rounds in a task, and as many pieces or fewer: other memory or cores would cut it so."""
    training = train(n_samples=300, batch=70, n_epochs=3) if synchronous else Asynchronous(n_samples=50)
    training.record(tmp_path).close()
    options = {"memory": "4GB"} if synchronous else {"memory": "4GB", "method": "closed-form"}
    monkeypatch.setattr(Partitioning, "n_pieces", lambda *_: 3)
    monkeypatch.setattr(limits, "cut_rounds", lambda sizes, _: split_rounds(len(sizes)))
    expected = value(tmp_path, **options)
    with pytest.raises(Stop):
        value(tmp_path, progress=stop_at(-(-expected.n_rounds // 3) + 20), **options)
    monkeypatch.setattr(limits, "cut_rounds", lambda sizes, _: [slice(0, 2), slice(2, len(sizes))])
    monkeypatch.setattr(Partitioning, "n_pieces", lambda *_: n_pieces)
    check = still_in(tmp_path / FOLDER)
    assert_same(value(tmp_path, resume=True, progress=check, **options), expected)


def test_too_little_memory_for_what_was_cut_is_named(tmp_path, monkeypatch):
    """Work cut for 80 GB does not fit in 27 GB; what the error asks for is enough."""
    train(n_samples=300, batch=70, n_epochs=3).record(tmp_path).close()
    expected, sizes = value(tmp_path), Transcript.open(tmp_path).n_bytes_of_rounds
    monkeypatch.setattr(Transcript, "n_bytes_of_rounds", property(lambda _: sizes * (10**11 // sizes.sum())))
    threads = {"executor": SerialExecutor()}
    with pytest.raises(Stop):
        value(tmp_path, memory="80GB", progress=stop_at(30), **threads)
    with pytest.raises(InputError, match=r"too little memory to go on with .*; give as much, or begin anew") as error:
        value(tmp_path, memory="27GB", resume=True, **threads)
    needed = re.search(r"need ([\d,]+) MB; give", str(error.value))[1].replace(",", "")
    assert_same(value(tmp_path, memory=f"{needed} MB", resume=True, **threads), expected)


def test_an_error_that_no_resume_could_mend_leaves_nothing(tmp_path):
    """Here nobody uploaded what is to be valued."""
    with Recorder(tmp_path, [0, 1, 1, 0], ["bank", "telco"]) as recorder:
        for _ in range(3):
            recorder.log([0, 1, 2], {"bank": np.ones(3), "telco": np.zeros(3)})
    with pytest.raises(InputError, match="no client uploaded any of the selected rows"):
        value(tmp_path, rows=[3], memory="4GB")
    assert not (tmp_path / FOLDER).exists()


def test_the_largest_round_is_named_where_it_needs_the_memory():
    """Not where any task would need as much."""
    limits = Partitioning(BASE, Path("scratch"), resume=False, at_once=2)
    with pytest.raises(InputError, match=r"need 900 MB or more, as the largest round has 100\.0 MB$"):
        limits.check(100_000_000)
    with pytest.raises(InputError, match=r"need 400 MB or more$"):
        limits.check(10_000_000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "much"}, "memory must be a number of bytes, or such as '4GB'; received 'much'"),
        ({"memory": True}, "memory must be a number of bytes"),
        ({"memory": "9" * 400}, "memory must be a number of bytes, or such as '4GB'; received '9{40}'$"),
        ({"memory": 10**5000}, "memory must be a number of bytes, or such as '4GB'; received 'inf'$"),
        ({"memory": "0 GB"}, "memory must be a number of bytes"),
        ({"memory": "300MB"}, "too little memory: 300 MB, where .* need [0-9,]* MB or more$"),
        ({"scratch": "/proc/verfedsv", "memory": "4GB"}, "cannot write to /proc/verfedsv: .* choose a scratch folder"),
    ],
)
def test_bad_options(tmp_path, options, message):
    """Each is named, with what is allowed."""
    train(n_samples=60, batch=20, n_epochs=2).record(tmp_path).close()
    with pytest.raises(InputError, match=message):
        value(tmp_path, **options)


def test_what_is_in_memory_is_not_cut(tmp_path):
    """A transcript in memory, and a valuation that continues another, say so."""
    training = train(n_samples=60, batch=20, n_epochs=2)
    recorder = training.record()
    with pytest.raises(InputError, match="a transcript in memory is valued in memory; leave out memory"):
        value(recorder, memory="4GB")
    training.record(tmp_path).close()
    with pytest.raises(InputError, match="a valuation that continues an earlier one is valued in memory"):
        value(tmp_path, since=value(tmp_path, rank=2), rank=2, resume=True)


def test_a_worker_that_cannot_take_part_says_why(tmp_path, monkeypatch):
    """Another version, or a folder that it does not see."""
    with Scratch.begin(tmp_path / "scratch", {}, resume=False) as scratch:
        sent = pickle.dumps(scratch)
        assert pickle.loads(sent) == scratch  # noqa: S301  # our own
        monkeypatch.setattr("verfedsv.valuation.scratch.__version__", "0.0.1")
        with pytest.raises(InputError, match=r"has verfedsv 0\.0\.1, the driver .*; install the same version"):
            pickle.loads(sent)  # noqa: S301
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"cannot see .*scratch.*; run and scratch folder must be on a file system"):
        pickle.loads(sent)  # noqa: S301


def test_tasks_keep_to_their_memory(tmp_path):
    """The more memory, the fewer pieces; a task's rounds and pieces fit in what it may take."""
    train(n_samples=300, batch=100, n_epochs=8).record(tmp_path).close()
    transcript = Transcript.open(tmp_path)
    training = RecordedTraining(transcript)
    sizes = transcript.n_bytes_of_rounds
    files = sum(path.stat().st_size for path in tmp_path.glob("uploads-*.arrows"))
    assert files - 2000 < sizes.sum() <= files
    cuts = Cuts.of(training, Partitioning(400_000_000, tmp_path, resume=False, at_once=1))
    assert len(cuts.edges) == 17
    small = Partitioning(BASE + 10_000, tmp_path, resume=False, at_once=1)
    assert small.n_pieces(int(sizes.sum())) * 16 * small.of_task >= 5 * sizes.sum()
    assert cuts.edges[-1] == 300


def test_workers_read_an_object_store(tmp_path):
    """Other processes read a transcript in S3 themselves; the pieces need a folder, which has to be named."""
    training = train(n_samples=90, batch=30, n_epochs=3)
    with stores.serving() as store:
        uri = store.uri("run")
        training.record(uri).close()
        expected = value(uri, rank=1)
        with pytest.raises(InputError, match="is no folder to work in; choose a scratch folder"):
            value(uri, memory="4GB")
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
            assert_same(value(uri, rank=1, executor=processes, scratch=tmp_path / "scratch"), expected)
