"""Random data to train on, and training on it as a textbook has it, in plain NumPy."""

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit, softmax

from verfedsv.data.vertical import ClientData, VerticalData
from verfedsv.federation.schedules import batch_of_round


def make_data(n_clients=3, n_samples=120, n_classes=2, n_features=4, n_test=20, seed=0, sparse=False):
    """Return vertically split random data whose labels depend on all clients; they are amounts if `n_classes` is 1."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(n_clients, n_samples, n_features))
    columns[rng.random(columns.shape) < 0.5] = 0
    score = np.einsum("mnf,mfc->nc", columns, rng.normal(size=(n_clients, n_features, n_classes)))
    clients = tuple(
        ClientData(f"client {m + 1}", csr_array(columns[m]) if sparse else columns[m]) for m in range(n_clients)
    )
    labels = 500 + 30 * (score[:, 0] + rng.normal(size=n_samples)) if n_classes == 1 else score.argmax(axis=1)
    return VerticalData(clients, labels, n_classes, np.arange(n_samples) >= n_samples - n_test)


def joined(data):
    """Return the columns of all clients side by side."""
    return np.hstack(
        [np.asarray(c.numeric.todense() if hasattr(c.numeric, "todense") else c.numeric) for c in data.clients]
    )


def slope(z, labels):
    """Return the gradients of the logistic loss (one class), of softmax or, for amounts, of squared loss."""
    if labels.dtype.kind == "f":
        return z - labels[:, None]
    return expit(z) - labels[:, None] if z.shape[1] == 1 else softmax(z, axis=1) - np.eye(z.shape[1])[labels]


def plain_sgd(data, schedule, rate, *, inverse=False, intercept=False):
    """Return the weights and intercept of plain SGD on the joined data."""
    x, y = joined(data)[~data.is_test], data.labels[~data.is_test]
    n_classes = 1 if data.n_classes == 2 else data.n_classes
    y = (y - y.mean()) / y.std() if data.n_classes == 1 else y
    weights, own = np.zeros((x.shape[1], n_classes)), np.zeros(n_classes)
    for t in range(schedule.n_rounds):
        batch = batch_of_round(t, len(y), schedule.batch_size, schedule.seed)
        gradient = slope(x[batch] @ weights + own, y[batch])
        step = rate / (t + 1) if inverse else rate
        weights = weights - step * x[batch].T @ gradient / len(batch)
        own = own - step * gradient.mean(axis=0) if intercept else own
    return weights, own


def clients_of(training):
    """Return the client sides of a training in one process."""
    return [*training.transport.clients.values()]


def weights_of(training):
    """Return the weights of all clients, stacked."""
    return np.vstack([client.state()["weights"] for client in clients_of(training)])


def hand_over(first, second):
    """Bring a training to the state of another one."""
    second.server.restore(first.server.state())
    for old, new in zip(clients_of(first), clients_of(second), strict=True):
        new.restore(old.state())


def records_of(recorder):
    """Return all records as plain values."""

    def plain(value):
        return value.tolist() if isinstance(value, np.ndarray) else value

    return [
        (type(record).__name__, *((name, plain(value)) for name, value in vars(record).items()))
        for record in recorder.transcript
    ]
