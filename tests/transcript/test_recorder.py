"""Rosters, batches, offsets, heads and losses of one's own, as they are recorded and read back."""

import json

import numpy as np
import pyarrow as pa
import pytest

from tests.games import LogCosh
from verfedsv.errors import InputError, TooManyClientsError, TranscriptError, TranscriptWarning
from verfedsv.losses import Squared
from verfedsv.settings import ValuationSettings
from verfedsv.shapley.exact import MAX_CLIENTS
from verfedsv.transcript import Join, Leave, Recorder, Stamp, Transcript, Upload
from verfedsv.transcript import format as fmt
from verfedsv.transcript.framing import Layout
from verfedsv.transcript.messages import RecordMessage, _serialize_large

LABELS = np.arange(12) % 2


def read_plainly(folder):
    """Return the rows of all segments, read by pyarrow alone."""
    rows = []
    for path in sorted(folder.glob("uploads-*.arrows")):
        rows += [row for batch in pa.ipc.open_stream(path.read_bytes()) for row in batch.to_pylist()]
    return rows


def as_rows(records):
    """Return records as rows of a stream, without hashes."""
    rows = []
    for record in records:
        if isinstance(record, Upload):
            rows.append(("upload", record.client, record.time, record.samples.tolist(), record.embeddings.tolist()))
        elif isinstance(record, Stamp):
            rows += [("absent", name, record.time, [], []) for name in record.absent]
            rows.append(("stamp", None, record.time, [], []))
        else:
            rows.append((type(record).__name__.lower(), record.client, record.time, [], []))
    return rows


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("seed", range(4))
def test_any_roster_is_read_back_as_it_was(tmp_path, mode, seed):  # noqa: C901  # a training has many events
    """Joins, leaves, absences and batches of one's own, across segments and recorders, as pyarrow alone reads them."""
    rng = np.random.default_rng(seed)
    expected, members, ever, n_stamps = [], ["a", "b"], ["a", "b"], 0
    recorder = Recorder(tmp_path, LABELS, members, segment_rounds=3)
    for step in range(60):
        if rng.random() < 0.1:
            recorder.close()
            if step:
                recorder = Recorder(tmp_path, LABELS, ["a", "b"], resume=True)
            else:
                recorder = Recorder(tmp_path, LABELS, ["a", "b"], segment_rounds=3)
            assert recorder.members == tuple(name for name in ever if name in members)
        time, choice = float(step), rng.random()
        uploads = {}
        for name in members:
            samples = rng.permutation(12)[: rng.integers(1, 6)]
            uploads[name] = (samples, rng.normal(size=len(samples)))
        if choice < 0.15 and expected:
            name = str(rng.choice([n for n in "abcdefghijklmnopqrst" if n not in members]))
            recorder.join(name, time=time)
            members.append(name)
            ever += [] if name in ever else [name]
            expected.append(("join", name, time, [], []))
        elif choice < 0.25 and len(members) > 1 and expected:
            name = str(rng.choice(members))
            recorder.leave(name, time=time)
            members.remove(name)
            expected.append(("leave", name, time, [], []))
        elif mode == "synchronous":
            away = [name for name in members if rng.random() < 0.3][: len(members) - 1]
            there = {name: uploads[name] for name in members if name not in away}
            batches = {name: samples for name, (samples, _) in there.items()}
            recorder.log(batches, {n: values for n, (_, values) in there.items()}, absent=away, time=time)
            for name in (n for n in ever if n in members):
                if name in away:
                    expected.append(("absent", name, time, [], []))
                else:
                    samples, values = uploads[name]
                    expected.append(("upload", name, time, samples.tolist(), values[:, np.newaxis].tolist()))
            expected.append(("stamp", None, time, [], []))
            n_stamps += 1
        elif choice < 0.8 or not expected:
            name = str(rng.choice(members))
            samples, values = uploads[name]
            recorder.update(name, samples, values, time=time)
            expected.append(("upload", name, time, samples.tolist(), values[:, np.newaxis].tolist()))
        else:
            recorder.stamp(time=time)
            expected.append(("stamp", None, time, [], []))
            n_stamps += 1
    recorder.close()
    transcript = Transcript.open(tmp_path)
    verified = transcript.verify_more()
    transcript.verify()
    assert transcript.clients == verified.roster.clients == tuple(ever)
    assert (transcript.n_rounds, verified.roster.members) == (n_stamps, frozenset(members))
    n_segments = len(list(tmp_path.glob("uploads-*.arrows")))
    assert n_segments - 1 in (n_stamps // 3, (n_stamps - 1) // 3)
    plain = [
        (row["kind"], row["client"], row["time"], row["samples"], [[number] for number in row["embeddings"]])
        for row in read_plainly(tmp_path)
    ]
    assert plain == expected
    assert sorted(as_rows(transcript), key=str) == sorted(expected, key=str)
    assert [row for row in as_rows(transcript) if row[0] != "absent"] == [r for r in expected if r[0] != "absent"]
    for first in rng.integers(1, transcript.n_records + 1, 5):
        *_, last = transcript.records(int(first))
        assert as_rows([last])[-1] == expected[-1]


def test_records_from_one_on_are_those_of_the_whole(tmp_path):
    """Of earlier records only joins and leaves are read: uploads and absences are the same, in the same order."""
    with Recorder(tmp_path, LABELS, ["a", "b"], segment_rounds=2) as recorder:
        recorder.log([0], {"a": [1.0], "b": [2.0]})
        recorder.join("c")
        for number in range(4):
            recorder.log([number], {"c": [1.0 * number]}, absent=["a", "b"])
        recorder.leave("a")
        recorder.log([1], {"c": [1.0], "b": [0.0]})
    transcript = Transcript.open(tmp_path)
    whole = as_rows(transcript)
    for first in range(1, transcript.n_records + 1):
        part = as_rows(transcript.records(first))
        assert part == whole[len(whole) - len(part) :]
    assert len(as_rows(transcript.records(transcript.n_records))) == 3


def test_a_join_before_the_first_record_makes_a_founder(tmp_path):
    """And a leave removes one; only the description changes."""
    with Recorder(tmp_path, LABELS, ["a", "b"]) as recorder:
        recorder.join("c")
        recorder.leave("a")
        with pytest.raises(InputError, match="client 'c' takes part already"):
            recorder.join("c")
        recorder.log([0], {"b": [1.0], "c": [2.0]})
    transcript = Transcript.open(tmp_path)
    transcript.verify()
    assert transcript.clients == transcript.description.clients == ("b", "c")
    with pytest.raises(InputError, match="is the only one"):
        Recorder(None, LABELS, ["a"]).leave("a")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.join("a"), "client 'a' takes part already"),
        (lambda r: r.join("a "), "printable"),
        (lambda r: r.leave("c"), "client 'c' is unknown"),
        (lambda r: r.leave("b"), "client 'b' has left"),
        (lambda r: r.join("d", time=0.5), "time must not run backwards"),
        (lambda r: r.log([0], {"a": [1.0], "b": [1.0]}), "embeddings are of 'b', which does not take part"),
        (lambda r: r.log({"a": [0], "b": [1]}, {"a": [1.0]}), r"batch must have .* unknown \['b'\]"),
        (lambda r: r.log({}, {"a": [1.0]}), r"batch must have .* missing \['a'\]"),
        (lambda r: r.log({"a": []}, {"a": []}), "batch of a must hold at least one sample"),
    ],
)
def test_wrong_rosters_are_refused(tmp_path, call, message):
    """Each is named, and nothing is written."""
    with Recorder(tmp_path, LABELS, ["a", "b"]) as recorder:
        recorder.log([0], {"a": [1.0], "b": [2.0]})
        recorder.leave("b")
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(InputError, match=message):
            call(recorder)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_who_joins_with_a_misleading_name_is_warned_about():
    """As at the start."""
    with Recorder(None, LABELS, ["bank", "telco"]) as recorder:
        recorder.log([0], {"bank": [1.0], "telco": [1.0]})
        with pytest.warns(TranscriptWarning):
            recorder.join("Bank")


def test_offsets_are_stored_once_where_they_are_constant(tmp_path):
    """Whether given as a number, per class or per sample; others keep a row for each sample."""
    labels, batch = np.arange(30) % 3, np.arange(20)
    per_class, per_sample = np.array([0.5, -0.5, 0.25]), np.random.default_rng(0).normal(size=(20, 3))
    numbers = {"a": np.zeros((20, 3)), "b": np.zeros((20, 3))}
    with Recorder(tmp_path, labels, ["a", "b"], "softmax") as recorder:
        for offset in (None, 0.5, per_class, np.tile(per_class, (20, 1)), per_sample):
            recorder.log(batch, numbers, offset)
    stamps = [record for record in Transcript.open(tmp_path) if isinstance(record, Stamp)]
    assert stamps[0].offset is None
    np.testing.assert_array_equal(stamps[1].offset, [0.5] * 3)
    np.testing.assert_array_equal(stamps[2].offset, per_class)
    np.testing.assert_array_equal(stamps[3].offset, per_class)
    np.testing.assert_array_equal(stamps[4].offset, per_sample)
    lengths = [len(row["offset"]) for row in read_plainly(tmp_path) if row["offset"] is not None]
    assert lengths == [3, 3, 3, 60]


def test_an_offset_with_batches_of_ones_own_covers_all_samples():
    """If all batches are equal, it is cut to that batch."""
    offset = np.arange(12.0)
    with Recorder(None, LABELS, ["a", "b"]) as recorder:
        recorder.log({"a": [3, 1], "b": [2]}, {"a": [1.0, 2.0], "b": [3.0]}, offset)
        recorder.log({"a": [3, 1], "b": [3, 1]}, {"a": [1.0, 2.0], "b": [3.0, 4.0]}, offset)
        with pytest.raises(InputError, match=r"offset must be a number, or an array of shape \(12,\)"):
            recorder.log({"a": [3, 1], "b": [3, 1]}, {"a": [1.0, 2.0], "b": [3.0, 4.0]}, [1.0, 2.0])
    recorder.transcript.verify()
    first, second = (record.offset for record in recorder.transcript if isinstance(record, Stamp))
    np.testing.assert_array_equal(first.ravel(), offset)
    np.testing.assert_array_equal(second, [[3.0], [1.0]])


class Own(Squared):
    """Squared loss under another name."""

    name = "my own"


def test_a_loss_of_ones_own_is_recorded_by_name(tmp_path):
    """Its width is that of the first upload unless given; opening does not need the loss, resuming does."""
    labels = np.linspace(0, 1, 12)
    with Recorder(tmp_path, labels, ["a"], Own()) as recorder:
        assert recorder.transcript.description.n_classes is None
        recorder.log([0, 1], {"a": [1.0, 2.0]}, 0.5)
        with pytest.raises(InputError, match=r"a: embeddings must have shape \(2,\) or .*; received \(2, 2\)"):
            recorder.log([0, 1], {"a": [[1.0, 2.0]] * 2})
    about = Transcript.open(tmp_path).description
    assert (about.loss, about.is_own_loss, about.n_classes) == ("my own", True, 1)
    Transcript.open(tmp_path).verify()
    with pytest.raises(InputError, match="cannot be continued"):
        Recorder(tmp_path, labels, ["a"], "squared")
    with Recorder(tmp_path, labels, ["a"], Own(), resume=True) as recorder:
        recorder.log([2], {"a": [1.0]})
    with pytest.raises(InputError, match="takes labels of shape"):
        Recorder(None, labels, ["a"], Own()).log([0], {"a": [[1.0, 2.0]]})
    assert not Recorder(None, labels, ["a"], Squared()).transcript.description.is_own_loss


def test_a_loss_of_ones_own_takes_one_width_of_all():
    """The first round shows it, so its clients must agree."""
    with (
        Recorder(None, LABELS, ["a", "b"], Own()) as recorder,
        pytest.raises(InputError, match=r"embeddings are summed, so all have one width; received 1, 2"),
    ):
        recorder.log([0], {"a": np.ones((1, 1)), "b": np.ones((1, 2))})


def test_labels_of_several_numbers_are_recorded(tmp_path):
    """Squared loss takes them: the number of classes is their width."""
    labels = np.random.default_rng(0).normal(size=(12, 3))
    with Recorder(tmp_path, labels, ["a"], "squared") as recorder:
        assert recorder.transcript.description.n_classes == 3
        recorder.log([0, 1], {"a": np.ones((2, 3))})
        with pytest.raises(InputError, match=r"must have shape \(2, 3\), .*; received \(2, 2\)"):
            recorder.log([0, 1], {"a": np.ones((2, 2))})
    transcript = Transcript.open(tmp_path)
    transcript.verify()
    np.testing.assert_array_equal(transcript.labels, labels)


def test_what_was_agreed_is_in_the_first_link(tmp_path):
    """Settings of the valuation and the step are read back, and must be the same when the folder is continued."""
    options = {"method": "exact", "tolerance": 0.01, "seed": 3}
    with Recorder(tmp_path, LABELS, ["a"], valuation=options, step={"rate": 0.2, "decay": "constant"}) as recorder:
        recorder.log([0], {"a": [1.0]})
    transcript = Transcript.open(tmp_path)
    assert transcript.description.valuation == ValuationSettings.of(options)
    assert transcript.description.step == {"rate": 0.2, "decay": "constant"}
    Recorder(tmp_path, LABELS, ["a"], resume=True).close()
    with pytest.raises(InputError, match="other settings: seed is 4 and not 3"):
        Recorder(tmp_path, LABELS, ["a"], valuation=options | {"seed": 4}, resume=True)
    with pytest.raises(InputError, match="another step"):
        Recorder(tmp_path, LABELS, ["a"], step="0.1 each", resume=True)
    content = json.loads((tmp_path / "transcript.json").read_text())
    content["valuation"]["seed"] = 4
    (tmp_path / "transcript.json").write_text(json.dumps(content))
    with pytest.raises(TranscriptError, match=r"transcript\.json, labels\.arrow or the head of uploads"):
        Transcript.open(tmp_path).verify()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valuation": {"speed": 3}}, "unknown setting 'speed'"),
        ({"valuation": {"rows": "some"}}, "rows of the valuation must be"),
        ({"step": 0.2}, "step must be a short text"),
        ({"step": {"rate": np.inf}}, "settings of the step"),
        ({"head": "mean"}, "head must be 'sum', or an object with state_dict"),
        ({"segment_rounds": 0}, "segment_rounds must be"),
    ],
)
def test_settings_that_cannot_be_agreed_on(tmp_path, options, message):
    """They are refused before anything is written."""
    with pytest.raises(InputError, match=message):
        Recorder(tmp_path / "run", LABELS, ["a"], **options)
    assert not (tmp_path / "run").exists()


def test_a_description_that_nobody_would_read_is_not_written(tmp_path, monkeypatch):
    """Readers refuse one that is too large, so the recorder does, before the first round."""
    monkeypatch.setattr("verfedsv.transcript.description.MOST_JSON_BYTES", 2000)
    Recorder(tmp_path / "short", LABELS, ["a"]).close()
    with pytest.raises(InputError, match=r"transcript\.json would have .* bytes, and at most 2,000 are read"):
        Recorder(tmp_path / "long", LABELS, ["a" * 2000, "b"])
    assert not (tmp_path / "long" / "transcript.json").exists()


class Linear:
    """A head of two parameters, like a torch module."""

    def __init__(self):
        self.weight, self.bias = np.ones((2, 5)), np.zeros(2)

    def __repr__(self):
        return "Linear(5, 2)"

    def state_dict(self):
        return {"weight": self.weight, "bias": self.bias}


def record_head(folder, head, n_rounds=4):
    """Record rounds under a head whose bias changes each time, with a width for each client."""
    with Recorder(folder, LABELS, ["a", "b"], "softmax", head=head) as recorder:
        for number in range(n_rounds):
            recorder.log([number, 5], {"a": np.ones((2, 2)), "b": np.ones((2, 3), np.float32)})
            head.bias = head.bias + 1
    return Transcript.open(folder)


def test_the_states_of_a_head_are_recorded_by_content(tmp_path):
    """At the start and after each round; a parameter that does not change is written once."""
    transcript = record_head(tmp_path, Linear())
    transcript.verify()
    about = transcript.description.head
    assert (about.kind, about.parameters) == ("parametric", ("weight", "bias"))
    states = [transcript.head_state(about.state)]
    states += [transcript.head_state(record.state) for record in transcript if isinstance(record, Stamp)]
    assert [state["bias"].tolist() for state in states] == [[0.0] * 2, [0.0] * 2, [1.0] * 2, [2.0] * 2, [3.0] * 2]
    assert all(np.array_equal(state["weight"], np.ones((2, 5))) for state in states)
    assert len(list((tmp_path / "tensors").iterdir())) == 1 + 4
    widths = {record.client: record.embeddings.shape[1] for record in transcript if isinstance(record, Upload)}
    assert widths == transcript.verify_more().roster.widths == {"a": 2, "b": 3}


def test_a_torch_module_is_a_head(tmp_path):
    """Its parameters are detached from their graph; torch is not imported."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 2)
    with Recorder(tmp_path, LABELS, ["a"], "softmax", head=module) as recorder:
        recorder.update("a", [0], np.ones((1, 3)), time=1)
        with torch.no_grad():
            module.bias.add_(1.0)
        recorder.stamp(time=2)
    transcript = Transcript.open(tmp_path)
    transcript.verify()
    *_, stamp = transcript
    np.testing.assert_array_equal(transcript.head_state(stamp.state)["bias"], module.bias.detach().numpy())


def test_changed_parameters_are_found(tmp_path):
    """Changed and missing ones, by verify and by head_state."""
    transcript = record_head(tmp_path, Linear())
    path = tmp_path / fmt.tensor_file(transcript.description.head.state[0])
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\1")
    with pytest.raises(TranscriptError, match=f"was changed: tensors/{path.name}"):
        Transcript.open(tmp_path).verify()
    with pytest.raises(TranscriptError, match=f"was changed: tensors/{path.name}"):
        transcript.head_state(transcript.description.head.state)
    path.unlink()
    with pytest.raises(TranscriptError, match=r"\.npy is missing"):
        Transcript.open(tmp_path).verify()


def of_header(header, version=1, body=bytes(16)):
    """Return a NumPy file with that header."""
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + header.encode("latin1") + body


@pytest.mark.parametrize(
    "content",
    [
        *map(of_header, ["{'descr': (", "'''", "  1\n 2\n", "\0\0", "(" * 900, "-" * 9000 + "1", "[" * 90 + "]" * 90]),
        *(
            of_header(f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}")
            for kind, shape in [
                *(("'|O'", "(2,)"), ("'<f8'", "(10000000000000,)"), ("'<f8'", "(-1,)"), ("'<f8'", f"({10**30},)")),
                *(("'<f8'", f"({2**62}, 4)"), ("[('a', '<f8'), ('a', '<f8')]", "(1,)"), ("'f8,f8'", "(1,)")),
                *(("'<f8'", "(2,)"), ("'|S0'", "(1000000000,)"), ("'<U2'", "(2,)"), ("('<f8', (2,))", "(1,)")),
            ]
        ),
        of_header("{'descr': (", 2),
        of_header("{'descr': '\xff", 3),
        b"",
    ],
)
def test_parameters_that_no_recorder_wrote_are_not_valid(tmp_path, monkeypatch, content):
    """Although their hash is right. NumPy raises errors of many kinds for them, and reads some differently."""
    monkeypatch.setattr("verfedsv.transcript.heads._as_file", lambda *_: content)
    with pytest.raises(TranscriptError, match=r"tensors/.*\.npy is not valid: it is not (a NumPy file|written as)"):
        record_head(tmp_path, Linear()).verify()


def test_embeddings_of_no_width_are_refused():
    """Under a head that takes any width, and a loss whose number of classes is not known yet: no reader takes them."""
    for options in ({"loss": "softmax", "head": Linear()}, {"loss": Own()}):
        with (
            Recorder(None, LABELS, ["a"], **options) as recorder,
            pytest.raises(InputError, match=r"shape \(2,\) or \(2, width\), .*; received \(2, 0\)"),
        ):
            recorder.log([0, 1], {"a": np.ones((2, 0))})


def test_a_head_is_continued_by_the_same_one(tmp_path):
    """Whatever its state is now; another architecture or other widths are refused."""
    record_head(tmp_path, Linear())
    with Recorder(tmp_path, LABELS, ["a", "b"], "softmax", head=Linear(), resume=True) as recorder:
        with pytest.raises(
            InputError, match=r"b: embeddings must have shape \(1, 3\), .*; received \(1, 2\)\. The head"
        ):
            recorder.log([0], {"a": np.ones((1, 2)), "b": np.ones((1, 2))})
        recorder.log([0], {"a": np.ones((1, 2)), "b": np.ones((1, 3))})
    Transcript.open(tmp_path).verify()
    other = Linear()
    type(other).__repr__, before = (lambda _: "Linear(5, 2, deeper)"), type(other).__repr__
    try:
        with pytest.raises(InputError, match="another head"):
            Recorder(tmp_path, LABELS, ["a", "b"], "softmax", head=other, resume=True)
    finally:
        type(other).__repr__ = before
    with pytest.raises(InputError, match="another head"):
        Recorder(tmp_path, LABELS, ["a", "b"], "softmax", resume=True)


def test_resuming_without_a_description_is_a_clear_error(tmp_path):
    """The uploads are not replaced, and nothing is written."""
    with Recorder(tmp_path, LABELS, ["a"]) as recorder:
        recorder.log([0], {"a": [1.0]})
    (tmp_path / "transcript.json").unlink()
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(TranscriptError, match=r"transcript\.json is missing, but there is chain-00001\.bin: restore"):
        Recorder(tmp_path, LABELS, ["a"], resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_segments_are_never_touched_again(tmp_path):
    """Neither by later rounds nor by a recorder that resumes; each is a complete Arrow stream."""
    seen = {}
    for _ in range(3):
        with Recorder(tmp_path, LABELS, ["a"], segment_rounds=2, resume=True) as recorder:
            for number in range(3):
                recorder.log([number], {"a": [1.0]})
        for path in sorted(tmp_path.glob("*-*.*"))[:]:
            if path.read_bytes().endswith(fmt.END_OF_STREAM) and path.suffix == ".arrows":
                assert seen.setdefault(path.name, path.stat().st_mtime_ns) == path.stat().st_mtime_ns
    assert sorted(seen) == [fmt.uploads_file(number) for number in range(1, 5)]
    assert Transcript.open(tmp_path).n_rounds == 9
    heads = [Transcript.open(tmp_path).head]
    Recorder(tmp_path, LABELS, ["a"], resume=True).close()
    assert heads == [Transcript.open(tmp_path).head]


def test_joins_and_leaves_are_records():
    """In both modes, with the time of the last record if none is given in synchronous training."""
    with Recorder(None, LABELS, ["a"]) as recorder:
        recorder.log([0], {"a": [1.0]}, time=5.5)
        recorder.join("b")
        recorder.leave("a", time=6.0)
    assert list(recorder.transcript)[2:] == [Join("b", 5.5), Leave("a", 6.0)]


def test_lists_are_counted_with_64_bits():
    """For the layout of a message with more than 2^31 numbers, exactly the bytes of its uploads are left out."""
    n_numbers = 2**31 + 5
    empty = [(0, 0)] * 26
    sizes = {fmt.TIME: 8, fmt.SAMPLES: 16, fmt.EMBEDDINGS: 4 * n_numbers + 4}
    start = 0
    for buffer, size in sizes.items():
        empty[buffer] = (start, size)
        start += size
    nodes = [(1, 0)] * 12
    nodes[fmt.SAMPLES_NODE], nodes[fmt.EMBEDDINGS_NODE] = (3, 0), (n_numbers, 0)
    layout = Layout(1000, start, tuple(nodes), tuple(empty))
    assert fmt.frame_ranges(layout, "float32") == ((0, 1008), (1020, 1024), (1024 + 4 * n_numbers, layout.size))
    with pytest.raises(ValueError, match="another length"):
        fmt.frame_ranges(layout._replace(nodes=(*nodes[:-1], (n_numbers + 2, 0))), "float32")
    with pytest.raises(ValueError, match="too far apart"):
        fmt.frame_ranges(layout._replace(body=layout.body + 64), "float32")
    assert all(pa.types.is_large_list(fmt.upload_schema("float32").field(name).type) for name in ("samples", "offset"))


@pytest.mark.parametrize("n_samples", [3, 2**19 + 1])
def test_a_message_that_was_filled_in_is_the_one_that_arrow_builds(n_samples):
    """Byte by byte, with absences and an offset; a large one is built by Arrow."""
    rng = np.random.default_rng(0)
    batches = [rng.permutation(n_samples).astype(np.uint32) for _ in range(2)]
    uploads = [(batches[0], rng.normal(size=(n_samples, 1))), None, (batches[1], rng.normal(size=(n_samples, 1))), None]
    message = RecordMessage(
        ("upload", "absent", "upload", "stamp"), ("a", "b", "c", None), 2.5, uploads, rng.normal(size=n_samples)
    )
    for _ in range(2):
        content, _ = message.build("float64", bytes(32))
        assert bytes(content) == message._serialize("float64").to_pybytes()


def test_a_large_message_is_the_one_that_arrow_builds():
    """The other way of building, which takes more than 2^31 numbers, gives the same bytes."""
    batch = pa.record_batch([[1, 2], [[0.5], [1.5, 2.5]]], names=["a", "b"])
    assert _serialize_large(batch).equals(batch.serialize())


@pytest.mark.parametrize("name", ["logistic", ""])
def test_a_loss_of_your_own_needs_a_name_of_its_own(name):
    """Readers would take it for the loss of this package."""

    class Renamed(LogCosh):
        pass

    Renamed.name = name
    with pytest.raises(InputError, match="loss"):
        Recorder(None, [0.0, 1.0], ["a"], Renamed())


def test_a_valuation_that_cannot_be_computed_is_not_agreed():
    """After the training it would be too late: the agreement is in the first link."""
    with pytest.raises(InputError, match="computes Shapley values only"):
        Recorder(None, [0, 1], ["a"], valuation={"method": "closed-form", "semivalue": "banzhaf"})
    names, exact = [f"c{m}" for m in range(MAX_CLIENTS)], {"method": "exact"}
    Recorder(None, [0, 1], [*names, "one more"], valuation=exact | {"semivalue": "leave-one-out"})
    with pytest.raises(TooManyClientsError):
        Recorder(None, [0, 1], names, valuation=exact, intercept=True)
    recorder = Recorder(None, [0, 1], names, valuation=exact)
    with pytest.raises(TooManyClientsError):
        recorder.join("one more")
    with pytest.raises(TooManyClientsError):
        recorder.log([0], {name: [0.0] for name in names}, offset=1.0)
    recorder.log([0], {name: [0.0] for name in names})
