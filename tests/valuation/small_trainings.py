"""Random small synchronous trainings whose every embedding is known: late joins, absences, samples of one's own.

`python -m tests.valuation.small_trainings 0 500` compares values of the uploads with those of all embeddings;
a third number is the size of the random weights that trainings start from, 0 by default.
"""

import sys
import warnings

import numpy as np
from scipy.special import expit, softmax

from verfedsv import Recorder, Valuation, value
from verfedsv.valuation.verdict import judge


def small_training(seed, start=0.0) -> tuple[Recorder, Recorder]:
    """Return a random training as it was uploaded, and with the embeddings of all samples that a client ever uploads.

    Nothing is missing of the second. What a client never uploads is zero by definition. Weights start at random
    numbers of size `start`.
    """
    rng = np.random.default_rng(seed)
    loss = str(rng.choice(["logistic", "softmax", "squared"]))
    n_classes = 3 if loss == "softmax" else 1
    n, n_clients, n_rounds = (int(rng.choice(k)) for k in ([24, 40, 80, 200], [2, 3, 4], [5, 8, 15, 30, 60]))
    data = [rng.normal(size=(n, k)) for k in rng.integers(1, 5, n_clients)]
    score = sum(x @ rng.normal(size=(x.shape[1], n_classes)) for x in data) + rng.normal(size=(n, n_classes))
    labels = {"logistic": (score[:, 0] > 0).astype(int), "squared": score[:, 0], "softmax": score.argmax(1)}[loss]
    if rng.random() < 0.4:
        rng.shuffle(labels)
    if loss == "softmax":
        labels[:3] = 0, 1, 2
    sizes = [max(2, int(part * n)) for part in rng.choice([0.1, 0.2, 0.4, 0.7], n_clients)]
    rate, noise = rng.choice([0.05, 0.2, 0.5, 1.0]), rng.choice([0, 0, 0, 0.02])
    mode, absence = str(rng.choice(["shared", "shared", "random", "window", "drift"])), rng.choice([0, 0, 0.2])
    names, joins = [f"c{m}" for m in range(n_clients)], int(rng.integers(1, n_rounds)) if rng.random() < 0.5 else 0
    joins = joins if n_clients > 2 else 0
    never = [rng.choice(n, 3 if rng.random() < 0.2 else 0, replace=False) for _ in names]
    weights = [start * rng.normal(size=(x.shape[1], n_classes)) for x in data]
    table, is_uploaded, rounds = np.zeros((n_clients, n, n_classes)), np.zeros((n_clients, n), bool), []
    for t in range(n_rounds):
        members = [m for m in range(n_clients) if m < n_clients - 1 or t >= joins]
        there = [m for m in members if rng.random() >= absence] or members[:1]
        shared = rng.permutation(n)
        for m in there:
            chosen = {
                "shared": shared[: sizes[0]],
                "random": rng.permutation(n)[: sizes[m]],
                "window": (int(rng.integers(n)) + np.arange(sizes[m])) % n,
                "drift": (t * n // n_rounds + np.arange(sizes[m])) % n,
            }[mode]
            chosen = np.setdiff1d(chosen, never[m])
            samples = chosen if len(chosen) else np.setdiff1d(np.arange(n), never[m])[:1]
            table[m] = data[m] @ weights[m] + noise * rng.normal(size=(n, n_classes))
            is_uploaded[m][samples] = True
            rounds.append((t, m, samples, table[m].copy()))
        x = table.sum(axis=0)
        target = np.eye(3)[labels] if loss == "softmax" else labels[:, None]
        slope = {"logistic": expit, "squared": np.asarray, "softmax": lambda x: softmax(x, axis=1)}[loss](x) - target
        for _, m, samples, _ in rounds[len(rounds) - len(there) :]:
            weights[m] = weights[m] - rate * data[m][samples].T @ slope[samples] / len(samples)
    founders = names[:-1] if joins else names
    part, whole = (Recorder(None, labels, founders, loss) for _ in range(2))
    for t in range(n_rounds):
        own = [entry[1:] for entry in rounds if entry[0] == t]
        there = [names[m] for m, _, _ in own]
        for recorder in (part, whole):
            if joins and t == joins:
                recorder.join(names[-1])
        absent = [name for name in (names if t >= joins else founders) if name not in there]
        part.log({names[m]: s for m, s, _ in own}, {names[m]: h[s] for m, s, h in own}, absent=absent)
        every = {m: np.flatnonzero(is_uploaded[m]) for m, _, _ in own}
        whole.log({names[m]: every[m] for m in every}, {names[m]: h[every[m]] for m, _, h in own}, absent=absent)
    return part, whole


def values_against_truth(seed, start=0.0) -> tuple[Valuation, np.ndarray]:
    """Return the valuation of what was uploaded, and by how many of its errors each value is off, NaN if unknown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, true = map(value, small_training(seed, start))
    return found, np.abs(found.values - true.values) / (found.errors + true.errors + 1e-15)


def main(first: int, last: int, start: float = 0.0) -> None:
    """Print how many values are off by more than their errors."""
    pairs = [values_against_truth(seed, start) for seed in range(first, last)]
    off = np.concatenate([ratios for _, ratios in pairs])
    sound = sum((ratios > 1).sum() for found, ratios in pairs if judge(found).word == "sound")
    known, outside = np.isfinite(off), off > 1
    seeds = [seed for seed, (_, ratios) in enumerate(pairs, first) if (ratios > 1).any()]
    sys.stdout.write(
        f"{len(off)} values, {(~known).sum()} errors unknown; of the others {known.sum()}, {outside.sum()} are outside "
        f"({sound} of them sound), by {np.nanmax(off):.3g} errors at most, median {np.nanmedian(off):.2g}\n{seeds}\n"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *map(float, sys.argv[3:]))
