import numpy as np
import pytest

from tests.games import random_game
from tests.settlement.runs import make_run
from verfedsv import DeviceWarning, InputError, Recorder, shapley_values, value
from verfedsv.gpu import devices
from verfedsv.losses import Logistic
from verfedsv.settlement.audit import audit


@pytest.fixture
def no_gpu(monkeypatch):
    """No GPU can be used."""
    monkeypatch.setattr(devices, "why_no_gpu", lambda: "there is none")
    devices._say_once.cache_clear()
    yield
    devices._say_once.cache_clear()


def recorded():
    """Return a recorder of one round."""
    recorder = Recorder(None, labels=[0, 1, 1, 0], clients=["bank", "telco"])
    recorder.log([0, 1, 2, 3], {"bank": [-1.0, 1.0, 1.0, -1.0], "telco": [0.1, 0.2, -0.1, 0.3]})
    return recorder


@pytest.mark.usefixtures("no_gpu")
def test_a_gpu_that_is_not_there_is_an_error():
    """The message says why, and what works without one."""
    game = random_game("logistic")
    with pytest.raises(InputError, match="device 'cuda' cannot be used: there is none; device='auto' uses the proce"):
        shapley_values(*game.arguments, device="cuda")
    with recorded() as recorder, pytest.raises(InputError, match="device 'cuda' cannot be used"):
        value(recorder, device="cuda")


@pytest.mark.usefixtures("no_gpu")
def test_auto_takes_the_processor_and_says_so_once(recwarn):
    """The values are the same bits as without a device."""
    game = random_game("softmax")
    results = [shapley_values(*game.arguments, device="auto") for _ in range(2)]
    with recorded() as recorder:
        values = value(recorder, device="auto").values
        np.testing.assert_array_equal(values, value(recorder).values)
    assert [str(warning.message) for warning in recwarn] == ["computing on the processor: there is none"]
    assert recwarn[0].category is DeviceWarning
    for result in results:
        np.testing.assert_array_equal(result.values, shapley_values(*game.arguments).values)


def test_unknown_devices_are_refused():
    """The allowed ones are named."""
    with pytest.raises(InputError, match="unknown device 'gpu'; allowed are 'cpu', 'cuda', 'auto'"):
        shapley_values([[0.0]], [[1.0]], [1], device="gpu")


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch):
    """Numba alone is not enough."""
    devices.why_no_gpu.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "numba-cuda is not installed (pip install '.[gpu]' in the checkout" in devices.why_no_gpu()
    devices.why_no_gpu.cache_clear()


def test_where_an_array_is_is_told_by_its_interface():
    """Arrays of NumPy and tensors on the processor are not on a GPU; what DLPack says counts too."""

    class Tensor:
        def __init__(self, device):
            self.device = device

        def __dlpack_device__(self):
            return self.device, 0

    assert not devices.is_on_gpu(np.zeros(3))
    assert not devices.is_on_gpu([[1.0]])
    assert not devices.is_on_gpu(Tensor(1))
    assert devices.is_on_gpu(Tensor(2))


def test_a_block_of_threads_shares_no_more_than_it_may():
    """48 KB, for any number of players: their changes with a padding each, and three numbers for each thread."""
    closed_form = pytest.importorskip("verfedsv.shapley.gpu.closed_form")
    for n_players in range(1, 3070):
        n_threads = closed_form._scalar_threads(n_players)
        assert 8 * (n_players * (n_threads + 1) + 3 * n_threads) <= 48 * 1024
        assert n_threads > 0 or not closed_form.can_value(Logistic(), n_players, 1)


@pytest.mark.usefixtures("no_gpu")
def test_an_audit_on_a_gpu_that_is_not_there_is_refused(tmp_path):
    """Like a valuation."""
    with pytest.raises(InputError, match="there is none"):
        audit(make_run(tmp_path / "run"), device="cuda")
