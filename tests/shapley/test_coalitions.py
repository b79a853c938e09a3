import numpy as np
import pytest

from tests.games import LOSSES, random_game, utility
from verfedsv.shapley.coalitions import RANGE, DirectSums, LogPartitionSums, coalition_sums
from verfedsv.shapley.game import RoundGame

N_CLIENTS, N_SAMPLES = 8, 70


def sums_and_game(loss, kind, step=1.0):
    game = random_game(loss, N_CLIENTS, N_SAMPLES, step=step, offset=True)
    block = RoundGame.from_arrays(*game.arguments, offset=game.offset).block(slice(0, N_SAMPLES))
    chosen = coalition_sums(block, RoundGame.from_arrays(*game.arguments).loss)
    if kind == "direct":
        loss_object = RoundGame.from_arrays(*game.arguments).loss
        chosen = DirectSums(loss_object, block.base(), block.change(), block.labels)
    return chosen, game


CASES = [*[(loss, "direct") for loss in LOSSES], ("logistic", "chosen"), ("softmax", "chosen")]


@pytest.mark.parametrize(("loss", "kind"), CASES)
def test_subsets(loss, kind):
    """The sums over subsets, joined by fixed clients, are those of the definition, up to the linear part."""
    sums, game = sums_and_game(loss, kind)
    fixed = np.array([True, False])
    result = sums.subsets(N_CLIENTS - 2, fixed)
    for s in (0, 1, 5, 37, 63):
        members = [k for k in range(N_CLIENTS - 2) if s >> k & 1] + [N_CLIENTS - 2]
        expected = utility(game, frozenset(members)) - utility(game, frozenset([N_CLIENTS - 2]))
        gained = result[0] - result[s] - sums.linear[members[:-1]].sum()
        assert gained / N_SAMPLES == pytest.approx(expected, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize(("loss", "kind"), CASES)
def test_chains(loss, kind):
    """The sums along a permutation are those of its growing coalitions."""
    sums, game = sums_and_game(loss, kind)
    order = np.random.default_rng(0).permutation(N_CLIENTS)
    result = sums.chains(order[None])[0]
    for step in range(1, N_CLIENTS + 1):
        gained = result[0] - result[step] - sums.linear[order[:step]].sum()
        assert gained / N_SAMPLES == pytest.approx(utility(game, frozenset(order[:step].tolist())), rel=1e-9)


@pytest.mark.parametrize(("loss", "kind"), CASES)
def test_toggles(loss, kind):
    """What each client adds to a coalition is the difference of two utilities, whether it is in there or not."""
    sums, game = sums_and_game(loss, kind)
    members = np.array([True, False, True, True, False, False, True, False])
    inside = frozenset(np.flatnonzero(members).tolist())
    result = sums.toggles(members[None])[0] + sums.linear
    for m in range(N_CLIENTS):
        expected = utility(game, inside | {m}) - utility(game, inside - {m})
        assert -result[m] / N_SAMPLES == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_the_fast_sums_are_used_within_their_range_only(loss):
    """Exponentials are used up to a summed change of 80, and the loss itself beyond; both agree there."""
    step = 4.0 if loss == "logistic" else 5.0
    fast, _ = sums_and_game(loss, "chosen", step=step)
    direct, _ = sums_and_game(loss, "direct", step=step)
    assert isinstance(fast, LogPartitionSums)
    order = np.arange(N_CLIENTS)[None]
    expected = np.diff(direct.chains(order)[0])
    np.testing.assert_allclose(np.diff(fast.chains(order)[0]) + fast.linear, expected, rtol=1e-10)
    far, _ = sums_and_game(loss, "chosen", step=RANGE)
    assert isinstance(far, DirectSums)
