import decimal

import numpy as np
import pytest
import scipy.sparse

import verfedsv
from verfedsv.errors import InputError, TranscriptWarning
from verfedsv.transcript import Recorder, Stamp, Transcript

pd, torch = pytest.importorskip("pandas"), pytest.importorskip("torch")

CLIENTS = ["bank", "telco", "shop"]
LABELS = [0, 1, 1, 0, 1, 0]


def uploads_of(recorder):
    """Return what was recorded: a dictionary of samples and embeddings by client for each stamp, and the stamps."""
    rounds, stamps, now = [], [], {}
    for record in recorder.transcript:
        if isinstance(record, Stamp):
            rounds.append(now)
            stamps.append(record)
            now = {}
        else:
            now[record.client] = (record.samples.tolist(), record.embeddings.tolist())
    return rounds, stamps


def test_clients_can_be_declared_absent(tmp_path):
    """The round has the uploads of the others, and its stamp says who was absent; all of it is hashed."""
    with Recorder(tmp_path / "run", LABELS, CLIENTS) as recorder:
        recorder.log([0, 1], {"bank": [1.0, 2.0], "telco": [3.0, 4.0], "shop": [5.0, 6.0]})
        recorder.log([2], {"shop": [7.0]}, [0.5], absent=["telco", "bank"])
        recorder.log([3, 4], {"shop": [8.0, 9.0], "bank": [0.0, 1.0]}, absent=("telco",))
    transcript = Transcript.open(tmp_path / "run")
    transcript.verify()
    rounds, stamps = uploads_of(recorder)
    assert [set(now) for now in rounds] == [{*CLIENTS}, {"shop"}, {"bank", "shop"}]
    assert [stamp.absent for stamp in stamps] == [(), ("bank", "telco"), ("telco",)]
    assert rounds[1]["shop"] == ([2], [[7.0]])
    assert rounds[2]["bank"] == ([3, 4], [[0.0], [1.0]])
    assert stamps[1].offset.tolist() == [0.5]
    assert transcript.verify_more().n_uploads == {"bank": 2, "telco": 1, "shop": 3}
    with Recorder(tmp_path / "run", LABELS, CLIENTS, resume=True) as recorder:
        recorder.log([5], {"telco": [1.0], "bank": [1.0]}, absent=["shop"])
    Transcript.open(tmp_path / "run").verify()


@pytest.mark.parametrize(
    ("embeddings", "absent", "message"),
    [
        ({"bank": [1.0], "shop": [1.0]}, [], r"'telco' has none; .* pass absent=\['telco'\], or use update for"),
        ({"bank": [1.0], "shop": [1.0]}, ["telko"], "absent has 'telko', which does not take part; the clients are"),
        ({"bank": [1.0], "telco": [1.0], "shop": [1.0]}, ["telco"], "'telco' is declared absent, but has embeddings"),
        ({}, CLIENTS, "all clients are declared absent"),
        ({"bank": [1.0], "shop": [1.0]}, "telco", "absent must be a list of names of clients; received 'telco'"),
        ({"bank": [1.0], "shop": [1.0]}, None, "absent must be a list"),
    ],
)
def test_a_client_is_not_left_out_by_mistake(embeddings, absent, message):
    """A client that is missing, or wrongly declared absent, is named; nothing is recorded."""
    recorder = Recorder(None, LABELS, CLIENTS)
    with pytest.raises(InputError, match=message):
        recorder.log([0], embeddings, absent=absent)
    assert recorder.transcript.n_records == 0


def test_embeddings_wider_than_there_are_classes_are_refused():
    """A hidden layer is not valued as if it were logits; the message says what to log instead."""
    recorder = Recorder(None, [0, 1, 2], ["one"], "softmax")
    with pytest.raises(InputError, match=r"shape \(1, 3\).*; received \(1, 16\).*not a hidden layer.*pass n_classes"):
        recorder.log([0], {"one": np.zeros((1, 16))})
    recorder.log([0], {"one": np.zeros((1, 3))})
    declared = Recorder(None, [0, 1, 2], ["one"], "softmax", n_classes=5)
    for width in (3, 4, 6):
        with pytest.raises(InputError, match=rf"must have shape \(1, 5\), .*; received \(1, {width}\)"):
            declared.log([0], {"one": np.zeros((1, width))})
    declared.log([0], {"one": np.zeros((1, 5))})
    assert declared.transcript.description.n_classes == 5


@pytest.mark.parametrize(
    ("loss", "shape", "expected"),
    [
        ("softmax", (4,), r"\(4, 3\)"),
        ("softmax", (4, 1), r"\(4, 3\)"),
        ("softmax", (4, 2), r"\(4, 3\)"),
        ("softmax", (3, 4), r"\(4, 3\)"),
        ("softmax", (), r"\(4, 3\)"),
        ("squared", (4, 2), r"\(4,\) or \(4, 1\)"),
        ("squared", (3,), r"\(4,\) or \(4, 1\)"),
    ],
)
def test_embeddings_of_a_wrong_shape_are_told_the_right_one(loss, shape, expected):
    """The message has the expected and the received shape, whichever dimension is wrong."""
    received = str(shape).replace("(", r"\(").replace(")", r"\)")
    message = rf"one: embeddings must have shape {expected}, one row per sample; received {received}\. "
    with Recorder(None, [0, 1, 2, 1], ["one"], loss) as recorder:
        with pytest.raises(InputError, match=message):
            recorder.log([0, 1, 2, 3], {"one": np.zeros(shape)})
        with pytest.raises(InputError, match=message):
            recorder.update("one", [0, 1, 2, 3], np.zeros(shape))


@pytest.mark.parametrize(
    ("n_classes", "loss", "message"),
    [
        (2, "softmax", "with 2 classes takes whole labels 0 to 1"),
        (2, "logistic", "n_classes is for loss 'softmax'"),
        (2.5, "softmax", "n_classes must be a whole number"),
    ],
)
def test_numbers_of_classes_that_cannot_be(n_classes, loss, message):
    """Fewer than the labels show, for a loss without classes, or not a whole number."""
    with pytest.raises(InputError, match=message):
        Recorder(None, [0, 1, 2] if loss == "softmax" else [0, 1], ["one"], loss, n_classes=n_classes)


def test_tensors_of_any_type_are_recorded():
    """bfloat16, which NumPy lacks, becomes float32 without rounding; tensors are detached from their graph."""
    recorder = Recorder(None, LABELS, ["one"])
    values = torch.tensor([0.1, 1.5], dtype=torch.bfloat16, requires_grad=True)
    recorder.log(torch.tensor([1, 2]), {"one": values})
    recorder.log(torch.tensor([False, True, True, False, False, False]), {"one": values.half()})
    rounds, _ = uploads_of(recorder)
    assert rounds == [{"one": ([1, 2], [[0.10009765625], [1.5]])}] * 2
    assert recorder.transcript.description.precision == "float32"


SPARSE = {
    "to_sparse": (lambda: torch.eye(2).to_sparse(), r"is a sparse tensor; convert it with \.to_dense\(\)"),
    "to_sparse_csr": (lambda: torch.eye(2).to_sparse_csr(), r"is a sparse tensor; convert it with \.to_dense\(\)"),
    "array": (lambda: scipy.sparse.eye_array(2), r"is a sparse matrix; convert it with \.toarray\(\)"),
    "matrix": (lambda: scipy.sparse.csr_matrix(np.eye(2)), r"is a sparse matrix; convert it with \.toarray\(\)"),
}


@pytest.mark.parametrize("kind", SPARSE)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_sparse_embeddings_are_refused_with_what_to_do(kind):
    """Whether torch's or scipy's, in `shapley_values` as well."""
    make, message = SPARSE[kind]
    with pytest.raises(InputError, match=f"one: embeddings {message}"):
        Recorder(None, LABELS, ["one"], "softmax").log([0, 1], {"one": make()})
    with pytest.raises(InputError, match=f"previous {message}"):
        verfedsv.shapley_values(make(), np.eye(2), [0, 1])


def test_data_frames_are_taken_wherever_arrays_are():
    """Embeddings as a frame, labels as a frame of one column, batches as masks; also with types for missing values."""
    frame = pd.DataFrame({"x": [0.5, 1.5], "y": pd.array([1.0, 2.0], "Float64")})
    recorder = Recorder(None, pd.DataFrame({"label": LABELS}), ["one", "two"], "softmax")
    mask = pd.Series(LABELS) == 2
    mask[[1, 4]] = True
    recorder.log(mask, {"one": frame, "two": frame.astype("float64")})
    rounds, _ = uploads_of(recorder)
    assert rounds == [{name: ([1, 4], [[0.5, 1.0], [1.5, 2.0]]) for name in ("one", "two")}]


def test_a_data_frame_of_one_column_per_client():
    """It replaces a dictionary; its columns must be the clients."""
    recorder = Recorder(None, pd.Series(LABELS), ["one", "two"])
    recorder.log([3, 0], pd.DataFrame({"two": [1.0, 2.0], "one": [3.0, 4.0]}, index=[3, 0]))
    rounds, _ = uploads_of(recorder)
    assert rounds == [{"one": ([3, 0], [[3.0], [4.0]]), "two": ([3, 0], [[1.0], [2.0]])}]
    with pytest.raises(
        InputError, match=r"embeddings are of 'x', which does not take part; .*recorder\.join\('x'\) adds one"
    ):
        recorder.log([3], pd.DataFrame({"two": [1.0], "x": [3.0]}))


TEXTS = ["yes", "no ", "yes", "no", " yes", "no"]


@pytest.mark.parametrize("kind", [list, np.array, pd.Categorical, pd.DataFrame, lambda texts: list(np.array(texts))])
def test_labels_that_are_texts(tmp_path, kind):
    """They are numbered in alphabetical order, without surrounding spaces; the transcript has names and numbers."""
    given = kind(TEXTS)
    for loss, width in (("logistic", 1), ("softmax", 2)):
        with Recorder(tmp_path / loss, given, ["one"], loss) as recorder:
            recorder.log([0, 1], {"one": np.zeros((2, width))})
        transcript = Transcript.open(tmp_path / loss)
        transcript.verify()
        assert transcript.labels.tolist() == [1, 0, 1, 0, 1, 0]
        assert transcript.description.classes == ("no", "yes")
        Recorder(tmp_path / loss, TEXTS, ["one"], loss, resume=True).close()
        with pytest.raises(InputError, match="other labels"):
            Recorder(tmp_path / loss, [1, 0, 1, 0, 1, 0], ["one"], loss, resume=True)


@pytest.mark.parametrize("kind", [pd.Categorical, pd.Series, pd.DataFrame])
def test_classes_are_in_the_order_of_ordered_categories(kind):
    """Labels are the codes of the categories, also of a column, and also if no sample has some of them."""
    levels = pd.Categorical(["low", "high", "mid ", "low"], ["low", "never", "mid ", "high"], ordered=True)
    recorder = Recorder(None, levels if kind is pd.Categorical else kind(levels), ["one"], "softmax")
    assert recorder.transcript.labels.tolist() == levels.codes.tolist() == [0, 3, 2, 0]
    assert recorder.transcript.description.classes == ("low", "never", "mid", "high")


def test_classes_numbered_from_one_are_doubted():
    """They make one class more than meant, which no sample has."""
    with pytest.warns(TranscriptWarning, match="subtract 1"):
        Recorder(None, [1, 2, 3] * 10, ["one"], "softmax")
    for labels, loss in (([0, 2, 1] * 10, "softmax"), ([1, 2, 3], "softmax"), ([1, 2, 3] * 10, "squared")):
        Recorder(None, labels, ["one"], loss)  # a warning would be an error


def test_text_does_not_show_the_numbers_of_classes_without_samples():
    """Alphabetical numbers of two classes would be wrong for a model of three."""
    with pytest.raises(InputError, match="labels name 2 classes, so n_classes cannot be 3"):
        Recorder(None, ["low", "high", "low"], ["one"], "softmax", n_classes=3)


@pytest.mark.parametrize(("loss", "width"), [("logistic", 1), ("softmax", 2)])
def test_labels_that_are_numbers_can_have_named_classes(tmp_path, loss, width):
    """The names are recorded, nothing about them is doubted, and a recorder with other names does not continue."""
    labels, names = [0, 1, 1] * 20 + [1], ["No", "no"]
    with Recorder(tmp_path / "run", labels, ["one"], loss, classes=names) as recorder:
        recorder.log([0, 1], {"one": np.zeros((2, width))})
    transcript = Transcript.open(tmp_path / "run")
    assert (transcript.labels.tolist(), transcript.description.classes) == (labels, ("No", "no"))
    with pytest.raises(InputError, match="other labels"):
        Recorder(tmp_path / "run", labels, ["one"], loss, classes=["no", "yes"], resume=True)


def test_named_classes_without_samples():
    """Under softmax, names say how many classes there are."""
    recorder = Recorder(None, [1, 2, 1] * 20, ["one"], "softmax", classes=["a", "b", "c", "d"])
    assert recorder.transcript.description.n_classes == 4


@pytest.mark.parametrize(
    ("labels", "loss", "names", "message"),
    [
        ([0, 1, 2], "softmax", ["a", "b"], "classes name the labels 0 to 1; received the label 2"),
        ([0.5, 1.0], "logistic", ["a", "b"], "received the label 0.5"),
        ([-1, 1], "logistic", ["a", "b"], "received the label -1"),
        ([0, 1], "logistic", ["a", "b", "c"], "takes labels of two classes; received 3"),
        ([0, 1], "logistic", ["a", "a"], "two or more different names"),
        ([0, 1], "logistic", "ab", "classes must be a list of names; received 'ab'"),
        (["x", "y"], "logistic", ["a", "b"], "these name their classes themselves"),
        ([0.5, 1.5], "squared", ["a", "b"], "loss 'squared' takes amounts"),
    ],
)
def test_names_of_classes_that_cannot_be(labels, loss, names, message):
    """Labels must be the indices of the names."""
    with pytest.raises(InputError, match=message):
        Recorder(None, labels, ["one"], loss, classes=names)


def test_truth_values_are_labels():
    """False is 0 and True is 1, even if all are True."""
    for given in ([True, False, True], np.array([True] * 3), pd.Series([False, True, None]).dropna()):
        recorder = Recorder(None, given, ["one"])
        assert recorder.transcript.labels.tolist() == [int(value) for value in given]
        assert recorder.transcript.description.classes == ("False", "True")


def test_masks_of_another_length_are_refused():
    """A mask has one entry per sample of the training, not of the batch."""
    recorder = Recorder(None, LABELS, ["one"])
    with pytest.raises(InputError, match=r"batch as a mask needs one entry per sample, \(6,\); received \(2,\)"):
        recorder.log([True, False], {"one": [1.0]})
    with pytest.raises(InputError, match="at least one sample"):
        recorder.update("one", [False] * 6, [])


def test_a_clock_that_is_set_back_does_not_stop_a_training(monkeypatch):
    """Records keep the last time until the clock catches up, with one warning; given times must not fall."""
    now = [100.0]
    monkeypatch.setattr("verfedsv.transcript.recorder.clock.time", lambda: now[0])
    recorder = Recorder(None, LABELS, ["one"])
    recorder.update("one", [0], [1.0])
    now[0] = 40.0
    with pytest.warns(TranscriptWarning, match=r"clock says 40\.0, earlier than the last record \(100\.0\)") as caught:
        recorder.update("one", [1], [1.0])
    recorder.stamp()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    now[0] = 101.0
    recorder.stamp()
    assert [record.time for record in recorder.transcript] == [100.0, 100.0, 100.0, 101.0]
    with pytest.raises(InputError, match="time must not run backwards: received 50"):
        recorder.stamp(time=50.0)


ALIKE = [
    ["Bank", "bank"],
    ["telco", "tel\N{CYRILLIC SMALL LETTER ES}o"],
    ["shop", "\N{FULLWIDTH LATIN SMALL LETTER S}hop"],
    ["cafe", "café"],
    ["b0b", "bob"],
]


@pytest.mark.parametrize("names", ALIKE)
def test_names_that_look_alike_are_warned_about(names):
    """By case, script, width, accent or digits: nobody should be paid by mistake."""
    with pytest.warns(TranscriptWarning, match="look alike") as caught:
        Recorder(None, LABELS, ["other", *names])
    assert sum("look alike: make sure who is who" in str(warning.message) for warning in caught) == 1


@pytest.mark.parametrize("character", "\u200b\u2060\u202e\u00ad\u3164\ufe0f\u2028")
def test_invisible_characters_in_names_are_refused(character):
    """Zero-width, directional, soft hyphens, fillers, variation selectors and line separators."""
    with pytest.raises(InputError, match="invisible characters"):
        Recorder(None, LABELS, ["one", f"tel{character}co"])


def test_ordinary_names_are_taken_as_they_are():
    """Other scripts, accents, spaces and digits alone are no reason to warn."""
    names = ["北京", "Zürich", "Банк", "client 1", "client 10", "client 11", "naïve & co.", "Τράπεζα", "नमस्ते"]
    Recorder(None, LABELS, names)


@pytest.mark.parametrize("size", [1e12, -1e61, np.inf, np.nan])
def test_embeddings_nobody_can_compute_with_are_refused(size):
    """Rounding errors of all values grow with the largest embedding: its client is named, nothing is recorded."""
    recorder = Recorder(None, LABELS, ["bank", "telco"])
    good = np.zeros(len(LABELS))
    bad = np.append(good[1:], size)
    with pytest.raises(InputError, match=r"telco: embeddings must be finite and below 1e\+12 in size; received"):
        recorder.log(np.arange(len(LABELS)), {"bank": good, "telco": bad})
    with pytest.raises(InputError, match=r"offset must be finite and below 1e\+12"):
        recorder.log(np.arange(len(LABELS)), {"bank": good, "telco": good}, bad)
    assert recorder.n_rounds == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_offset_may_be_the_same_for_all_samples(dtype):
    """A number, or one per class, is stored once; Python numbers get the precision of the embeddings."""
    with Recorder(None, LABELS, CLIENTS) as recorder:
        for offset in (0.5, [0.25], torch.tensor(0.125)):
            recorder.log([0, 1], dict.fromkeys(CLIENTS, np.zeros(2, dtype)), offset)
    assert [stamp.offset.tolist() for stamp in uploads_of(recorder)[1]] == [[x] for x in (0.5, 0.25, 0.125)]
    assert recorder.transcript.description.precision == np.dtype(dtype).name
    with Recorder(None, LABELS, CLIENTS, "softmax") as recorder:
        recorder.update("bank", [0, 1, 2], np.ones((3, 2), dtype), time=1)
        recorder.stamp([0.5, -0.5], time=1)
    assert uploads_of(recorder)[1][0].offset.tolist() == [0.5, -0.5]
    with pytest.raises(InputError, match="offset must be an array of numbers; received str"):
        Recorder(None, LABELS, CLIENTS).stamp("0.1")


def test_a_hidden_layer_under_logistic_loss_is_said_to_be_one():
    """Softmax would be the wrong advice for 16 numbers of a hidden layer."""
    with (
        Recorder(None, LABELS, CLIENTS) as recorder,
        pytest.raises(InputError, match=r"received \(2, 16\)\. .*one number per sample.*not a hidden layer"),
    ):
        recorder.log([0, 1], dict.fromkeys(CLIENTS, np.zeros((2, 16))))


def test_errors_of_a_recorder_speak_of_rounds():
    """As the documentation does, not of iterations."""
    with Recorder(None, LABELS, CLIENTS) as recorder:
        with pytest.raises(InputError, match="a synchronous round needs the embeddings of every client"):
            recorder.log([0], {"bank": [1.0]})
        with pytest.raises(InputError, match="a round needs at least one"):
            recorder.log([0], {}, absent=CLIENTS)


def test_classes_that_may_be_mistakes_are_warned_about():
    """Rare ones, and those that differ only in case; surrounding spaces are ignored."""
    labels = ["yes"] * 50 + ["no "] * 50 + ["Yes "]
    with pytest.warns(TranscriptWarning) as caught:
        recorder = Recorder(None, labels, CLIENTS, "softmax")
    assert recorder.transcript.description.classes == ("Yes", "no", "yes")
    messages = [str(warning.message) for warning in caught]
    assert messages[0].startswith("labels: few of 101 samples have Yes (1), which makes 3 classes. If it is a mistake,")
    assert messages[1] == "labels: 'Yes', 'yes' differ in capitals only, and are different classes"
    Recorder(None, ["a"] * 5 + ["b"] * 3, CLIENTS)
    Recorder(None, [False] * 100 + [True], CLIENTS)


NUMBERS = {
    "text": lambda labels: [str(label) for label in labels],
    "array of text": lambda labels: np.array([f" {label}" for label in labels]),
    "objects": lambda labels: np.array(labels, object),
    "decimals": lambda labels: [decimal.Decimal(label) for label in labels],
    "big-endian": lambda labels: np.array(labels, ">i4"),
    "long double": lambda labels: np.array(labels, np.longdouble),
    "nullable": lambda labels: pd.Series(labels, dtype="Int64"),
}


@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared"])
@pytest.mark.parametrize("kind", NUMBERS)
def test_labels_that_can_be_read_as_numbers_are_these_numbers(tmp_path, kind, loss):
    """Whatever their type, a training is recorded and valued as with plain numbers, and so is a single round."""
    plain = [0, 1, 10, 2, 1, 0, 3, 4, 5, 6, 7, 8, 9] if loss == "softmax" else LABELS
    given, n_samples = NUMBERS[kind](plain), len(plain)
    width = {"softmax": 11}.get(loss, 1)
    after = np.random.default_rng(0).normal(size=(2, n_samples, width))
    for name, labels in (("plain", plain), ("given", given)):
        with Recorder(tmp_path / name, labels, ["one", "two"], loss) as recorder:
            recorder.log(range(n_samples), {"one": after[0], "two": after[1]})
        assert recorder.transcript.description.classes is None
    assert Transcript.open(tmp_path / "given").labels.tolist() == plain
    expected, values = (verfedsv.value(tmp_path / name).values for name in ("plain", "given"))
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_allclose(verfedsv.shapley_values(0 * after, after, given, loss).values, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("labels", "loss", "message"),
    [
        (["1", "2"], "logistic", "takes labels -1 and [+]1, or 0 and 1; received the values 1, 2"),
        (["0.5", "1"], "softmax", r"takes whole labels 0 to 1; received the values 0\.5, 1"),
        (["low", "high"], "squared", "labels must hold real numbers: could not convert string to float: 'low'"),
        (np.array(["2020-01-01", "2020-01-02"], "M8[D]"), "logistic", "labels must hold real numbers"),
        ([b"0", b"1"], "softmax", "labels must hold real numbers; received b'0', b'1', ... of type"),
        ([object(), object()], "softmax", "labels must hold real numbers: float"),
        ([1j, 2], "squared", "labels must hold real numbers"),
        ([1e300, 1.0], "squared", r"takes labels below 1e\+60 in size; received 1e\+300"),
        ({0, 1}, "logistic", "labels must be an array of numbers; received set"),
        ([decimal.Decimal(0), None], "logistic", "takes finite labels"),
    ],
)
def test_other_labels_are_refused_at_once(labels, loss, message):
    """With one sentence, before anything is recorded, and in a single round too."""
    with pytest.raises(InputError, match=message):
        Recorder(None, labels, ["one"], loss)
    width = 2 if loss == "softmax" else 1
    with pytest.raises(InputError, match=message):
        verfedsv.shapley_values(np.zeros((1, 2, width)), np.ones((1, 2, width)), labels, loss)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([1, 2], "names of clients must be printable text.*; received 1$"),
        (["one", None], "names of clients must be printable text.*; received None$"),
        (["one", ""], "names of clients must be printable text, not empty.*; received ''$"),
        ({"one", "two"}, "clients must be a list of names; received {"),
        ([], "at least one client is needed"),
    ],
)
def test_names_that_are_none(names, message):
    """The first wrong one is shown, also when a client joins."""
    with pytest.raises(InputError, match=message):
        Recorder(None, LABELS, names)
    with pytest.raises(InputError, match=r"not empty.*; received ''"):
        Recorder(None, LABELS, CLIENTS).join("")


def test_who_has_left_must_join_again():
    """An upload after leaving is refused with what to do; the client is not called unknown."""
    recorder = Recorder(None, LABELS, CLIENTS)
    recorder.update("bank", [0], [1.0])
    recorder.leave("bank")
    with pytest.raises(
        InputError,
        match=r"'bank' has left, and must join again; the clients are telco, shop, and .*join\('bank'\) adds it again",
    ):
        recorder.update("bank", [0], [1.0])


def test_absent_clients_must_be_clients():
    """The message has the mistyped name and the clients."""
    with pytest.raises(InputError, match="absent has 'shp', which does not take part; the clients are bank, telco"):
        Recorder(None, LABELS, CLIENTS).log([0], {name: [1.0] for name in CLIENTS}, absent=["shp"])


@pytest.mark.parametrize(("loss", "width", "shape"), [("logistic", 1, r"\(6,\)"), ("softmax", 2, r"\(6, 2\)")])
def test_offsets_of_another_shape(loss, width, shape):
    """The message has the shapes that are allowed."""
    recorder = Recorder(None, LABELS, CLIENTS, loss)
    embeddings = dict.fromkeys(CLIENTS, np.zeros((6, width)))
    for wrong in (np.zeros(7), np.zeros((6, 5)), np.zeros((1, 6, width))):
        with pytest.raises(
            InputError, match=f"offset must be .* number.*, or an array of shape {shape}; received shape"
        ):
            recorder.log(range(6), embeddings, wrong)


def test_a_path_that_is_none():
    """A number is not a folder."""
    with pytest.raises(InputError, match="path must be a folder, or None to record in memory; received 3"):
        Recorder(3, LABELS, CLIENTS)


def test_warnings_name_the_line_of_the_caller(tmp_path, monkeypatch):
    """However deep in the package they arise, warnings name the user's call."""

    def calls():
        yield lambda: Recorder(tmp_path, LABELS, ["one"]).close()
        yield lambda: Recorder(None, LABELS, ["bank", "Bank"])
        recorder = Recorder(None, LABELS, ["bank", "telco"])
        yield lambda: recorder.join("Bank")
        recorder.update("bank", [0], [1.0])
        monkeypatch.setattr("verfedsv.transcript.recorder.clock.time", lambda: 0.0)
        yield lambda: recorder.leave("bank")

    with Recorder(tmp_path, LABELS, ["one"]) as recorder:
        recorder.log([0], {"one": [1.0]})
    for call in calls():
        with pytest.warns(TranscriptWarning) as caught:
            call()
        assert {(warning.filename, warning.lineno) for warning in caught} == {(__file__, call.__code__.co_firstlineno)}


@pytest.mark.filterwarnings("error")
def test_clients_that_changed_nothing_are_no_reason_to_warn():
    """Values of 0 keep no relative tolerance, but their errors are those of rounding."""
    embeddings = {"one": np.ones((6, 2)), "two": -np.ones((6, 2))}  # which softmax does not see
    recorder = Recorder(None, LABELS, ["one", "two"], "softmax")
    recorder.log(range(6), embeddings)
    valuation = verfedsv.value(recorder)
    assert valuation.tolerance_met
    assert 0 < valuation.errors.max() < 1e-12
    after = np.stack([*embeddings.values()])
    assert verfedsv.shapley_values(0 * after, after, LABELS, "softmax").tolerance_met
