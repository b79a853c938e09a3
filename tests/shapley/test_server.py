"""A server whose own part of the sum changes is one more player of the round."""

import numpy as np
import pytest

import verfedsv
from tests.games import LOSSES, Game, mean_loss, random_game, values_by_definition
from verfedsv import RoundGame

METHODS = ("auto", "closed-form", "exact", "permutation")


def with_server(loss, step=0.3, **options):
    """Return a round, and how the server's own part moves in it."""
    game = random_game(loss, step=step, offset=True, **options)
    rng = np.random.default_rng(1)
    return game, {"offset": game.offset + step * rng.normal(size=game.offset.shape), "previous_offset": game.offset}


def stacked(game, offsets):
    """Return the same round with the server among the clients, as the last one."""
    previous = np.concatenate([game.previous, offsets["previous_offset"][np.newaxis]])
    current = np.concatenate([game.current, offsets["offset"][np.newaxis]])
    return Game(previous, current, game.labels, game.loss)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("method", METHODS)
def test_values_are_those_of_a_game_of_clients_and_server(loss, method):
    """Every method finds the values of the definition within its errors, the server's apart from the clients'."""
    game, offsets = with_server(loss)
    *clients, server = values_by_definition(stacked(game, offsets))
    result = verfedsv.shapley_values(*game.arguments, method=method, **offsets)
    assert result.values.shape == result.errors.shape == (game.n_clients,)
    assert (np.abs(result.values - clients) <= result.errors + 1e-14).all()
    assert abs(result.server_value - server) <= result.server_error + 1e-14
    assert result.shares.sum() == pytest.approx(1)


@pytest.mark.filterwarnings("ignore::verfedsv.ToleranceWarning")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("method", METHODS)
def test_the_books_of_a_round_balance(loss, method):
    """The loss falls by what clients and server together are credited with, computed by the textbook."""
    game, offsets = with_server(loss, step=1.0)
    result = verfedsv.shapley_values(*game.arguments, method=method, **offsets)
    before = mean_loss(loss, game.previous.sum(axis=0) + offsets["previous_offset"], game.labels)
    after = mean_loss(loss, game.current.sum(axis=0) + offsets["offset"], game.labels)
    assert result.values.sum() + result.server_value == pytest.approx(before - after, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_server_that_did_not_move_has_exactly_nothing(method):
    """The clients have the same values as with a constant offset."""
    game = random_game("logistic", offset=True)
    constant = {"offset": game.offset}
    still = verfedsv.shapley_values(*game.arguments, method=method, previous_offset=game.offset, **constant)
    assert (still.server_value, still.server_error) == (0.0, 0.0)
    alone = verfedsv.shapley_values(*game.arguments, method="exact", **constant)
    assert (np.abs(still.values - alone.values) <= still.errors + alone.errors).all()
    assert alone.server_value == 0


@pytest.mark.parametrize("semivalue", ["banzhaf", "leave-one-out", verfedsv.Beta(2, 1)])
def test_other_semivalues_have_the_server_too(semivalue):
    """The server is a player for every semivalue."""
    game, offsets = with_server("logistic")
    apart = verfedsv.shapley_values(*game.arguments, method="exact", semivalue=semivalue, **offsets)
    together = verfedsv.shapley_values(*stacked(game, offsets).arguments, method="exact", semivalue=semivalue)
    np.testing.assert_allclose([*apart.values, apart.server_value], together.values, rtol=0, atol=1e-15)


def test_a_client_as_large_as_the_server_is_not_merged_with_it():
    """The server is not grouped with a client that changed by the same; their values agree up to rounding."""
    game, _ = with_server("logistic", n_clients=2)
    change = game.current[0] - game.previous[0]
    offsets = {"previous_offset": game.offset, "offset": game.offset + change}
    result = verfedsv.shapley_values(*game.arguments, method="exact", **offsets)
    assert result.values[0] == pytest.approx(result.server_value, rel=1e-9)


def test_the_game_itself_has_a_place_for_the_server():
    """A coalition is a row over clients and server, and the game of all of them is the decrease of the loss."""
    game, offsets = with_server("softmax")
    round_game = RoundGame.from_arrays(*game.arguments, **offsets)
    assert (round_game.n_clients, round_game.n_players) == (4, 5)
    before = mean_loss("softmax", game.previous.sum(axis=0) + offsets["previous_offset"], game.labels)
    only_server = mean_loss("softmax", game.previous.sum(axis=0) + offsets["offset"], game.labels)
    np.testing.assert_allclose(round_game([[0, 0, 0, 0, 1]]), before - only_server, rtol=1e-12)
    with pytest.raises(verfedsv.InputError, match="a row of 5 booleans"):
        round_game([[0, 0, 0, 1]])


def test_the_tolerance_is_one_of_the_clients():
    """A server whose value is a thousand times larger does not make errors of the clients small."""
    game, offsets = with_server("logistic", n_samples=2000, step=0.02)
    offsets["offset"] = offsets["previous_offset"] + 6.0
    result = verfedsv.shapley_values(*game.arguments, **offsets)
    assert abs(result.server_value) > 100 * np.abs(result.values).max()
    assert result.tolerance_met
    assert result.errors.max() <= 1e-3 * np.abs(result.values).max()


def test_previous_offset_needs_offset():
    """previous_offset without offset is refused, and so is one of another shape."""
    game, offsets = with_server("logistic")
    with pytest.raises(verfedsv.InputError, match="also pass offset"):
        verfedsv.shapley_values(*game.arguments, previous_offset=offsets["previous_offset"])
    with pytest.raises(verfedsv.InputError, match=r"previous_offset must have shape \(30,\)"):
        verfedsv.shapley_values(*game.arguments, offset=game.offset, previous_offset=[1.0])


def test_the_result_says_what_the_server_did():
    """Its text names clients and server separately, and who raised the loss."""
    game, offsets = with_server("logistic")
    offsets["offset"] = offsets["previous_offset"] + 5 * np.where(game.labels > 0, -1, 1)
    shown = repr(verfedsv.shapley_values(*game.arguments, **offsets))
    assert "the server RAISED it by" in shown
