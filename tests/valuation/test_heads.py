"""Trainings whose server has a head, held to the definition computed in plain torch from the server's own table."""

import copy
import math
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from verfedsv import InputError, Recorder, Transcript, TranscriptError, Valuation, value
from verfedsv.errors import TranscriptWarning
from verfedsv.transcript import Stamp
from verfedsv.valuation.heads import find_head
from verfedsv.valuation.verdict import judge

torch = pytest.importorskip("torch")

WIDTHS = {"bank": 2, "telco": 3, "shop": 1, "mall": 2}
NAMES = [*WIDTHS]


def build(activation=torch.nn.Tanh, n_classes=1, width=8):
    """Return a head of one hidden layer."""
    return torch.nn.Sequential(torch.nn.Linear(width, 5), activation(), torch.nn.Linear(5, n_classes))


class Own(torch.nn.Module):
    """A head that is not made of common layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 5), torch.nn.Linear(5, 1)

    def forward(self, x):
        """Return the scores."""
        return self.second(torch.tanh(self.first(x)) ** 2)[:, 0]


class Training:
    """A split learning of a few clients in plain torch, with the server's own table of what it received.

    `states` are the head's before the first round and after each, `tables` the embeddings of all samples.
    """

    def __init__(self, n_samples=30, n_rounds=6, head=None, n_classes=1, seed=0, rate=0.3):
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        self.features = {name: rng.normal(size=(n_samples, 3)) for name in NAMES}
        signal = sum(x[:, 0] for x in self.features.values())
        self.labels = (signal > 0).astype(int) if n_classes == 1 else np.digitize(signal, [-1, 1])
        self.head = build(n_classes=n_classes) if head is None else head
        self.models = {name: torch.nn.Linear(3, WIDTHS[name]) for name in NAMES}
        self.loss = "logistic" if n_classes == 1 else "softmax"
        self.n_samples, self.n_rounds, self.rate, self.rng = n_samples, n_rounds, rate, rng
        self.table = {name: np.zeros((n_samples, WIDTHS[name])) for name in NAMES}
        self.states, self.tables = [self.state()], [self.snapshot()]

    def state(self):
        """Return a copy of the head's parameters."""
        return {name: value.clone() for name, value in self.head.state_dict().items()}

    def snapshot(self):
        """Return a copy of the table."""
        return {name: own.copy() for name, own in self.table.items()}

    def embed(self, name, batch):
        """Return the embeddings of some samples."""
        with torch.no_grad():
            return self.models[name](torch.tensor(self.features[name][batch], dtype=torch.float32)).numpy()

    def receive(self, name, batch, embeddings):
        """Write an upload to the table."""
        self.table[name][batch] = embeddings

    def end_round(self):
        """Note the head and the table at a time stamp."""
        self.states.append(self.state())
        self.tables.append(self.snapshot())

    def step(self, batch, names=NAMES):
        """Take a step of the clients' models and the head."""
        x = {n: torch.tensor(self.features[n][batch], dtype=torch.float32) for n in NAMES}
        scores = self.head(torch.cat([self.models[n](x[n]) for n in NAMES], 1))
        y = torch.tensor(self.labels[batch])
        if self.loss == "softmax":
            loss = torch.nn.functional.cross_entropy(scores, y)
        else:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores.reshape(len(y)), y.float())
        parameters = [*self.head.parameters(), *(p for n in names for p in self.models[n].parameters())]
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            with torch.no_grad():
                parameter -= self.rate * gradient

    def mean_loss(self, embeddings, state):
        """Return the mean loss of all samples, in float64."""
        x = torch.tensor(np.hstack([embeddings[name] for name in NAMES]))
        state = {name: value.double() for name, value in state.items()}
        with torch.no_grad():
            scores = torch.func.functional_call(copy.deepcopy(self.head).double(), state, (x,))
        y = torch.tensor(self.labels)
        if self.loss == "softmax":
            return float(torch.nn.functional.cross_entropy(scores, y))
        return float(torch.nn.functional.binary_cross_entropy_with_logits(scores.reshape(len(y)), y.double()))

    def brute_force(self):
        """Return the values of clients and server, (rounds, 5), by the definition."""
        rows = []
        for t in range(len(self.tables) - 1):

            def utility(members, t=t):
                chosen = {n: self.tables[t + (members >> m & 1)][n] for m, n in enumerate(NAMES)}
                return -self.mean_loss(chosen, self.states[t + (members >> len(NAMES) & 1)])

            rows.append(shapley(utility, len(NAMES) + 1))
        return np.array(rows)


def shapley(utility, n):
    """Return the Shapley values of a game by the definition."""
    of = [utility(members) for members in range(2**n)]
    values = np.zeros(n)
    for m in range(n):
        for members in range(2**n):
            if not members >> m & 1:
                size = members.bit_count()
                weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
                values[m] += weight * (of[members | 1 << m] - of[members])
    return values


def record_synchronously(training, path=None, head=None, **options):
    """Record full batches; the second client misses the third round, the head moves in every round but the first."""
    recorder = Recorder(path, training.labels, NAMES, training.loss, head=head or training.head, **options)
    batch = np.arange(training.n_samples)
    for t in range(training.n_rounds):
        absent = ["telco"] if t == 2 else []
        uploads = {name: training.embed(name, batch) for name in NAMES if name not in absent}
        recorder.log(batch, uploads, absent=absent)
        for name, embeddings in uploads.items():
            training.receive(name, batch, embeddings)
        training.end_round()
        training.step(batch)
    return recorder


def record_asynchronously(training, path=None):
    """Record uploads of random batches, two a round, with a head that moves; one client never uploads at first."""
    recorder = Recorder(path, training.labels, NAMES, training.loss, head=training.head, widths=WIDTHS)
    for t in range(training.n_rounds):
        for name in ("bank", "telco", "mall") if t < 3 else ("telco", "shop"):
            batch = np.sort(training.rng.permutation(training.n_samples)[:12])
            embeddings = training.embed(name, batch)
            recorder.update(name, batch, embeddings, time=t)
            training.receive(name, batch, embeddings)
            training.step(batch, [name])
        recorder.stamp(time=t)
        training.end_round()
    return recorder


def check(recorder, training, **options):
    """Check a valuation against the definition: values, errors and books."""
    found = value(recorder, **options)
    expected = training.brute_force()[:, [*map(NAMES.index, found.clients), -1]]
    rows = np.column_stack([found.per_round, found.per_round_server])
    np.testing.assert_allclose(rows, expected, atol=1e-12)
    np.testing.assert_allclose(found.values, expected[:, :-1].mean(axis=0), atol=1e-12)
    start, end = (training.mean_loss(training.tables[t], training.states[t]) for t in (0, -1))
    np.testing.assert_allclose([found.books.start, found.books.end], [start, end], atol=1e-12)
    assert abs(found.books.remainder) < 1e-12
    return found


@pytest.mark.parametrize("activation", [torch.nn.Tanh, torch.nn.ReLU])
def test_synchronous_values_are_those_of_the_servers_table(activation):
    """With a client that misses a round, which has 0 there, and a server that is one more player."""
    training = Training(head=build(activation))
    found = check(record_synchronously(training), training)
    assert found.per_round[2, 1] == 0.0
    assert found.methods == ("exact",)
    assert found.error_kind == "certified but for rounding"


def test_asynchronous_values_are_those_of_the_servers_table():
    """With uploads of some samples, a client that comes late, and a head that moves all samples."""
    training = Training(n_classes=3, head=build(n_classes=3))
    found = check(record_asynchronously(training), training)
    assert (found.per_round[:3, 2] == 0).all()


def test_a_running_training_is_continued():
    """To the same values as valuing all of it at once."""
    training = Training(n_rounds=4)
    recorder = record_asynchronously(training)
    early = value(recorder)
    training.n_rounds = 3
    for t in range(4, 7):
        recorder.update("shop", [1, 2], training.embed("shop", [1, 2]), time=t)
        training.step(np.arange(5))
        recorder.stamp(time=t)
    np.testing.assert_array_equal(value(recorder, since=early).per_round, value(recorder).per_round)


def test_a_client_that_joins_has_zeros_before():
    """The head takes its embeddings from the start, where the widths say, which need not be the order of joining."""
    training = Training(n_rounds=3)
    founders = ["bank", "telco", "mall"]
    recorder = Recorder(None, training.labels, founders, head=training.head, widths=WIDTHS)
    batch = np.arange(training.n_samples)
    for t in range(4):
        if t == 2:
            recorder.join("shop")
        present = NAMES if t >= 2 else founders
        uploads = {name: training.embed(name, batch) for name in present}
        recorder.log(batch, uploads)
        for name, embeddings in uploads.items():
            training.receive(name, batch, embeddings)
        training.end_round()
        training.step(batch, present)
        if t == 1:
            assert value(recorder).clients == (*founders,)
    assert check(recorder, training).clients == (*founders, "shop")
    with pytest.raises(InputError, match="'pub' cannot join: the head takes the embeddings of bank, telco, shop"):
        recorder.join("pub")


def test_work_under_another_head_is_not_continued(tmp_path):
    """A module of the same layers that computes something else, as after an edit of its code."""

    class Edited(Own):
        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))[:, 0]

    Edited.__name__ = "Own"
    training = Training(head=Own())
    record_asynchronously(training, tmp_path).close()
    heads = [kind() for kind in (Own, Edited)]

    def stop(_done, _total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        value(tmp_path, "exact", head=heads[0], memory="4GB", progress=stop)
    with pytest.raises(InputError, match="another valuation, with another head; continue"):
        value(tmp_path, "exact", head=heads[1], memory="4GB", resume=True)
    found = value(tmp_path, "exact", head=heads[0], memory="4GB", resume=True)
    np.testing.assert_array_equal(found.values, value(tmp_path, "exact", head=heads[0]).values)


def test_a_recorder_of_a_head_of_other_layers_has_it():
    """Its recording is valued without trusting anybody; what commands will need is said once."""
    training = Training(head=Own(), n_rounds=2)
    with pytest.warns(TranscriptWarning, match="commands on this run will need --trust-head") as said:
        recorder = record_synchronously(training)
    assert len(said) == 1
    check(recorder, training)
    with pytest.raises(InputError, match="loading one can run any code of whoever recorded it"):
        value(recorder.transcript)


def test_a_head_of_other_layers_is_recorded_as_a_program(tmp_path):
    """Which is loaded only if it is trusted; the module itself can be passed instead, and no other."""
    training = Training(head=Own())
    record_synchronously(training, tmp_path).close()
    found = check(Transcript.open(tmp_path), training, trust_head=True)
    with pytest.raises(InputError, match="loading one can run any code of whoever recorded it"):
        value(tmp_path)
    np.testing.assert_array_equal(value(tmp_path, head=Own()).values, found.values)
    with pytest.raises(InputError, match="this head is not the one that was recorded"):
        value(tmp_path, head=build())
    program = tmp_path / "head.pt2"
    program.write_bytes(program.read_bytes() + b"x")
    with pytest.raises(TranscriptError, match=r"head\.pt2 was changed"):
        value(tmp_path, trust_head=True)
    with pytest.raises(TranscriptError, match=r"head\.pt2 was changed"):
        Transcript.open(tmp_path).verify()


class Hidden(torch.nn.Module):
    """A head whose description does not tell its size."""

    def __init__(self, hidden):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, hidden), torch.nn.Linear(hidden, 1)

    def forward(self, x):
        """Return the scores."""
        return self.second(torch.sin(self.first(x)))[:, 0]

    def __repr__(self):
        return "Hidden"


def test_a_module_with_other_parameters_is_refused(tmp_path):
    """With the name of the first that does not fit; nothing is written."""
    record_synchronously(Training(head=Hidden(5)), tmp_path).close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"recorded .*: 'first.weight' has shape \(5, 8\) instead of \(6, 8\)"):
        value(tmp_path, head=Hidden(6))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_upload_before_joining_is_refused():
    """And nothing of the round is recorded."""
    training = Training(n_rounds=1)
    recorder = Recorder(None, training.labels, NAMES[:3], head=training.head, widths=WIDTHS)
    batch = np.arange(training.n_samples)
    uploads = {name: training.embed(name, batch) for name in NAMES}
    for record in (
        lambda: recorder.log(batch, uploads),
        lambda: recorder.update("mall", batch, uploads["mall"], time=0),
    ):
        with pytest.raises(InputError, match="mall"):
            record()
    assert recorder.transcript.n_records == 0
    recorder.join("mall")
    recorder.log(batch, uploads)
    assert recorder.transcript.n_rounds == 1


def test_a_sum_has_no_head():
    """A module for a training without one is an error."""
    recorder = Recorder(None, [0, 1], ["a"])
    recorder.log([0, 1], {"a": [1.0, 2.0]})
    with pytest.raises(InputError, match="it has no head"):
        value(recorder, head=build())
    assert value(recorder, head="sum").n_rounds == 1


@pytest.mark.parametrize("head", ["sum", "foo", 3])
def test_a_head_that_is_no_module_is_refused(head):
    """Only the module that was recorded can take its place."""
    recorder = record_synchronously(Training(n_rounds=1))
    with pytest.raises(InputError, match=r"head must be the torch module that was recorded, or None .*; received "):
        value(recorder, head=head)


@pytest.fixture
def sampled(monkeypatch):
    """Let "auto" draw wherever it would enumerate few samples."""
    for name in ("FEW", "FEW_OF_PART"):
        monkeypatch.setattr(f"verfedsv.shapley.head_estimators.{name}", 0)
    monkeypatch.setattr("verfedsv.shapley.head_estimators.FEWEST_OF_LOOPS", 8)


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize(("method", "part"), [("auto", "sampling"), ("exact", "exact")])
def test_any_executor_gives_the_same_numbers(tmp_path, monkeypatch, method, part):
    """One thread, many, and other processes, which read the head's states themselves."""
    monkeypatch.setattr("verfedsv.valuation.backends.CompiledLoops.chunk_size", lambda *_: 400)
    training = Training(n_samples=3000, n_rounds=3)
    record_synchronously(training, tmp_path).close()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(5) as many:
        found = [value(tmp_path, method, executor=executor, tolerance=0.05) for executor in (None, one, many)]
    with ProcessPoolExecutor(1) as process:
        found.append(value(tmp_path, method, executor=process, tolerance=0.05))
    assert part in found[0].methods
    for other in found[1:]:
        np.testing.assert_array_equal(other.per_round, found[0].per_round)
        np.testing.assert_array_equal(other.errors, found[0].errors)


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("activation", [torch.nn.Tanh, torch.nn.ReLU])
def test_sampled_values_keep_tolerance_and_errors(activation, seed):
    """Over a whole training, against enumeration of all coalitions; with ReLU few samples meet a kink."""
    torch.manual_seed(seed + 3)
    training = Training(n_samples=4000, n_rounds=5, head=build(activation))
    recorder = record_synchronously(training)
    exact, found = value(recorder, "exact"), value(recorder, tolerance=0.02)
    assert "sampling" in found.methods
    assert found.tolerance_met
    assert (np.abs(found.values - exact.values) <= found.errors).all()
    assert (np.abs(found.per_round - exact.per_round) <= found.per_round_errors).all()
    assert abs(found.server_value - exact.server_value) <= found.server_error
    np.testing.assert_allclose(found.losses, exact.losses, atol=1e-12)


def test_draws_depend_on_the_head_after_the_round():
    """Which no client knows when it uploads: so it cannot choose embeddings for the samples that are not drawn."""
    training = Training(n_samples=50, n_rounds=3)
    transcript = record_synchronously(training).transcript
    states = {record.state for record in transcript if isinstance(record, Stamp)}
    head, first = find_head(transcript), transcript.description.head.state
    assert len({head.move(first, state).entropy for state in states}) == len(states) == 3


def test_the_closed_form_states_no_error():
    """Its values are close, its errors unknown, and the verdict is not sound."""
    training = Training(rate=0.05)
    recorder = record_synchronously(training)
    exact, found = value(recorder, "exact"), value(recorder, "closed-form")
    np.testing.assert_allclose(found.per_round[1:], exact.per_round[1:], atol=1e-4 * np.abs(exact.per_round).max())
    assert np.isinf(found.errors[:2]).all()
    assert found.error_kind == "unknown"
    assert "with unknown errors" in repr(found)
    read = Valuation.from_json(found.to_json())
    assert (read.error_kind, np.isnan(read.errors[:2]).all()) == ("unknown", True)
    for each in (found, read):
        (text,) = judge(each).texts("doubt")
        assert text.endswith(
            "is unknown, because nothing bounds that of the closed form under a head. Use the method auto."
        )


@pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")
@pytest.mark.parametrize("activation", [torch.nn.Tanh, torch.nn.ReLU])
def test_completed_values_are_within_their_errors(activation):
    """Mini-batches, against a recording of all embeddings of the same training."""
    n_samples, names = 300, NAMES
    training = Training(n_samples=n_samples, n_rounds=0, head=build(activation), rate=0.2)
    some, everything = (Recorder(None, training.labels, names, head=training.head) for _ in range(2))
    for _ in range(40):
        batch = np.sort(training.rng.permutation(n_samples)[:60])
        some.log(batch, {name: training.embed(name, batch) for name in names})
        everything.log(np.arange(n_samples), {name: training.embed(name, np.arange(n_samples)) for name in names})
        training.step(batch)
    found, true = value(some), value(everything)
    assert found.completion is not None
    assert {report.rank > 0 for report in found.completion} == {True}
    assert (np.abs(found.values - true.values) <= found.errors).all()
    assert abs(found.server_value - true.server_value) <= found.server_error
    assert found.errors.max() < 4 * np.abs(found.values).max()
    assert found.guarantee is None
