import io
import zipfile

import numpy as np
import pytest
from scipy.sparse import csr_array

from tests.federation.textbook import clients_of, hand_over, make_data
from verfedsv import InputError
from verfedsv.federation import (
    AsynchronousSchedule,
    Linear,
    Rate,
    RealClock,
    SynchronousSchedule,
    Training,
    VirtualClock,
    asynchronous_rounds,
    synchronous_rounds,
)

torch = pytest.importorskip("torch")

from verfedsv.federation.torch_models import TorchModel, plain_sgd  # noqa: E402  # needs torch


def linear(n_features=5, n_classes=2):
    """Return a linear module in double precision that starts at zero."""
    module = torch.nn.Linear(n_features, n_classes, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(module.weight)
    return module


def learn(model, steps=5, features=None):
    """Let a model take some steps on given gradients."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 5)) if features is None else features
    for _ in range(steps):
        model.learn(x, rng.normal(size=(20, 2)), 0.1)
    return model.embed(x)


def test_a_linear_module_is_the_linear_model():
    """Plain SGD of torch and ours take the same steps."""
    np.testing.assert_allclose(learn(TorchModel(linear())), learn(Linear(5, 2)), atol=1e-12)


def test_an_optimiser_of_ones_own_is_saved_with_its_state():
    """Adam continues after a restore as if nothing had happened."""

    def adam(parameters, rate):
        return torch.optim.Adam(parameters, lr=rate)

    whole, first, second = (TorchModel(linear(), adam) for _ in range(3))
    learn(whole, 3)
    expected = learn(whole, 3)
    learn(first, 3)
    second.restore(first.state())
    np.testing.assert_array_equal(learn(second, 3), expected)


def test_sparse_features():
    """They become dense row by row, as needed."""
    x = np.random.default_rng(0).normal(size=(20, 5))
    np.testing.assert_allclose(
        learn(TorchModel(linear()), features=csr_array(x)), learn(TorchModel(linear()), features=x)
    )


def network(*layers, n_features=5, n_classes=2, seed=0):
    """Return a network with some layers in its middle, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(n_features, 16), *layers, torch.nn.Linear(16, n_classes))


def adam(parameters, rate):
    return torch.optim.Adam(parameters, lr=rate)


def numbers_of(model):
    """Return everything that a model's module has learned or counted."""
    return [tensor.clone() for tensor in model._module.state_dict().values()]


LAYERS = {"dropout": lambda: torch.nn.Dropout(0.5), "batch norm": lambda: torch.nn.BatchNorm1d(16)}


@pytest.mark.parametrize("layer", LAYERS)
def test_embedding_is_for_evaluation(layer):
    """It is the same each time and changes nothing, even with dropout or batch norm."""
    model = TorchModel(network(LAYERS[layer]()))
    plain = TorchModel(network())
    assert not np.array_equal(learn(model, 3), learn(plain, 3))
    before = numbers_of(model)
    x = np.random.default_rng(2).normal(size=(20, 5))
    first = model.embed(x)
    np.testing.assert_array_equal(model.embed(x), first)
    # Of one sample alone, as of all: no statistics of the batch.
    np.testing.assert_allclose(model.embed(x[:1]), first[:1], rtol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(before, numbers_of(model), strict=True))


def test_learning_is_for_training():
    """Running means of batch norm follow the batches, and dropout drops other units in each step."""
    x = np.random.default_rng(0).normal(size=(20, 5))
    model = TorchModel(network(torch.nn.BatchNorm1d(16)))
    model.learn(x, np.ones((20, 2)), 0.1)
    assert int(model._module[1].num_batches_tracked) == 1
    model = TorchModel(torch.nn.Sequential(torch.nn.Dropout(0.5), linear()))
    steps = []
    for _ in range(2):
        before = model.embed(np.eye(5))
        model.learn(np.ones((1, 5)), np.ones((1, 2)), 0.1)
        steps.append(model.embed(np.eye(5)) - before)
    # Units that were left out take no step, others twice that of plain gradient descent.
    assert {round(float(value), 6) for step in steps for value in step.ravel()} == {0.0, -0.2}


def test_dropout_is_the_models_own():
    """It neither changes torch's generator nor depends on it."""
    torch.manual_seed(3)
    expected = TorchModel(network(torch.nn.Dropout(0.5)))
    result = learn(expected, 4)
    torch.manual_seed(3)
    model = TorchModel(network(torch.nn.Dropout(0.5)))
    torch.manual_seed(4)
    number = torch.rand(1)
    torch.manual_seed(4)
    np.testing.assert_array_equal(learn(model, 4), result)
    assert torch.rand(1) == number


def test_dropout_differs_between_models():
    """Clients with the same module do not drop the same units."""
    torch.manual_seed(3)
    first, second = (TorchModel(network(torch.nn.Dropout(0.5))) for _ in range(2))
    assert not np.array_equal(learn(first, 1), learn(second, 1))


def uneven(optimizer=plain_sgd):
    """Return a function that builds models with both dropout and batch norm."""

    def model(n_features, n_classes):
        layers = torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3)
        return TorchModel(network(*layers, n_features=n_features, n_classes=n_classes), optimizer)

    return model


def rounds(training, mode):
    """Return the rest of eight rounds of training."""
    if mode == "synchronous":
        return synchronous_rounds(training, SynchronousSchedule(30, 8))
    schedule = AsynchronousSchedule([0.01, 0.015, 0.02], [30, 20, 10], 0.02, 8)
    return asynchronous_rounds(training, schedule, VirtualClock())


@pytest.mark.parametrize("optimizer", [plain_sgd, adam])
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_training_with_dropout_and_batch_norm_continues_from_its_state(mode, optimizer):
    """Continued by other objects, with torch's generator elsewhere, it arrives at the same models to the last bit."""

    def make(seed):
        torch.manual_seed(seed)
        return Training.in_process(make_data(), rate=Rate(0.05, "inverse"), model=uneven(optimizer), intercept=True)

    whole, first, second = make(0), make(0), make(1)
    for _ in rounds(whole, mode):
        whole.evaluate()
    for n_rounds in rounds(first, mode):
        if n_rounds == 3:
            break
    hand_over(first, second)
    for _ in rounds(second, mode):
        torch.rand(1)
    for a, b in zip(clients_of(whole), clients_of(second), strict=True):
        for x, y in zip(numbers_of(a._model), numbers_of(b._model), strict=True):
            assert torch.equal(x, y)
    np.testing.assert_array_equal(whole.server.state()["intercept"], second.server.state()["intercept"])


def test_evaluation_in_wall_time_does_not_meet_training():
    """Clients are threads, but evaluation changes no statistics, and no step is taken in evaluation mode."""
    training = Training.in_process(make_data(), rate=Rate(0.05), model=uneven())
    schedule = AsynchronousSchedule([0.002] * 3, [30] * 3, 0.01, 30)
    for _ in asynchronous_rounds(training, schedule, RealClock()):
        training.evaluate()
    n_batches = [int(client._model._module[1].num_batches_tracked) for client in clients_of(training)]
    assert n_batches == [*training.server.n_uploads.values()]


def test_dropout_of_clients_that_are_threads_does_not_meet():
    """Each model draws what it would draw alone, although torch has one generator."""
    torch.manual_seed(0)
    training = Training.in_process(make_data(), rate=Rate(0.05), model=uneven())
    torch.manual_seed(0)
    alone = Training.in_process(make_data(), rate=Rate(0.05), model=uneven())
    for _ in asynchronous_rounds(training, AsynchronousSchedule([0.002] * 3, [30] * 3, 0.01, 30), RealClock()):
        pass
    for client, other in zip(clients_of(training), clients_of(alone), strict=True):
        x = np.ones((30, 4))
        for _ in range(training.server.n_uploads[client.name]):
            other._model.learn(x, np.ones((30, 1)), 0.01)
        assert torch.equal(client._model._random, other._model._random)


def test_groups_of_parameters_have_their_own_rates():
    """The rate of a group, built for a rate of 1, multiplies that of the step; a frozen group does not change."""
    module = torch.nn.ModuleDict({"a": linear(), "b": linear(), "c": linear()})
    module.forward = lambda x: sum(part(x) for part in module.values())

    def optimizer(_, rate):
        groups = [
            {"params": module["a"].parameters()},
            {"params": module["b"].parameters(), "lr": 0.1 * rate},
            {"params": module["c"].parameters(), "lr": 0.0},
        ]
        return torch.optim.SGD(groups, lr=rate)

    model, plain = TorchModel(module, optimizer), TorchModel(linear())
    x, gradient = np.random.default_rng(0).normal(size=(20, 5)), np.ones((20, 2))
    for rate in (0.5, 0.25):
        for each in (model, plain):
            each.learn(x, gradient, rate)
        model.restore(model.state())
    expected = plain._module.weight
    torch.testing.assert_close(module["a"].weight, expected)
    torch.testing.assert_close(module["b"].weight, 0.1 * expected)
    assert not module["c"].weight.any()


class Rateless(torch.optim.Optimizer):
    """An optimiser without a rate."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        pass


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda p, rate: torch.optim.LBFGS(p, lr=rate), "LBFGS.*closure.*SGD or Adam"),
        (lambda p, _: Rateless(p), "Rateless.*has no learning rate"),
    ],
)
def test_optimisers_that_cannot_be_used(optimizer, message):
    """Those that evaluate the loss, which a client cannot, and those without a rate."""
    with pytest.raises(InputError, match=message):
        TorchModel(linear(), optimizer)


def test_modules_on_other_devices():
    """They are refused when the model is built, not at the first step."""
    with pytest.raises(InputError, match="must be on the CPU; received parameters on meta"):
        TorchModel(torch.nn.Linear(5, 2, device="meta"))


@pytest.mark.parametrize("harm", ["cut", "compressed", "another", "nothing"])
def test_a_saved_module_that_cannot_be_used_is_refused(harm):
    """Damaged, of another module, or compressed, which could expand to any size."""
    model = TorchModel(torch.nn.Linear(3, 1))
    content = model.state()["torch"].tobytes()
    if harm == "cut":
        content = content[:-100]
    elif harm == "another":
        content = TorchModel(torch.nn.Linear(4, 1)).state()["torch"].tobytes()
    elif harm == "nothing":
        content = b""
    else:
        packed = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
        content = packed.getvalue()
    with pytest.raises(InputError, match="the saved module is damaged, or of another model"):
        model.restore({"torch": np.frombuffer(content, np.uint8)})


class Greedy(torch.nn.Module):
    """A module whose outputs fit into no memory."""

    def forward(self, x):
        return x.new_empty(2**46)


def test_too_little_memory_is_a_memory_error():
    """As for arrays: commands say what to do about it. torch has an error of its own."""
    with pytest.raises(MemoryError, match="a network needs more memory than there is"):
        TorchModel(torch.nn.Sequential(torch.nn.Linear(2, 1), Greedy())).embed(np.ones((3, 2)))
