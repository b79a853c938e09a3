"""Transcripts in an object store, on moto's S3 server."""

import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress

import numpy as np
import pytest

from tests.stores import KEYS, serving
from tests.transcript.test_recorder import Linear, as_rows
from verfedsv import value
from verfedsv.errors import CompletionWarning, InputError, TranscriptError, TranscriptWarning
from verfedsv.transcript import Recorder, Transcript
from verfedsv.transcript.objects import ObjectStorage, ObjectStream

LABELS, CLIENTS = np.arange(12) % 2, ["bank", "telco"]
UPLOADS, CHAIN = "uploads-{:05}.arrows".format, "chain-{:05}.bin".format


@pytest.fixture(scope="module")
def store():
    with serving() as store:
        yield store


@pytest.fixture
def folder(request):
    """Return the name of a folder that no other test uses."""
    return re.sub("[^a-z0-9]+", "-", request.node.name) + "/run"


def record(path, n_rounds, first=0, mode="synchronous", recorder=None, **options):
    """Record rounds from `first` on, the same in every place, and return the recorder, which stays open."""
    recorder = recorder or Recorder(path, LABELS, CLIENTS, **{"segment_rounds": 3, "resume": first > 0, **options})
    for number in range(first, n_rounds):
        rng = np.random.default_rng(number)
        samples, uploads = rng.permutation(12)[:5], {name: rng.normal(size=5) for name in CLIENTS}
        if mode == "synchronous":
            recorder.log(samples, uploads)
            continue
        for name, embeddings in uploads.items():
            recorder.update(name, samples, embeddings, time=number)
        recorder.stamp(time=number)
    return recorder


def written(path, *arguments, **options):
    """Record, close, and return the place."""
    record(path, *arguments, **options).close()
    return path


def arrived(content):
    """Return what was sent to another process."""
    return pickle.loads(content)  # noqa: S301  # our own


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_store_holds_what_a_folder_would(store, folder, tmp_path, mode):
    """Record for record and file for file, so that one can be copied to the other."""
    uri = written(store.uri(folder), 8, mode=mode)
    local = Transcript.open(written(tmp_path, 8, mode=mode))
    there = Transcript.open(uri)
    assert there.verify().n_rounds == 8
    assert there.location == uri
    assert as_rows(there) == as_rows(local)
    with warnings.catch_warnings(action="ignore", category=CompletionWarning):
        assert np.array_equal(value(uri).values, value(local).values)
    assert set(store.names(folder)) | {".lock"} == {path.name for path in tmp_path.iterdir()}
    for name, content in store.contents(folder).items():
        assert name in ("transcript.json",) or len(content) == (tmp_path / name).stat().st_size
    copied = tmp_path / "copied"
    copied.mkdir()
    for name, content in store.contents(folder).items():
        (copied / name).write_bytes(content)
    assert Transcript.open(copied).verify().link.hex() == there.head


def test_parameters_of_a_head_are_objects(store, folder):
    """Each in an object named by its hash, read when its state is asked for."""
    head = Linear()
    with Recorder(store.uri(folder), LABELS, CLIENTS, head=head, widths={"bank": 2, "telco": 3}) as recorder:
        for number in range(3):
            head.bias = head.bias + 1
            recorder.log([number], {"bank": [[1.0, 2.0]], "telco": [[1.0, 2.0, 3.0]]})
    there = Transcript.open(store.uri(folder))
    assert there.verify().n_rounds == 3
    last = [*there][-1]
    assert there.head_state(last.state)["bias"].tolist() == [3.0, 3.0]
    assert arrived(pickle.dumps(there.head_reader))(last.state)["bias"].tolist() == [3.0, 3.0]
    store.delete(f"{folder}/tensors/{last.state[1]}.npy")
    with pytest.raises(TranscriptError, match=r"tensors/.*\.npy is missing"):
        there.head_state(last.state)


def test_a_run_may_have_its_transcript_in_a_subfolder(store, folder):
    """As in folders; two transcripts are an error."""
    written(store.uri(f"{folder}/transcript"), 4)
    assert Transcript.open(store.uri(folder)).n_rounds == 4
    written(store.uri(folder), 4)
    with pytest.raises(
        TranscriptError, match=rf"two transcripts, in s3://bucket/{folder} and in s3://bucket/{folder}/tr"
    ):
        Transcript.open(store.uri(folder))


def test_the_open_segment_is_in_the_store_after_sync_and_close(store, folder):
    """And before that only full segments; the recorder itself reads everything."""
    uri = store.uri(folder)
    recorder = record(uri, 5)
    assert (recorder.transcript.n_rounds, Transcript.open(uri).n_rounds) == (5, 3)
    assert recorder.transcript.verify().n_rounds == 5
    recorder.sync()
    assert Transcript.open(uri).verify().n_rounds == 5
    record(uri, 8, 5, recorder=recorder)
    assert Transcript.open(uri).verify().n_rounds == 6
    recorder.close()
    assert Transcript.open(uri).verify().n_rounds == 8
    assert as_rows(Transcript.open(uri)) == as_rows(record(None, 8, resume=None).transcript)


def test_recorders_continue_one_another(store, folder):
    """Wherever the earlier one stopped, and nothing is written if nothing was recorded."""
    uri = store.uri(folder)
    for first in range(5):
        record(uri, first + 1, first).close()
        before = store.contents(folder)
        record(uri, first + 1, first + 1).close()
        assert store.contents(folder) == before
    assert as_rows(Transcript.open(uri)) == as_rows(record(None, 5, resume=None).transcript)
    assert Transcript.open(uri).verify().n_rounds == 5


class Killed(BaseException):
    """The end of a process."""


def record_until(uri, monkeypatch, n_puts):
    """Record five rounds, with `sync` after the first, until killed after so many writes; return how many are kept."""
    put, left, kept = ObjectStorage._put, [None] * n_puts, 0

    def put_or_die(self, name, content):
        if not left:
            raise Killed
        left.pop()
        put(self, name, content)

    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(ObjectStorage, "_put", put_or_die)
        recorder = Recorder(uri, LABELS, CLIENTS, segment_rounds=2)
        for number in (1, 2, 3, 4, 5):
            record(uri, number, number - 1, recorder=recorder)
            if number == 1:
                recorder.sync()
            kept = {1: 1, 2: 2, 4: 4}.get(number, kept)
        recorder.close()
        kept = 5
    return kept


def test_killed_at_any_write_a_recorder_loses_the_open_segment_alone(store, folder, monkeypatch):
    """Everything that was sealed or synced is valid, and another recorder continues from there."""
    kept, n_puts, expected = 0, 2, as_rows(record(None, 5, resume=None).transcript)  # two for labels and description
    while kept < 5:
        uri = store.uri(f"{folder}/{n_puts}")
        kept = record_until(uri, monkeypatch, n_puts)
        there = Transcript.open(uri)
        assert there.verify(is_growing=True).n_rounds == there.n_rounds >= kept
        with warnings.catch_warnings(action="ignore", category=TranscriptWarning):  # that something was cut off
            recorder = Recorder(uri, LABELS, CLIENTS, segment_rounds=2, resume=True)
        assert recorder.n_rounds == there.n_rounds
        record(uri, 5, recorder.n_rounds, recorder=recorder).close()
        assert Transcript.open(uri).verify().n_rounds == 5
        assert as_rows(Transcript.open(uri)) == expected
        n_puts += 1
    assert n_puts == 14


def test_a_recorder_is_killed(store, folder):
    """In the middle of a training: an audit of the hashes passes, up to the last full segment."""
    uri = store.uri(folder)
    code = f"from tests.transcript.test_objects import record\nrecord({uri!r}, 10**6)"
    process = subprocess.Popen([sys.executable, "-c", code])  # noqa: S603  # our own
    try:
        deadline = time.monotonic() + 60
        while CHAIN(4) not in store.names(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    there = Transcript.open(uri)
    assert there.verify().n_rounds == there.n_rounds
    assert there.n_rounds >= 12
    assert there.n_rounds % 3 == 0
    n_rounds = there.n_rounds + 2
    record(uri, n_rounds, there.n_rounds).close()
    assert Transcript.open(uri).verify().n_rounds == n_rounds


def test_a_store_that_is_away_gets_everything_later(store):
    """Training goes on, with a warning for each segment; closing fails until the store is back."""
    gone, uri = "gone", store.uri("run", "gone")
    store.client.create_bucket(Bucket=gone)
    recorder = record(uri, 2)
    for each in store.client.list_objects_v2(Bucket=gone)["Contents"]:
        store.client.delete_object(Bucket=gone, Key=each["Key"])
    store.client.delete_bucket(Bucket=gone)
    with pytest.warns(TranscriptWarning, match=r"cannot write s3://gone/run/uploads-00001\.arrows: there is no such b"):
        record(uri, 3, 2, recorder=recorder)
    with pytest.warns(TranscriptWarning, match="kept on this machine"):
        record(uri, 8, 3, recorder=recorder)
    with pytest.raises(TranscriptError, match="there is no such bucket"):
        recorder.close()
    store.client.create_bucket(Bucket=gone)
    recorder.close()
    names = {each["Key"] for each in store.client.list_objects_v2(Bucket=gone)["Contents"]}
    assert names == {f"run/{kind(number)}" for kind in (UPLOADS, CHAIN) for number in (1, 2, 3)}


def test_two_recorders_stop_each_other(store, folder):
    """There is no lock, but the second to write a segment finds that of the first."""
    uri = store.uri(folder)
    record(uri, 3).close()
    first, second = (Recorder(uri, LABELS, CLIENTS, resume=True) for _ in range(2))
    record(uri, 4, 3, recorder=first).close()
    record(uri, 5, 3, recorder=second)
    with pytest.raises(TranscriptError, match=r"chain-00002\.bin was written by another recorder"):
        second.close()
    assert Transcript.open(uri).verify().n_rounds == 4


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("transcript.json", r"there is no transcript in s3://bucket/.*: it has no transcript\.json"),
        ("labels.arrow", r"labels\.arrow is missing"),
        (UPLOADS(1), r"uploads-00001\.arrows is missing, but there is chain-00001\.bin"),
        (CHAIN(1), r"chain-00001\.bin is missing, but there is uploads-00001\.arrows"),
        (UPLOADS(3), r"uploads-00003\.arrows is missing, but there is chain-00003\.bin"),
    ],
)
def test_a_missing_object_is_named(store, folder, name, why):
    """In one line, when the transcript is opened."""
    uri = written(store.uri(folder), 8)
    store.delete(f"{folder}/{name}")
    with pytest.raises(TranscriptError, match=why) as caught:
        Transcript.open(uri)
    assert "\n" not in str(caught.value)
    assert "endpoint_override" not in str(caught.value)


def test_an_object_that_goes_while_it_is_read_is_named(store, folder):
    """In one line."""
    there = Transcript.open(written(store.uri(folder), 8))
    store.delete(f"{folder}/{UPLOADS(2)}")
    with pytest.raises(
        TranscriptError, match=rf"^cannot read s3://bucket/{folder}/uploads-00002.arrows: it is missing$"
    ):
        there.verify()


@pytest.mark.parametrize("name", [UPLOADS(1), UPLOADS(2), CHAIN(1), CHAIN(3), "labels.arrow", "transcript.json"])
def test_a_damaged_object_is_found(store, folder, name):
    """Any flipped bit fails the verification, and a truncated object too."""
    uri = written(store.uri(folder), 8)
    before = store.get(f"{folder}/{name}")
    for place in np.random.default_rng(0).choice(8 * len(before), 4, replace=False).tolist():
        content = bytearray(before)
        content[place // 8] ^= 1 << place % 8
        store.put(f"{folder}/{name}", bytes(content))
        with pytest.raises((TranscriptError, InputError)):
            Transcript.open(uri).verify()
    store.put(f"{folder}/{name}", before[:-1])
    with pytest.raises(TranscriptError):
        Transcript.open(uri).verify()


def test_a_missing_bucket_is_named(store):
    """For readers and recorders."""
    for use in (Transcript.open, lambda uri: record(uri, 1)):
        with pytest.raises(TranscriptError, match=r"^cannot list s3://nowhere/run: there is no such bucket$"):
            use(store.uri("run", "nowhere"))


def test_wrong_keys_are_an_error_without_them(store, folder, monkeypatch):
    """An unknown key, a wrong secret, and a user who may not write."""
    uri = written(store.uri(folder), 4)
    with store.checking_keys() as (key, secret):
        for given, why in [
            ((KEYS["AWS_ACCESS_KEY_ID"], secret), "the store does not know the access key"),
            ((key, "another secret"), "the secret key is not that of the access key"),
        ]:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", given[0])
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", given[1])
            with pytest.raises(TranscriptError, match=rf"^cannot list s3://bucket/{folder}: {why}; keys are") as caught:
                Transcript.open(uri)
            assert not any(each in str(caught.value) for each in given)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        assert Transcript.open(uri).verify().n_rounds == 4
        with pytest.raises(TranscriptError, match=r"^cannot write s3://bucket/another/labels\.arrow: access is denied"):
            record(store.uri("another"), 1)
    assert not any(secret.encode() in content for content in store.contents(folder).values())


@pytest.mark.parametrize("uri", ["s3://key:secret@bucket/run", "s3://key:sec/ret@bucket/run", "gs://secret@bucket/run"])
def test_keys_in_a_uri_are_refused_unseen(uri):
    """They would be printed, logged and sent along with it."""
    for use in (Transcript.open, lambda uri: record(uri, 1)):
        with pytest.raises(InputError, match="must not hold keys; put them into the environment") as caught:
            use(uri)
        assert "sec" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "kind", "why"),
    [
        ("ftp://bucket/run", InputError, r"at s3://, gs:// or file://; received ftp://"),
        ("s3:///run", TranscriptError, "Missing bucket name"),
        ("s3://bucket/run?regoin=eu", TranscriptError, "Unexpected query parameter in S3 URI: 'regoin'"),
    ],
)
def test_other_uris_are_refused(uri, kind, why):
    """With a message that says what is allowed."""
    with pytest.raises(kind, match=why):
        Transcript.open(uri)


def test_an_empty_folder_has_no_transcript(store):
    """As in folders."""
    with pytest.raises(
        TranscriptError, match=r"^there is no transcript in s3://bucket/empty: it has no transcript\.json$"
    ):
        Transcript.open(store.uri("empty"))


def test_a_file_uri_is_a_folder(tmp_path):
    """Where files can be appended to."""
    uri = (tmp_path / "a run").as_uri()
    with Recorder(uri, LABELS, CLIENTS) as recorder:
        recorder.log([0], {name: [1.0] for name in CLIENTS})
    assert Transcript.open(uri).verify().n_rounds == 1
    assert Transcript.open(tmp_path / "a run").n_rounds == 1


@pytest.mark.parametrize("place", ["store", "folder", "memory"])
def test_a_transcript_is_sent_to_another_process_without_its_data(store, folder, tmp_path, monkeypatch, place):
    """It is opened there, as far as it went here; one in memory takes its data along."""
    monkeypatch.chdir(tmp_path)
    path = {"store": store.uri(folder), "folder": "run", "memory": None}[place]
    recorder = record(path, 6, mode="asynchronous")
    here = recorder.transcript if path is None else Transcript.open(path)
    merged = here.merged(4, 1, 100)
    here.trusts_head = True
    sent, sent_merged, location = pickle.dumps(here), pickle.dumps(merged), here.location
    assert (len(sent) < 1000) == (place != "memory")
    record(path, 8, 6, "asynchronous", recorder)
    recorder.close()
    monkeypatch.chdir("/")
    there = arrived(sent)
    monkeypatch.chdir(tmp_path)
    assert (there.n_rounds, there.head, there.trusts_head, there.location) == (6, here.head, True, location)
    assert as_rows(there) == as_rows(here)
    assert (arrived(sent_merged).n_rounds, as_rows(arrived(sent_merged))) == (merged.n_rounds, as_rows(merged))
    if place == "memory":
        return
    if place == "folder":
        shutil.rmtree(tmp_path / "run")
    for name in store.names(folder):
        store.delete(f"{folder}/{name}")
    record(path, 5, mode="asynchronous", resume=None).close()
    with pytest.raises(TranscriptError, match="is not the one that was sent here"):
        arrived(sent)


def test_a_part_of_a_segment_is_read_in_part(store, folder, monkeypatch):
    """One record takes little more than its own bytes, all in order few requests."""
    uri, fetched, read = store.uri(folder), [], ObjectStream.__init__

    class Counting:
        def __init__(self, file):
            self.file = file
            self.size, self.seek = file.size, file.seek

        def read_buffer(self, n_bytes):
            fetched.append(n_bytes)
            return self.file.read_buffer(n_bytes)

    with Recorder(uri, np.arange(10_000) % 2, ["a"]) as recorder:
        for _ in range(60):
            recorder.log(np.arange(10_000), {"a": np.random.default_rng(0).normal(size=10_000)})
    monkeypatch.setattr(ObjectStream, "__init__", lambda self, file, shown: read(self, Counting(file), shown))
    there = Transcript.open(uri)
    size = len(store.get(f"{folder}/{UPLOADS(1)}"))
    assert size > 60 * 120_000
    fetched.clear()
    records = there.records(first=31)
    next(records)
    assert sum(fetched) < 130_000
    fetched.clear()
    assert len([*there]) == 120
    assert sum(fetched) < 1.05 * size
    assert len(fetched) < 15
