import numpy as np
import pytest
from numba import cuda

from tests.games import LOSSES, LogCosh, random_game, values_by_definition
from verfedsv import InputError, shapley_values
from verfedsv.gpu import devices, memory
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.gpu import closed_form
from verfedsv.shapley.gpu import game as gpu_game


def same(found, expected):
    """Hold values and errors to those of the processor; errors of pure rounding depend on the order of sums."""
    size = np.abs(expected.values).max()
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-12, atol=1e-14 * size)
    np.testing.assert_allclose(found.errors, expected.errors, rtol=1e-9, atol=1e-14 * size)
    np.testing.assert_allclose(found.server_value, expected.server_value, rtol=1e-12, atol=1e-14 * size)
    assert (found.method, found.error_kind) == (expected.method, expected.error_kind)


@pytest.mark.parametrize("server", ["none", "stays", "moves"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_round_has_the_values_of_the_processor(loss, server):
    """And its certificates, with and without a server's part; its Shapley values are within the errors."""
    game = random_game(loss, n_clients=3, n_samples=11, offset=server != "none")
    options = {} if server == "none" else {"offset": game.offset}
    if server == "moves":
        options["previous_offset"] = 0.5 * game.offset
    found = shapley_values(*game.arguments, method="closed-form", device="cuda", **options)
    same(found, shapley_values(*game.arguments, method="closed-form", **options))
    if server != "moves":
        assert (np.abs(found.values - values_by_definition(game)) <= found.errors).all()


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_narrow_numbers_are_computed_with_in_float64(loss):
    """The values are those of the same numbers in float64."""
    game = random_game(loss, n_clients=2, n_samples=5, dtype=np.float32)
    wide = game.previous.astype(float), game.current.astype(float), game.labels, loss
    same(shapley_values(*game.arguments, device="cuda"), shapley_values(*wide))


@pytest.mark.parametrize(("n_clients", "n_samples"), [(1, 1), (6, 3), (9, 2)])
def test_few_samples_and_more_clients_than_threads(n_clients, n_samples):
    """Tiles that are not full, and threads that add several clients."""
    for loss in ("logistic", "softmax"):
        game = random_game(loss, n_clients, n_samples)
        same(shapley_values(*game.arguments, device="cuda"), shapley_values(*game.arguments))


def test_equal_clients_are_equal_and_unmoved_ones_have_0():
    """To the bit, as on the processor."""
    for loss in ("logistic", "softmax"):
        game = random_game(loss, n_clients=4, n_samples=9)
        game.previous[3], game.current[3] = game.previous[0], game.current[0]
        game.current[1] = game.previous[1]
        values = shapley_values(*game.arguments, device="cuda").values
        assert values[3] == values[0]
        assert values[1] == 0


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # the simulator computes with NumPy's numbers
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e61])
def test_embeddings_that_cannot_be_computed_with_are_refused(loss, wrong):
    """With the message of the processor."""
    game = random_game(loss, n_clients=2, n_samples=5)
    game.current[1, 3] = wrong
    with pytest.raises(InputError, match=r"embeddings must be finite; current\[1, 3|must sum to less than 1e\+60"):
        shapley_values(*game.arguments, method="closed-form", device="cuda")


def test_what_has_no_kernel_is_left_to_the_processor():
    """A user's loss, another method, and samples whose error is too large."""
    game = random_game("squared", n_clients=3, n_samples=6)
    own = game.previous, game.current, game.labels, LogCosh()
    np.testing.assert_array_equal(shapley_values(*own, device="cuda").values, shapley_values(*own).values)
    exact = [shapley_values(*game.arguments, "exact", device=device).values for device in ("cuda", "cpu")]
    np.testing.assert_array_equal(*exact)
    hard = random_game("logistic", n_clients=3, n_samples=8, step=3.0)
    found, expected = (shapley_values(*hard.arguments, device=device) for device in ("cuda", "cpu"))
    assert found.method == expected.method == "closed-form+exact"
    np.testing.assert_array_equal(found.values, expected.values)


class OnGpu:
    """An array in the memory of a GPU, as libraries show it to each other."""

    __cuda_array_interface__ = None

    def __init__(self, numbers):
        self.numbers = cuda.to_device(numbers)


def test_arrays_on_a_gpu_are_valued_there(monkeypatch):
    """Without a copy in main memory."""
    monkeypatch.setattr(cuda, "as_cuda_array", lambda array: array.numbers, raising=False)
    monkeypatch.setattr(gpu_game, "_on_host", lambda _: pytest.fail("copied"))
    assert devices.is_on_gpu(OnGpu(np.zeros(3)))
    for loss in ("logistic", "softmax"):
        game = random_game(loss, n_clients=3, n_samples=7)
        found = shapley_values(OnGpu(game.previous), OnGpu(game.current), game.labels, loss, "closed-form")
        same(found, shapley_values(*game.arguments, "closed-form"))


def test_arrays_that_do_not_fit_are_sent_in_parts(monkeypatch):
    """A part of the samples at a time."""
    game = random_game("softmax", n_clients=3, n_samples=11)
    expected = shapley_values(*game.arguments)
    monkeypatch.setattr(gpu_game, "free_bytes", lambda: 4 * 2 * (16 * 3 * 3 + 24 * 3))
    assert gpu_game.RoundOnGpu.from_arrays(*game.arguments)._most_samples() == 4
    same(shapley_values(*game.arguments, device="cuda"), expected)


def test_shared_memory_limits_players_times_classes():
    """What does not fit a block is left to the processor."""
    softmax = RoundGame.from_arrays(*random_game("softmax").arguments).loss
    assert closed_form.can_value(softmax, 800, 7)
    assert not closed_form.can_value(softmax, 900, 7)
    assert memory.free_bytes() > 0
