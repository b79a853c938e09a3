import errno
import os
import shutil
import warnings

import numpy as np
import pytest

from verfedsv.errors import InputError, TranscriptError, TranscriptWarning
from verfedsv.transcript import Recorder, Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.chain import pack_entry
from verfedsv.transcript.format import Kind
from verfedsv.transcript.framing import find_extent
from verfedsv.transcript.storage import FileStream, FolderStorage

CLIENTS = ["bank", "telco"]
LABELS = np.arange(8) % 2
UPLOADS, CHAIN = "uploads-00001.arrows", "chain-00001.bin"


def record(folder, n_rounds, segment_rounds=None):
    """Record a transcript of that many rounds, and return its folder."""
    with Recorder(folder, LABELS, CLIENTS, segment_rounds=segment_rounds) as recorder:
        for number in range(n_rounds):
            recorder.log([number, number + 4], {name: [number + 0.5, -number] for name in CLIENTS})
    return folder


@pytest.fixture
def run(tmp_path):
    """Return the folder of a transcript of four rounds."""
    return record(tmp_path / "run", 4)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def resume(folder):
    """Return the number of rounds from which a recorder resumes."""
    with Recorder(folder, LABELS, CLIENTS, resume=True) as recorder:
        return recorder.n_rounds


@pytest.mark.parametrize("name", [CHAIN, UPLOADS, "transcript.json", "labels.arrow"])
def test_no_flipped_bit_costs_a_record(tmp_path, name):
    """Every bit of a chain of one round, and many of the others: resuming refuses, and leaves every file as it was."""
    run = record(tmp_path / "run", 1 if name == CHAIN else 3)
    before = contents(run)
    n_bits = 8 * len(before[name])
    rng = np.random.default_rng(0)
    bits = range(n_bits) if name == CHAIN else rng.choice(n_bits, 100, replace=False).tolist()
    for bit in bits:
        content = bytearray(before[name])
        content[bit // 8] ^= 1 << bit % 8
        (run / name).write_bytes(content)
        # A bit of the description can make it that of another training, which is an InputError.
        with pytest.raises((TranscriptError, InputError)):
            resume(run)
        assert contents(run) == before | {name: bytes(content)}


def test_what_a_crash_leaves_is_cut_off_and_nothing_else(run):
    """Part of a record, with no entry or part of one, is cut off with a warning: the rounds before it stay."""
    before = contents(run)
    entries = len(before[CHAIN]) // 48
    ends = np.frombuffer(before[CHAIN], "<u8").reshape(entries, 6)[:, 0].tolist()
    for size in (ends[-2] + 1, ends[-2] + 7, ends[-2] + 40, ends[-1] - 1, ends[-1]):
        for part in (0, 1, 47):
            (run / UPLOADS).write_bytes(before[UPLOADS][:size])
            (run / CHAIN).write_bytes(before[CHAIN][: 48 * (entries - 1) + part])
            with pytest.warns(TranscriptWarning, match="unfinished record, now cut off"):
                assert resume(run) == 3
            Transcript.open(run).verify()
    # After a power failure, the stream can be the shorter of the two.
    (run / UPLOADS).write_bytes(before[UPLOADS][: ends[-2] + 100])
    (run / CHAIN).write_bytes(before[CHAIN])
    with pytest.warns(TranscriptWarning, match="unfinished record, now cut off"):
        assert resume(run) == 3


@pytest.fixture
def most_read(monkeypatch):
    """Return a list that gets the length of every read of a stream."""
    lengths, read = [], FileStream.slice

    def spy(self, offset, length):
        lengths.append(length)
        return read(self, offset, length if length < 2**24 else 0)

    monkeypatch.setattr(FileStream, "slice", spy)
    return lengths


@pytest.mark.parametrize(
    ("segment_rounds", "kind", "why"),
    [(None, Kind.ROUND, "does not fill its entry"), (4, Kind.END, "it does not end with an end marker")],
)
def test_a_message_that_ends_elsewhere_is_not_read(tmp_path, most_read, segment_rounds, kind, why):
    """A sparse file of any size takes little disk, so the size that the message states is compared first."""
    run = record(tmp_path / "run", 4, segment_rounds)
    end = (run / UPLOADS).stat().st_size + 2**34
    chain = (run / CHAIN).read_bytes()
    (run / CHAIN).write_bytes(chain[: 48 * 6] + pack_entry(end, kind, bytes(32)))
    os.truncate(run / UPLOADS, end)
    for read in (lambda: Transcript.open(run).verify(), lambda: resume(run)):
        with pytest.raises(TranscriptError, match=rf"uploads-00001\.arrows .*{why}"):
            read()
    assert max(most_read) < 2**17


def test_a_message_with_room_between_its_columns_is_not_read(tmp_path, most_read):
    """Its own size, stated in its head, may be as false as its entry."""
    run = record(tmp_path / "run", 4)
    content, chain = bytearray((run / UPLOADS).read_bytes()), (run / CHAIN).read_bytes()
    start = int.from_bytes(chain[48 * 4 : 48 * 4 + 8], "little")
    body = find_extent(memoryview(content)[start:]).body
    assert content.count(body.to_bytes(8, "little"), start, start + 2000) == 1
    place, added = content.index(body.to_bytes(8, "little"), start), 2**34
    content[place : place + 8] = (body + added).to_bytes(8, "little")
    (run / UPLOADS).write_bytes(content)
    end = len(content) + added
    os.truncate(run / UPLOADS, end)
    (run / CHAIN).write_bytes(chain[: 48 * 5] + pack_entry(end, Kind.ROUND, bytes(32)))
    with pytest.raises(TranscriptError, match=r"uploads-00001\.arrows .*does not fill its entry"):
        Transcript.open(run).verify()
    assert max(most_read) < 2**17


def test_what_is_cut_off_is_not_read(run, most_read):
    """A recorder looks at the beginning of what follows the last record, however long it is."""
    before = contents(run)
    os.truncate(run / UPLOADS, len(before[UPLOADS]) + 2**34)
    with pytest.warns(TranscriptWarning, match="unfinished record, now cut off"):
        assert resume(run) == 4
    assert contents(run) == before
    assert max(most_read) < 2**17


@pytest.mark.parametrize("n_lost", [2, 3])
def test_a_chain_that_lost_entries_is_not_taken_for_a_crash(run, n_lost):
    """Two complete records without entries are damage: nothing is cut off, and the message says what to do."""
    os.truncate(run / CHAIN, (run / CHAIN).stat().st_size - 48 * n_lost)
    before = contents(run)
    with pytest.raises(
        TranscriptError, match=r"chain-00001\.bin is damaged: .* truncate uploads-00001\.arrows to (\d+) bytes"
    ):
        resume(run)
    assert contents(run) == before
    with pytest.raises(
        TranscriptError, match=r"uploads-00001\.arrows has [\d,]+ and chain-00001\.bin 0 bytes after it"
    ):
        Transcript.open(run).verify()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: (run / "transcript.json").unlink(), "transcript.json is missing, but there is chain-00001.bin"),
        (lambda run: (run / UPLOADS).unlink(), "uploads-00001.arrows is missing, but there is chain"),
        (lambda run: (run / CHAIN).unlink(), "chain-00001.bin is missing, but there is uploads"),
        (lambda run: os.truncate(run / UPLOADS, 0), "uploads-00001.arrows was cut off or emptied"),
        (lambda run: (run / "labels.arrow").unlink(), "labels.arrow is missing"),
        (
            lambda run: [(run / name).unlink() for name in (UPLOADS, CHAIN)],
            "uploads-00001.arrows is missing, but transcript.json",
        ),
        (lambda run: shutil.copy(run / CHAIN, run / UPLOADS), "uploads-00001.arrows was cut off or emptied"),
    ],
)
def test_files_that_are_gone_are_missed(run, change, message):
    """By a recorder, which writes nothing, and by a reader: the training does not seem to have no rounds yet."""
    change(run)
    before = contents(run)
    with pytest.raises(TranscriptError, match=message):
        resume(run)
    assert contents(run) == before
    with pytest.raises(TranscriptError, match=r"transcript\.json|uploads-00001\.arrows|labels\.arrow"):
        Transcript.open(run).verify()


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 1), (0, 0)])
def test_entries_that_do_not_follow_each_other(run, first, second):
    """Repeated and falling ends are found when the transcript is opened."""
    content = (run / CHAIN).read_bytes()
    entries = [content[48 * index : 48 * index + 48] for index in range(6)]
    (run / CHAIN).write_bytes(b"".join([*entries[:first], entries[second], entries[second], *entries[first + 1 :]]))
    with pytest.raises(TranscriptError, match=r"chain-00001\.bin is damaged: entry \d does not end after"):
        Transcript.open(run)


def test_a_crash_before_the_first_record(run):
    """Nothing was recorded: the next recorder begins, also in the other mode."""
    about = (run / "transcript.json").read_bytes()
    for uploads in (b"", b"\xff\xff\xff\xff\x10"):
        (run / UPLOADS).write_bytes(uploads)
        (run / CHAIN).write_bytes(b"")
        (run / "transcript.json").write_bytes(about)
        assert Transcript.open(run).n_rounds == 0
        with pytest.warns(TranscriptWarning) if uploads else pytest.MonkeyPatch.context():
            recorder = Recorder(run, LABELS, CLIENTS, resume=True)
        with recorder:
            recorder.update("bank", [0], np.float32([1.5]))
        transcript = Transcript.open(run)
        transcript.verify()
        assert (transcript.description.mode, transcript.description.precision) == ("asynchronous", "float32")


def test_a_crash_between_two_segments(tmp_path):
    """After the end of one, and before the next or within its beginning: recording goes on to the same bytes.

    Until then the beginning has no link of its own, so it is not whole: else two sets of files would have one head.
    """
    with Recorder(tmp_path / "run", LABELS, CLIENTS, segment_rounds=2) as recorder:
        for number in range(3):
            recorder.log([number], {name: [1.0] for name in CLIENTS})
    before = contents(tmp_path / "run")
    uploads, chain = "uploads-00002.arrows", "chain-00002.bin"
    n_schema = int.from_bytes(before[chain][48:56], "little")
    states = [(None, None), (b"", b""), (b"", before[chain][:48]), (b"", before[chain][:20])]
    states += [(before[uploads][:n_schema], before[chain][:96]), (before[uploads][:100], before[chain][:48])]
    for number, contents_of_two in enumerate(states):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "run", folder)
        for name, content in zip((uploads, chain), contents_of_two, strict=True):
            (folder / name).unlink()
            if content is not None:
                (folder / name).write_bytes(content)
        begun = Transcript.open(folder)
        begun.verify(is_growing=True)
        assert begun.head == before[CHAIN][-32:].hex()
        if contents_of_two[0] is not None:
            with pytest.raises(TranscriptError, match=r"up to round 2, but uploads-00002\.arrows has no record"):
                begun.verify()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TranscriptWarning)
            recorder = Recorder(folder, LABELS, CLIENTS, resume=True)
        Transcript.open(folder).verify()
        assert not (folder / uploads).exists()
        with recorder:
            assert recorder.n_rounds == 2
            recorder.log([2], {name: [1.0] for name in CLIENTS})
        Transcript.open(folder).verify()
        assert contents(folder) == before


@pytest.mark.parametrize("n_appends", range(6))
def test_a_full_disk_at_the_beginning_of_a_segment_leaves_nothing_of_it(tmp_path, monkeypatch, n_appends):
    """Wherever it happens: the transcript stays valid, and the next record begins the segment again."""
    append, appended = FolderStorage.append, []

    def fail(self, name, content):
        if len(content) and len(appended) == n_appends:
            raise OSError(errno.ENOSPC, "no space left")
        appended.extend([name] if len(content) else [])
        append(self, name, content)

    with Recorder(tmp_path, [0, 1], ["a"], segment_rounds=1) as recorder:
        recorder.log([0, 1], {"a": [0.1, 0.2]})
        head = recorder.transcript.head
        with monkeypatch.context() as patch:
            patch.setattr(FolderStorage, "append", fail)
            if n_appends < 5:
                with pytest.raises(OSError, match="no space"):
                    recorder.log([0, 1], {"a": [0.3, 0.4]})
                Transcript.open(tmp_path).verify()
                assert Transcript.open(tmp_path).head == head
        recorder.log([0, 1], {"a": [0.5, 0.6]})
    Transcript.open(tmp_path).verify()


def test_a_full_segment_is_sealed_at_once_and_never_touched_again(tmp_path):
    """So a store that cannot append never replaces it; closing the recorder does not change the head."""
    with Recorder(tmp_path, [0, 1], ["a"], segment_rounds=2) as recorder:
        recorder.log([0, 1], {"a": [0.1, 0.2]})
        assert not (tmp_path / "uploads-00001.arrows").read_bytes().endswith(fmt.END_OF_STREAM)
        recorder.log([0, 1], {"a": [0.3, 0.4]})
        head = recorder.transcript.head
    full = [(tmp_path / name).read_bytes() for name in ("uploads-00001.arrows", "chain-00001.bin")]
    assert full[0].endswith(fmt.END_OF_STREAM)
    assert Transcript.open(tmp_path).head == head
    for other in (1, 3, 1000):
        with pytest.raises(InputError, match=f"in segments of 2 rounds, .* with segment_rounds={other}; leave that"):
            Recorder(tmp_path, [0, 1], ["a"], segment_rounds=other, resume=True)
    with Recorder(tmp_path, [0, 1], ["a"], segment_rounds=2, resume=True) as recorder:
        recorder.log([0, 1], {"a": [0.5, 0.6]})
    assert [(tmp_path / name).read_bytes() for name in ("uploads-00001.arrows", "chain-00001.bin")] == full
    assert Transcript.open(tmp_path).n_rounds == 3
    Transcript.open(tmp_path).verify()


def test_a_segment_that_could_not_be_sealed_is_sealed_before_the_next_record(tmp_path, monkeypatch):
    """A disk that is full at that time costs no record: the call that filled the segment succeeds."""
    append = FolderStorage.append

    def fail(self, name, content):
        if bytes(content) == fmt.END_OF_STREAM:
            raise OSError(errno.ENOSPC, "no space left")
        append(self, name, content)

    with Recorder(tmp_path, [0, 1], ["a"], segment_rounds=1) as recorder:
        with monkeypatch.context() as patch:
            patch.setattr(FolderStorage, "append", fail)
            recorder.log([0, 1], {"a": [0.1, 0.2]})
            assert recorder.transcript.n_rounds == recorder.n_rounds == 1
            with pytest.raises(OSError, match="no space"):
                recorder.log([0, 1], {"a": [0.3, 0.4]})
            assert recorder.n_rounds == 1
        recorder.log([0, 1], {"a": [0.3, 0.4]})
    Transcript.open(tmp_path).verify()
    assert Transcript.open(tmp_path).n_rounds == 2
