"""A network at the server, held to split learning as one writes it in plain PyTorch."""

import numpy as np
import pytest

from tests.federation.textbook import clients_of, make_data
from verfedsv.errors import DivergedError, InputError
from verfedsv.federation import Rate, SynchronousSchedule, Training, synchronous_rounds
from verfedsv.federation.heads import read_head
from verfedsv.federation.schedules import batch_of_round

torch = pytest.importorskip("torch")

from verfedsv.federation.torch_heads import TorchHead  # noqa: E402
from verfedsv.head_layers import mlp_layers  # noqa: E402

WIDTHS = {"client 1": 3, "client 2": 1, "client 3": 4}
UNITS = {"gelu": torch.nn.GELU, "relu": torch.nn.ReLU, "silu": torch.nn.SiLU, "tanh": torch.nn.Tanh}
OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.02),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.02),
}
SCHEDULE = SynchronousSchedule(25, 12, seed=3)


def make_head(n_classes, activation="gelu", optimizer="adam", hidden=(5,), rate=0.02, seed=0):
    """Return a head over the embeddings of three clients."""
    layers = mlp_layers(sum(WIDTHS.values()), hidden, n_classes, activation)
    return TorchHead(layers, WIDTHS, Rate(rate), optimizer, seed=seed)


def split_learning(data, activation, optimizer):
    """Return the weights of the clients and the head, trained by plain PyTorch: linear models by gradient descent."""
    is_train = ~data.is_test
    x = [torch.tensor(own.numeric[is_train]) for own in data.clients]
    torch.manual_seed(0)
    head = torch.nn.Sequential(torch.nn.Linear(8, 5), UNITS[activation](), torch.nn.Linear(5, data.width)).double()
    weights = [
        torch.zeros(own.shape[1], width, dtype=torch.float64) for own, width in zip(x, WIDTHS.values(), strict=True)
    ]
    for own in weights:
        own.requires_grad_()
    optimizers = [torch.optim.SGD(weights, lr=0.5), OPTIMIZERS[optimizer](head.parameters())]
    y = torch.tensor(data.targets[is_train])
    for t in range(SCHEDULE.n_rounds):
        batch = torch.tensor(batch_of_round(t, len(y), SCHEDULE.batch_size, SCHEDULE.seed))
        scores = head(torch.cat([own[batch] @ w for own, w in zip(x, weights, strict=True)], dim=1))
        if data.loss == "softmax":
            loss = torch.nn.functional.cross_entropy(scores, y[batch])
        elif data.loss == "logistic":
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores[:, 0], y[batch].double())
        else:
            loss = torch.square(scores[:, 0] - y[batch]).mean() / 2
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()
    return [own.detach().numpy() for own in weights], head


@pytest.mark.parametrize("n_classes", [1, 2, 4])
@pytest.mark.parametrize(("activation", "optimizer"), [*zip(UNITS, [*OPTIMIZERS, "adam"], strict=True)])
def test_training_is_split_learning(n_classes, activation, optimizer):
    """Models of clients, head and predictions are those of a plain loop: losses, activations, optimisers, widths."""
    data = make_data(3, n_classes=n_classes)
    head = make_head(data.width, activation, optimizer)
    training = Training.in_process(data, rate=Rate(0.5), head=head)
    for _ in synchronous_rounds(training, SCHEDULE):
        pass
    weights, module = split_learning(data, activation, optimizer)
    for client, expected in zip(clients_of(training), weights, strict=True):
        np.testing.assert_allclose(client.state()["weights"], expected, rtol=0, atol=1e-12)
    for name, expected in module.state_dict().items():
        np.testing.assert_allclose(head.parameters()[name], expected, rtol=0, atol=1e-12)
    order = np.argsort(data.is_test, kind="stable")
    x = [torch.tensor(own.numeric[order]) @ torch.tensor(w) for own, w in zip(data.clients, weights, strict=True)]
    scores = module(torch.cat(x, dim=1)).detach().numpy()
    expected = data.label_scale.restored(scores)
    np.testing.assert_allclose(training.predict(np.arange(len(order))), expected, rtol=1e-10, atol=1e-12)


def test_weights_of_classes_reach_the_network():
    """The same as repeating the samples of a class in each batch, as often as its weight."""
    data = make_data(3, n_classes=2)
    heads = [make_head(1, optimizer="sgd") for _ in range(2)]
    weighted = Training.in_process(data, rate=Rate(0.5), head=heads[0], class_weights=np.array([1.0, 2.0]))
    plain = Training.in_process(data, rate=Rate(0.5), head=heads[1])
    batch = np.arange(40)
    weighted.train_round(batch)
    plain.train_round(batch)
    labels = data.labels[batch]
    start = make_head(1).module
    scores = start(torch.zeros(40, 8, dtype=torch.float64))[:, 0]
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        scores, torch.tensor(labels).double(), reduction="none"
    )
    (losses * torch.tensor(1.0 + labels)).mean().backward()
    for (name, own), before in zip(heads[0].module.named_parameters(), start.parameters(), strict=True):
        np.testing.assert_allclose(own.detach(), (before - 0.02 * before.grad).detach(), atol=1e-14, err_msg=name)
    assert any(
        not torch.equal(*pair) for pair in zip(heads[0].module.parameters(), heads[1].module.parameters(), strict=True)
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_head_continues_from_its_state(optimizer):
    """To the last bit, and for predictions from its layers and parameters alone."""
    rng = np.random.default_rng(0)
    heads = [make_head(2, optimizer=optimizer, seed=seed) for seed in (0, 1)]
    x = {name: rng.normal(size=(6, width)) for name, width in WIDTHS.items()}
    for _ in range(3):
        heads[0].learn(x, lambda scores: scores - 1)
    heads[1].restore(heads[0].state())
    read = read_head(heads[0].describe(), heads[0].state())
    np.testing.assert_array_equal(read.scores(x), heads[0].scores(x))
    for head in heads:
        head.learn(x, lambda scores: scores - 1)
    np.testing.assert_array_equal(heads[0].scores(x), heads[1].scores(x))
    with pytest.raises(InputError, match="does not learn any more"):
        read.learn(x, lambda scores: scores)


def test_a_head_does_not_depend_on_the_state_of_torch():
    """Nor does it change it: the seed of the run is all that counts."""
    torch.manual_seed(5)
    first, drawn = make_head(1), torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    second = make_head(1)
    assert all(torch.equal(*pair) for pair in zip(first.module.parameters(), second.module.parameters(), strict=True))


def test_who_has_not_joined_counts_with_zeros():
    """As the server's table has it, for scores and for the step."""
    heads = [make_head(2) for _ in range(2)]
    x = {"client 1": np.ones((4, 3)), "client 3": np.ones((4, 4))}
    zeros = {**x, "client 2": np.zeros((4, 1))}
    np.testing.assert_array_equal(heads[0].scores(x), heads[1].scores(zeros))
    gradients = [head.learn(own, lambda scores: scores) for head, own in zip(heads, (x, zeros), strict=True)]
    assert [*gradients[0]] == ["client 1", "client 3"]
    for name, found in gradients[0].items():
        np.testing.assert_array_equal(found, gradients[1][name])
    np.testing.assert_array_equal(heads[0].scores(x), heads[1].scores(x))


def test_a_head_that_diverges_says_so():
    """Before its parameters reach the transcript."""
    head = make_head(1, "relu", "sgd", rate=1e300)
    x = {name: np.full((2, width), 1e9) for name, width in WIDTHS.items()}
    with pytest.raises(DivergedError, match="parameters of the head are not finite"):
        head.learn(x, lambda scores: scores + 1e9)


def test_wrong_heads():
    """Each with what would be right."""
    with pytest.raises(InputError, match="no place for 'shop'; it takes client 1, client 2, client 3"):
        make_head(1).width_of("shop")
    with pytest.raises(InputError, match="activation must be one of gelu, relu, silu, tanh; received 'swish'"):
        mlp_layers(8, [4], 1, "swish")
    with pytest.raises(InputError, match="hidden"):
        mlp_layers(8, [0], 1)
    head = make_head(1)
    other = {**head.state(), "head.0.weight": np.zeros((5, 7))}
    with pytest.raises(InputError, match="parameters of the head do not fit its layers"):
        read_head(head.describe(), other)
