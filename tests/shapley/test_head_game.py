import copy
from fractions import Fraction

import numpy as np
import pytest

from tests.shapley.head_rounds import ACTIVATIONS, brute_force, make
from verfedsv import InputError, shapley_values
from verfedsv.shapley.head_game import HeadGame

torch = pytest.importorskip("torch")

WIDTHS = [3, 1, 2, 1, 1, 4, 2, 1]
CASES = [(n_clients, loss) for n_clients in (1, 2, 4, 8) for loss in ("softmax", "logistic", "squared")]
CASES += [(3, "softmax"), (5, "logistic"), (6, "squared"), (7, "softmax")]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("n_clients", "loss"), CASES)
def test_every_method_is_held_to_brute_force(n_clients, loss, activation):
    """Exact to rounding, auto and permutation within their stated errors, the closed form closely if it is smooth."""
    moves_server = n_clients != 5
    arguments, options = make(
        WIDTHS[:n_clients], loss=loss, activation=activation, moves_server=moves_server, seed=n_clients
    )
    values, server = brute_force(arguments, options)
    size = max(np.abs(values).max(), abs(server))
    exact = shapley_values(*arguments, "exact", **options)
    np.testing.assert_allclose([*exact.values, exact.server_value], [*values, server], atol=1e-12 * size)
    assert exact.error_kind == "certified but for rounding"
    for method in ("auto", "permutation"):
        found = shapley_values(*arguments, method, **options, n_permutations=400)
        assert (np.abs(found.values - values) <= found.errors + 1e-14).all()
        assert abs(found.server_value - server) <= found.server_error + 1e-14
        np.testing.assert_allclose(found.values.sum() + found.server_value, values.sum() + server, atol=1e-13)
    closed = shapley_values(*arguments, "closed-form", **options)
    assert np.isinf(closed.errors).all()
    assert closed.error_kind == "unknown"
    assert "errors unknown" in repr(closed)
    if activation != "relu":
        np.testing.assert_allclose([*closed.values, closed.server_value], [*values, server], atol=0.02 * size)


def test_dropout_is_off():
    """A head in training mode is valued as in evaluation mode, and stays in its mode."""
    arguments, options = make([2, 1, 1], moves_server=False)
    smooth = options["head"]
    dropping = torch.nn.Sequential(smooth[0], torch.nn.Dropout(0.5), smooth[1], smooth[2]).train()
    found = shapley_values(*arguments, "exact", head=dropping)
    np.testing.assert_array_equal(found.values, shapley_values(*arguments, "exact", head=smooth).values)
    assert dropping.training


class Logarithm(torch.nn.Module):
    """A head that gives NaN where an embedding is below -9."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        """Return the scores."""
        return torch.log(self.layer(x) * 0 + x[:, :1] + 9)


@pytest.mark.parametrize("method", ["auto", "exact", "permutation", "closed-form"])
def test_scores_that_are_not_finite_are_refused(method):
    """With the sample that they belong to."""
    arguments, _ = make([2, 1, 1], moves_server=False)
    arguments[1][0][7] = -10.0
    with pytest.raises(InputError, match="the head gives NaN or infinity for the finite embeddings of sample 7"):
        shapley_values(*arguments, method, head=Logarithm())


def test_parameters_of_another_module_are_refused():
    """By name and by shape."""
    arguments, options = make([2, 1, 1])
    state = options["previous_head"]
    with pytest.raises(InputError, match=r"previous_head .*: '0.bias' has shape \(5,\) instead of \(6,\)"):
        shapley_values(*arguments, head=options["head"], previous_head={**state, "0.bias": np.zeros(5)})
    with pytest.raises(InputError, match=r"previous_head are not those of head .*: '3\.bias' differs"):
        shapley_values(*arguments, head=options["head"], previous_head={**state, "3.bias": np.zeros(5)})


@pytest.mark.filterwarnings("ignore::verfedsv.errors.ToleranceWarning")
@pytest.mark.parametrize("method", ["exact", "auto"])
@pytest.mark.parametrize("n_huge", [1, 300])
def test_errors_cover_what_rounds_away(method, n_huge):
    """Where huge embeddings of two clients cancel, what a third one adds is lost; held to fractions."""
    rng = np.random.default_rng(0)
    n_samples, huge = 400, np.zeros((400, 1))
    huge[rng.choice(n_samples, n_huge, replace=False)] = 9e11
    own, labels = rng.normal(size=(n_samples, 1)), rng.normal(size=n_samples)
    head = torch.nn.Linear(3, 1).double()
    head.weight.data[:], head.bias.data[:] = 1.0, 0.0
    zeros = [np.zeros((n_samples, 1))] * 3
    parts = [[Fraction(float(x)) for x in part[:, 0]] for part in (huge, -huge, own)]

    def utility(members):
        scores = [sum(part[i] for m, part in enumerate(parts) if members >> m & 1) for i in range(n_samples)]
        return -sum((score - Fraction(float(y))) ** 2 for score, y in zip(scores, labels, strict=True)) / (
            2 * n_samples
        )

    of, true = [utility(members) for members in range(8)], []
    for m in range(3):
        others = [k for k in range(8) if not k >> m & 1]
        true.append(sum(Fraction(1, [3, 6, 3][k.bit_count()]) * (of[k | 1 << m] - of[k]) for k in others))
    found = shapley_values(zeros, [huge, -huge, own], labels, "squared", head=head, method=method)
    for estimate, error, exact in zip(found.values, found.errors, true, strict=True):
        assert abs(Fraction(float(estimate)) - exact) <= error


@pytest.mark.parametrize("previous_head", [5, "module", [1, 2]])
def test_a_previous_head_that_is_none_is_refused(previous_head):
    """It is a module, or what its state_dict() returns."""
    arguments, options = make([2, 1])
    with pytest.raises(InputError, match="previous_head must be the module before the round, or its state_dict"):
        shapley_values(*arguments, head=options["head"], previous_head=previous_head)


class Custom(torch.nn.Module):
    """A head that computes its scores by any function of the embeddings."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = torch.nn.Linear(3, 1), function

    def forward(self, x):
        """Return the scores."""
        return self.function(self, x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda self, x: self.layer(x).mean(), r"must give an array \(4, classes\).*; received shape \(\)"),
        (lambda self, x: self.layer(x) > 0, "floating-point numbers; received a tensor of bool"),
        (lambda self, x: self.layer(x).long(), "floating-point numbers; received a tensor of int64"),
        (lambda self, x: [self.layer(x)], "floating-point numbers; received list"),
    ],
)
def test_results_that_are_no_scores_are_refused(function, message):
    """A scalar for all samples, numbers of another type, or something else than a tensor."""
    arguments, _ = make([2, 1], loss="logistic")
    with pytest.raises(InputError, match=message):
        shapley_values(*arguments, head=Custom(function))


@pytest.mark.parametrize("method", ["auto", "exact", "permutation", "closed-form"])
def test_a_head_may_change_its_input_in_place(method):
    """It gets a copy of the embeddings."""
    arguments, _ = make([2, 1], loss="logistic")
    in_place = Custom(lambda self, x: self.layer(x.mul_(2).tanh_()))
    plain = Custom(lambda self, x: self.layer((x * 2).tanh()))
    plain.load_state_dict(in_place.state_dict())
    values, expected = (shapley_values(*arguments, method, head=head, seed=1).values for head in (in_place, plain))
    np.testing.assert_allclose(values, expected, rtol=1e-12)


class Tied(torch.nn.Module):
    """A head whose two layers share one weight."""

    def __init__(self, width, *, is_tied=True):
        super().__init__()
        self.a, self.b = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        if is_tied:
            self.b.weight = self.a.weight
        self.last = torch.nn.Linear(width, 1)

    def forward(self, x):
        """Return the scores."""
        return self.last(torch.tanh(self.b(torch.tanh(self.a(x)))))


@pytest.mark.parametrize("method", ["auto", "exact", "closed-form"])
def test_one_tensor_may_have_several_names(method):
    """Values are those of brute force, also if the tensor moved."""
    arguments, _ = make([2, 1, 1], loss="logistic", step=0.05)
    torch.manual_seed(0)
    earlier = Tied(4)
    head = copy.deepcopy(earlier)
    with torch.no_grad():
        head.a.weight.add_(0.01)
    found = shapley_values(*arguments, method, head=head, previous_head=earlier)
    untied = Tied(4, is_tied=False)
    untied.load_state_dict(head.state_dict())
    values, server = brute_force(arguments, {"head": untied, "previous_head": {**earlier.state_dict()}})
    np.testing.assert_allclose([*found.values, found.server_value], [*values, server], atol=1e-7)
    assert found.server_value != 0


def test_one_tensor_with_two_contents_is_refused():
    """Names of one tensor must say the same of it."""
    arguments, _ = make([2, 1, 1], loss="logistic")
    head = Tied(4)
    state = {**head.state_dict(), "b.weight": np.zeros((4, 4))}
    with pytest.raises(InputError, match=r"'b\.weight' and 'a\.weight' are one tensor of the head, and differ"):
        shapley_values(*arguments, head=head, previous_head=state)


def test_a_head_without_third_derivatives_has_no_closed_form():
    """Torch has no forward derivatives of the attention of a transformer."""
    arguments, _ = make([2, 2], loss="logistic")
    attention = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    head = torch.nn.Sequential(attention, torch.nn.Linear(4, 1))
    alone = Custom(lambda self, x: self.block(x[:, None])[:, 0])
    alone.block = head
    with pytest.raises(InputError, match="torch has no third derivatives of this head"):
        shapley_values(*arguments, "closed-form", head=alone)
    assert np.isfinite(shapley_values(*arguments, "auto", head=alone).values).all()


@pytest.mark.parametrize("moves_server", [True, False])
def test_loops_and_torch_give_the_same_losses(moves_server):
    """Whether all samples have the same coalitions, or each its own; without loops, torch evaluates the head."""
    arguments, options = make([2, 1, 3], activation="gelu", moves_server=moves_server)
    game = HeadGame.from_arrays(*arguments, **options)
    by_torch = copy.deepcopy(game)
    by_torch.head.loops = None
    rng, samples = np.random.default_rng(0), np.array([3, 0, 7, 7])
    for shape in ((9, game.n_players), (9, len(samples), game.n_players)):
        members = rng.random(shape) < 0.5
        found, expected = game.losses(samples, members), by_torch.losses(samples, members)
        np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)


def test_saturated_units_may_be_reached_by_infinity():
    """Loops and torch agree where what a client adds to a unit overflows before or after the round."""
    arguments, options = make([1, 1], loss="logistic", moves_server=False)
    with torch.no_grad():
        options["head"].double()[0].weight[:, 0] = 1e300
    arguments[0][0][3], arguments[1][0][5] = 1e10, -1e10
    values, _ = brute_force(arguments, options)
    np.testing.assert_allclose(shapley_values(*arguments, "exact", **options).values, values, atol=1e-14)


@pytest.mark.parametrize("is_known", [True, False])
def test_few_players_are_enumerated_where_that_is_fast(is_known):
    """By loops, where the layers of the head are known; of another module, samples are drawn."""
    arguments, options = make([1, 1, 2, 1, 1], n_samples=5000, loss="logistic", step=0.05)
    if not is_known:
        options["head"].register_forward_hook(lambda *_: None)
    found = shapley_values(*arguments, "auto", **options, tolerance=0.2)
    assert found.method == ("exact" if is_known else "sampling")
