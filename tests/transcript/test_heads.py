"""Torch modules as heads of a recorder: what is recorded of them, and what is refused."""

import json
import shutil

import numpy as np
import pytest

from tests.transcript.forgeries import rewrite
from verfedsv import InputError, Recorder, Transcript, TranscriptError, TranscriptWarning, value
from verfedsv.head_layers import check_layers, digest_of_layers, from_layers, to_layers
from verfedsv.heads import Head
from verfedsv.transcript.format import TENSORS

torch = pytest.importorskip("torch")

LABELS = [0, 1, 1, 0]
ROUND = {"a": np.ones((4, 2)), "b": np.ones((4, 1))}


def log(head, *rounds, path=None, **options):
    """Record rounds of two clients, of widths 2 and 1, all samples each."""
    with Recorder(path, LABELS, ["a", "b"], head=head, **options) as recorder:
        for uploads in rounds or [ROUND]:
            recorder.log([0, 1, 2, 3], uploads)
    return recorder.transcript


class Custom(torch.nn.Module):
    """A module whose forward pass is given."""

    def __init__(self, forward):
        super().__init__()
        self.layer, self._forward = torch.nn.Linear(3, 1), forward

    def forward(self, x):
        """Return what was given."""
        return self._forward(self, x)


SHARED = torch.nn.ReLU()
MODULES = [
    torch.nn.Linear(3, 1),
    torch.nn.Sequential(torch.nn.Linear(3, 4), SHARED, torch.nn.Linear(4, 4), SHARED, torch.nn.Linear(4, 1)),
    torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False), torch.nn.GELU(), torch.nn.Linear(4, 2)),
    torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.LeakyReLU(0.2)),
        torch.nn.Dropout(0.3),
        torch.nn.LayerNorm(4),
        torch.nn.ELU(0.5),
        torch.nn.Softplus(2.0),
        torch.nn.Linear(4, 1),
    ),
]


@pytest.mark.parametrize("module", MODULES)
def test_common_layers_are_plain_data(module):
    """A module built from the data, through JSON, computes the same with the same parameters."""
    layers = json.loads(json.dumps(to_layers(module)))
    check_layers(layers)
    again = from_layers(layers).eval()
    again.load_state_dict(module.state_dict())
    x = torch.randn(5, 3)
    assert torch.equal(again(x), module.eval()(x))
    assert to_layers(again) == layers


def changed(change):
    """Return a common layer after a change."""
    module = torch.nn.Linear(3, 1)
    change(module)
    return module


@pytest.mark.parametrize(
    "module",
    [
        changed(lambda own: own.register_forward_hook(lambda _module, _inputs, output: 2 * output)),
        changed(lambda own: own.register_forward_pre_hook(lambda _module, inputs: (2 * inputs[0],))),
        changed(lambda own: setattr(own, "forward", lambda x: x[:, :1])),
        changed(lambda own: own.register_buffer("more", torch.ones(1))),
        torch.nn.LayerNorm(3, bias=False),
        torch.nn.Sequential(torch.nn.Linear(3, 1), *(torch.nn.Identity() for _ in range(300))),
        Custom(lambda self, x: self.layer(x)),
        torch.nn.Sequential(torch.nn.Linear(3, 1), Custom(lambda _, x: x)),
        torch.nn.BatchNorm1d(3, track_running_stats=False),
        torch.nn.LayerNorm((2, 3)),
        type("Mine", (torch.nn.Linear,), {})(3, 1),
    ],
)
def test_other_modules_have_no_layers(module):
    """Including subclasses of common ones and layers that were changed, which may compute anything."""
    assert to_layers(module) is None


def test_sequences_count_as_layers():
    """So that no description builds millions of empty ones."""
    some = ["Sequential", [[str(number), ["Sequential", []]] for number in range(200)]]
    wide = ["Sequential", [["a", some], ["b", some]]]
    with pytest.raises(ValueError, match="at most 256 layers"):
        check_layers(wide)


def test_what_layers_do_is_compared_before_they_are_recorded(tmp_path, monkeypatch):
    """Where somebody changed torch's own layers, the module is recorded as a program, and valued as it computed."""
    head = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    monkeypatch.setattr("verfedsv.transcript.heads.from_layers", lambda _: other)
    about = log(head, path=tmp_path).description.head
    assert about.layers is None
    assert len(about.program) == 64
    by_program = value(tmp_path, trust_head=True)  # by torch; heads of known layers have compiled loops
    np.testing.assert_allclose(by_program.values, value(tmp_path, head=head).values, rtol=1e-12, atol=0)


def test_modules_that_differ_do_not_agree():
    """With the same parameters and another function in between."""
    build = lambda kind: torch.nn.Sequential(torch.nn.Linear(3, 4), kind(), torch.nn.Linear(4, 1))  # noqa: E731
    own = Head(build(torch.nn.Tanh))
    assert own.agrees_with(build(torch.nn.Tanh), 3)
    assert not own.agrees_with(build(torch.nn.ReLU), 3)


def test_the_first_round_shows_the_widths():
    """In the order of the clients, unless they were given."""
    about = log(torch.nn.Linear(3, 1)).description.head
    assert (about.clients, about.widths, about.layers) == (("a", "b"), (2, 1), ["Linear", 3, 1, True])
    given = Recorder(None, LABELS, ["a", "b"], head=torch.nn.Linear(3, 1), widths={"b": 1, "a": 2})
    given.update("a", [0], [[1.0, 2.0]], time=0)
    assert given.transcript.widths == {"b": 1, "a": 2}
    with pytest.raises(InputError, match=r"b: embeddings must have shape .*; received \(1, 2\)\. The head takes"):
        given.update("b", [0], [[1.0, 2.0]], time=0)


def test_a_program_is_written_for_other_modules(tmp_path):
    """Its hash is in the description, and a copy of the folder is verified with it."""
    transcript = log(Custom(lambda self, x: self.layer(x).sin()), path=tmp_path)
    assert transcript.description.head.layers is None
    assert len(transcript.description.head.program) == 64
    Transcript.open(tmp_path).verify()


class Constants(torch.nn.Module):
    """A head with numbers that are no parameters."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(3, 1), torch.full((3,), 2.0)
        self.register_buffer("shift", torch.ones(3), persistent=False)

    def forward(self, x):
        """Return the scores."""
        return self.layer(x * self.scale * torch.tensor([1.0, 2.0, 3.0]) + self.shift)


def test_constants_of_a_module_are_part_of_its_program(tmp_path):
    """Tensors that are attributes, buffers that are not saved, and numbers in the code."""
    head = Constants()
    with Recorder(tmp_path, LABELS, ["a", "b"], head=head) as recorder:
        for _ in range(2):
            recorder.log([0, 1, 2, 3], ROUND)
            head.layer.weight.data += 0.1
    found = value(tmp_path, trust_head=True)
    np.testing.assert_allclose(found.values, value(tmp_path, head=head).values, rtol=1e-12)
    assert found.server_value != 0


def test_a_program_that_computes_something_else_is_not_recorded(monkeypatch):
    """The training is, with a warning."""
    monkeypatch.setattr("verfedsv.heads.load_program", lambda _: Custom(lambda self, x: self.layer(x) + 1e-6))
    head = Custom(lambda self, x: self.layer(x))
    with pytest.warns(TranscriptWarning, match="program that torch exported of the head gives other scores, so"):
        assert log(head).description.head.program is None


def test_a_module_that_cannot_be_exported_is_recorded_with_a_warning(capfd):
    """Commands cannot value it then, Python can; torch does not print its graph."""
    head = Custom(lambda self, x: self.layer(x) if float(x.sum()) > 1e9 else self.layer(2 * x))
    with pytest.warns(TranscriptWarning, match=r"cannot export the head .* so commands cannot value this training"):
        assert log(head).description.head.program is None
    assert "def forward" not in capfd.readouterr().err


REFUSED = {
    "another shape": (torch.nn.Linear(3, 2), r"must give an array \(4, 1\) for 4 samples; received shape \(4, 2\)"),
    "another width": (
        torch.nn.Linear(5, 1),
        r"cannot take embeddings of 3 numbers per sample.*that join later, pass the",
    ),
    "NaN": (Custom(lambda self, x: self.layer(x) / 0 * 0), "gives NaN or infinity"),
    "random": (Custom(lambda self, x: self.layer(x) + torch.rand(1)), "other scores each time"),
    "batch": (Custom(lambda self, x: self.layer(x - x.mean(0))), "depends on the other samples"),
    "no tensor": (Custom(lambda _, x: [x]), "must return a tensor of floating-point numbers; received list"),
    "one number": (Custom(lambda self, x: self.layer(x).mean()), r"must give an array \(4, 1\).*; received shape \(\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_head_that_cannot_be_valued_is_refused_before_the_first_record(tmp_path, case):
    """Nothing is written beside the description, labels and parameters that were there before."""
    head, why = REFUSED[case]
    with Recorder(tmp_path, LABELS, ["a", "b"], head=head) as recorder:
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(InputError, match=why) as error:
            recorder.log([0, 1, 2, 3], ROUND)
    assert ("join later" in str(error.value)) == (case == "another width")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("module", [torch.nn.Linear(3, 1), Custom(lambda self, x: self.layer(x))])
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_nothing_is_recorded_under_a_head_that_was_not_tried(tmp_path, mode, module):
    """A first record that does not show all widths is refused; with widths= it is taken, and can be valued."""

    def begin(recorder):
        if mode == "synchronous":
            recorder.log([0, 1], {"a": np.ones((2, 2))}, absent=["b"])
        else:
            recorder.update("a", [0, 1], np.ones((2, 2)), time=0)
            recorder.stamp(time=0)

    with Recorder(tmp_path, LABELS, ["a", "b"], head=module) as recorder:
        with pytest.raises(InputError, match=r"the first record has none of b: create the recorder with the widths of"):
            begin(recorder)
        assert recorder.n_rounds == 0
    with Recorder(tmp_path, LABELS, ["a", "b"], head=module, widths={"a": 2, "b": 1}) as recorder:
        begin(recorder)
    assert value(tmp_path, trust_head=True).n_rounds == 1


@pytest.mark.parametrize("case", REFUSED)
def test_a_head_of_known_widths_is_refused_by_the_constructor(tmp_path, case):
    """Before any file is written but the lock."""
    head, why = REFUSED[case]
    with pytest.raises(InputError, match=why.partition(".*that join later")[0]):
        Recorder(tmp_path, LABELS, ["a", "b"], head=head, widths={"a": 2, "b": 1})
    assert [path.name for path in tmp_path.rglob("*")] == [".lock"]


def test_files_of_a_head_without_records_are_removed(tmp_path):
    """By the next recorder in the folder; parameters that its own head has too are kept."""
    first, second = Custom(lambda self, x: self.layer(x)), torch.nn.Sequential(torch.nn.Linear(3, 1))
    with torch.no_grad():
        second[0].bias.copy_(first.layer.bias)
    Recorder(tmp_path, LABELS, ["a", "b"], head=first, widths={"a": 2, "b": 1}).close()
    assert (tmp_path / "head.pt2").exists()
    Recorder(tmp_path, LABELS, ["a", "b"], head=second, widths={"a": 2, "b": 1}).close()
    about = Transcript.open(tmp_path).description.head
    assert {path.stem for path in (tmp_path / TENSORS).iterdir()} == {*about.state}
    assert not (tmp_path / "head.pt2").exists()


def test_dropout_is_off():
    """Heads are evaluated in evaluation mode, and stay in the user's mode."""
    head = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    log(head)
    assert head.training


def test_what_changes_in_a_head_is_refused_with_nothing_recorded():
    """Parameters of another shape or name, NaN, an offset, and widths that change."""
    head = torch.nn.Sequential(torch.nn.Linear(3, 1))
    recorder = Recorder(None, LABELS, ["a", "b"], head=head)
    recorder.log([0, 1, 2, 3], ROUND)
    right = head[0]
    head[0] = torch.nn.Linear(4, 1)
    with pytest.raises(InputError, match=r"parameter '0.weight' of the head has another type or shape"):
        recorder.log([0, 1, 2, 3], ROUND)
    head[0] = torch.nn.Linear(3, 1, bias=False)
    with pytest.raises(InputError, match="other names than when the recorder was created"):
        recorder.log([0, 1, 2, 3], ROUND)
    head[0] = right
    with torch.no_grad():
        right.bias[0] = torch.nan
    with pytest.raises(InputError, match=r"parameter '0.bias' of the head has NaN or infinite numbers"):
        recorder.log([0, 1, 2, 3], ROUND)
    with torch.no_grad():
        right.bias[0] = 1.0
    with pytest.raises(InputError, match="a head with parameters has no offset"):
        recorder.log([0, 1, 2, 3], ROUND, offset=1.0)
    with pytest.raises(InputError, match=r"a: embeddings must have shape \(4, 2\)"):
        recorder.log([0, 1, 2, 3], {"a": np.ones((4, 3)), "b": np.ones((4, 1))})
    assert recorder.transcript.n_rounds == 1
    recorder.log([0, 1, 2, 3], ROUND)
    recorder.transcript.verify()


def test_a_type_that_changes_before_the_first_round_leaves_no_program(tmp_path):
    """Parameters are checked before the program of a custom head is written."""
    head = Custom(lambda self, x: self.layer(x))
    with Recorder(tmp_path, LABELS, ["a", "b"], head=head) as recorder:
        before = {path.name for path in tmp_path.rglob("*")}
        head.double()
        with pytest.raises(InputError, match="has another type or shape than at the start"):
            recorder.log([0, 1, 2, 3], ROUND)
    assert {path.name for path in tmp_path.rglob("*")} == before


def test_layers_of_sizes_from_numpy_are_plain_data():
    """A sum of widths is often a number of NumPy."""
    head = torch.nn.Sequential(torch.nn.Linear(np.array([1, 2]).sum(), 2), torch.nn.LayerNorm(np.int64(2)))
    assert json.loads(json.dumps(to_layers(head)))[1][0] == ["0", ["Linear", 3, 2, True]]


@pytest.mark.parametrize("widths", [[2, 1], "x", 3])
def test_widths_are_by_client(widths):
    """A list of them does not say whose they are."""
    with pytest.raises(InputError, match=r"widths must map each client to the width of its embeddings, such as"):
        Recorder(None, LABELS, ["a", "b"], head=torch.nn.Linear(3, 1), widths=widths)


class Tied(torch.nn.Module):
    """A head whose two layers share one weight."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.last = torch.nn.Linear(3, 1)

    def forward(self, x):
        """Return the scores."""
        return self.last(torch.tanh(self.b(torch.tanh(self.a(x)))))


@pytest.mark.parametrize("is_sequence", [True, False])
def test_a_tensor_with_several_names_is_recorded(tmp_path, is_sequence):
    """By the layers or the program that the run holds, values are those of the module itself."""
    torch.manual_seed(0)
    head = Tied()
    if is_sequence:
        head = torch.nn.Sequential(head.a, torch.nn.Tanh(), head.b, torch.nn.Tanh(), head.last)
    with Recorder(tmp_path, LABELS, ["a", "b"], head=head) as recorder:
        for size in (1.0, 2.0):
            recorder.log([0, 1, 2, 3], {name: size * own for name, own in ROUND.items()})
            with torch.no_grad():
                next(head.parameters()).mul_(1.5)
    found = value(tmp_path, trust_head=not is_sequence)
    np.testing.assert_allclose(found.values, value(tmp_path, head=head).values, rtol=1e-12)
    assert found.server_value != 0


def test_widths_are_for_heads():
    """Under a sum there is one width."""
    with pytest.raises(InputError, match="widths are for heads with parameters"):
        Recorder(None, LABELS, ["a"], widths={"a": 1})
    with pytest.raises(InputError, match="the head has no width for client 'b'"):
        Recorder(None, LABELS, ["a", "b"], head=torch.nn.Linear(3, 1), widths={"a": 3})
    with pytest.raises(InputError, match="width of 'a' must be at least 1"):
        Recorder(None, LABELS, ["a"], head=torch.nn.Linear(3, 1), widths={"a": 0})


def test_a_training_with_a_head_is_continued(tmp_path):
    """By the same module, with the widths of the first round."""
    head = torch.nn.Linear(3, 1)
    log(head, path=tmp_path)
    with Recorder(tmp_path, LABELS, ["a", "b"], head=head, resume=True) as recorder:
        recorder.log([0, 1, 2, 3], ROUND)
    assert Transcript.open(tmp_path).n_rounds == 2
    with pytest.raises(InputError, match="cannot be continued with another head"):
        Recorder(tmp_path, LABELS, ["a", "b"], head=torch.nn.Linear(3, 1, bias=False), resume=True)


class Duck:
    """Parameters of no torch module."""

    def state_dict(self):
        """Return one."""
        return {"weight": np.ones(3)}


def forge(tmp_path, change):
    """Record a head, and write the same with another description of it and a valid chain; return the folder."""
    head = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    transcript = log(head, path=tmp_path / "honest")
    about = json.loads(transcript.origin[0])
    change(about["head"])
    rewrite(tmp_path / "honest", tmp_path / "forged", lambda message: message, json.dumps(about).encode())
    shutil.copytree(tmp_path / "honest" / TENSORS, tmp_path / "forged" / TENSORS)
    return tmp_path / "forged"


def with_layer(layer, name="1"):
    """Return a change of a description that puts a layer between the two, under a valid hash."""

    def change(head):
        head["layers"][1][1] = [name, layer]
        head["architecture"] = digest_of_layers(head["layers"])

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda head: head.update(architecture="0" * 64), "architecture of the head is not the SHA-256 of its layers"),
        (with_layer(["Exec", "rm"]), "a layer of an unknown kind, 'Exec'"),
        (with_layer(["Dropout", 5.0]), "cannot be built: dropout probability"),
        (with_layer(["ReLU"], "forward"), "cannot be built: .*forward"),
        (with_layer(["ReLU"], "training"), "cannot be built: .*training"),
        (with_layer(["Linear", 2, 2**24, False]), "do not have the parameters that were recorded"),
        (with_layer(["Linear", 2, 2, True]), "do not have the parameters that were recorded"),
        (with_layer(["LayerNorm", 2, 0.0, True]), "do not have the parameters that were recorded"),
        (with_layer(["BatchNorm1d", 2, -1.0]), "a layer BatchNorm1d with other arguments than it takes"),
        (lambda head: head.update(widths=[2**17, 1]), "width of all embeddings together must be a whole number from 1"),
        (with_layer(["Softplus", 0.0, 20.0]), "gives NaN or infinity"),
    ],
)
def test_forged_layers_are_refused(tmp_path, change, why):
    """With a message, whatever is in them: a description is somebody else's data."""
    with pytest.raises((InputError, TranscriptError), match=why):
        value(forge(tmp_path, change))


def test_an_honest_copy_passes(tmp_path):
    """So that the forgeries above are refused for what was changed."""
    found = value(forge(tmp_path, lambda _: None))
    np.testing.assert_array_equal(found.values, value(tmp_path / "honest").values)


def test_wrong_shapes_of_embeddings_are_explained():
    """Too few rows have nothing to do with the head; a wrong width does, and it is said where the right one is from."""
    with Recorder(
        None, [0, 1, 1], ["bank", "telco"], head=torch.nn.Linear(3, 1), widths={"bank": 1, "telco": 2}
    ) as early:
        with pytest.raises(
            InputError,
            match=r"shape \(3, 2\), .*; received \(2, 2\)\. The batch has 3 samples, and these are 2 rows$",
        ):
            early.update("telco", [0, 1, 2], np.ones((2, 2)))
        with pytest.raises(InputError, match=r"received \(3, 4\)\. The head .* of this client, as stated in widths="):
            early.update("telco", [0, 1, 2], np.ones((3, 4)))
    with Recorder(None, [0, 1, 1], ["bank", "telco"], head=Duck()) as late:
        late.update("telco", [0, 1, 2], np.ones((3, 2)), time=1)
        with pytest.raises(InputError, match=r"of this client, as in its earlier uploads$"):
            late.update("telco", [0, 1, 2], np.ones((3, 4)), time=2)
