from fractions import Fraction

import numpy as np
import pytest

from tests.shapley.head_rounds import ACTIVATIONS, brute_force, make
from verfedsv import InputError, shapley_values

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
    with pytest.raises(InputError, match=r"parameter '0.bias' of the head has shape \(6,\), but \(5,\) was recorded"):
        shapley_values(*arguments, head=options["head"], previous_head={**state, "0.bias": np.zeros(5)})
    with pytest.raises(InputError, match=r"the recorded parameters are not those of this head: 3\.bias differs"):
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
