import os

import numpy as np
import pytest

from tests.games import LOSSES, random_game, utility
from verfedsv.errors import InputError
from verfedsv.shapley.game import RoundGame
from verfedsv.threads import available_threads, ordered_map, split


@pytest.mark.parametrize("loss", LOSSES)
def test_utilities_are_those_of_the_paper(loss):
    """Calling the game with coalitions gives equation 1, the server's own part included."""
    game = random_game(loss, n_clients=3, offset=True)
    round_game = RoundGame.from_arrays(*game.arguments, offset=game.offset)
    coalitions = [[False, False, False], [True, False, True], [True, True, True]]
    expected = [utility(game, frozenset(np.flatnonzero(c).tolist())) for c in coalitions]
    np.testing.assert_allclose(round_game(coalitions), expected, rtol=1e-12, atol=1e-15)


def test_coalitions_have_one_entry_per_client():
    """A coalition of another length is refused."""
    game = RoundGame.from_arrays(*random_game("logistic", n_clients=3).arguments)
    with pytest.raises(InputError, match="row of 3 booleans"):
        game([[True, False]])


def test_arrays_are_not_copied():
    """The game and its blocks hold views of plain arrays."""
    game = random_game("logistic")
    round_game = RoundGame.from_arrays(*game.arguments)
    assert np.shares_memory(round_game.previous, game.previous)
    assert np.shares_memory(round_game.block(slice(3, 9)).current, game.current)


def test_identical_clients_are_found():
    """Exactly the clients with the same change are grouped, whatever their embeddings before it."""
    rng = np.random.default_rng(0)
    previous, change = rng.integers(-4, 4, (6, 50)).astype(float), rng.integers(1, 9, (6, 50)) / 4
    change[4] = change[1]
    change[5] = change[0]
    change[3] = change[0][::-1]  # the same sum, another change
    game = RoundGame.from_arrays(previous, previous + change, np.arange(50) % 2)
    assert sorted(game.identical_clients()) == [[0, 5], [1, 4]]


@pytest.mark.parametrize(("n_samples", "size"), [(0, 5), (1, 5), (5, 5), (6, 5), (48_842, 1000)])
def test_blocks_cover_all_samples_once(n_samples, size):
    """Blocks are contiguous, no larger than asked for, and nearly equal."""
    parts = split(n_samples, size)
    covered = [i for part in parts for i in range(part.start, part.stop)]
    assert covered == list(range(n_samples))
    lengths = {part.stop - part.start for part in parts}
    assert not lengths or (max(lengths) <= size and max(lengths) - min(lengths) <= 1)


@pytest.mark.parametrize("n_threads", [1, 4])
def test_results_come_in_order_and_errors_come_through(n_threads):
    """Results keep the order of the items for any number of threads; an exception ends the work."""
    assert list(ordered_map(lambda i: i * i, range(100), n_threads)) == [i * i for i in range(100)]

    def fail(i):
        if i == 7:
            raise InputError("seven")
        return i

    with pytest.raises(InputError, match="seven"):
        list(ordered_map(fail, range(100), n_threads))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_threads_work_in_a_forked_process():
    """A process forked after threads were started can start its own."""
    assert list(ordered_map(abs, range(9), 3)) == list(range(9))
    child = os.fork()
    if child == 0:
        os._exit(0 if list(ordered_map(abs, range(9), 3)) == list(range(9)) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_at_least_one_thread():
    """There is a core to run on."""
    assert available_threads() >= 1


def test_clients_whose_changes_differ_in_the_sign_of_zero_are_identical():
    """A change of -0 is a change of 0: both clients get the same value."""
    previous, current = np.zeros((3, 4)), np.array([[1.0, 0.0, 2.0, 0.0], [1.0, -0.0, 2.0, 0.0], [3.0, 1.0, 1.0, 1.0]])
    assert RoundGame.from_arrays(previous, current, [0, 1, 1, 0]).identical_clients() == [[0, 1]]


def test_clients_that_differ_only_in_the_last_sample_are_not_identical():
    """All samples are compared, not only the first few."""
    current = np.zeros((3, 100))
    current[:, :50] = 1.0
    current[2, -1] = 0.5
    game = RoundGame.from_arrays(np.zeros((3, 100)), current, np.arange(100) % 2)
    assert game.identical_clients() == [[0, 1]]
