"""Values and errors stay what they were: rounds and trainings of many kinds, against results of an earlier version.

`stored_results.json` was computed before rounds and trainings shared one way to an estimate, its completed trainings
after fits of higher ranks began to start from lower ones; errors of 56 of these, whose embeddings start far from zero,
are larger since what completion misses counts as a fraction of the movement. To store results anew after a deliberate
change: `python -m tests.test_stored_results`.
"""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from verfedsv import Recorder, shapley_values, value

STORED = Path(__file__).parent / "stored_results.json"
KINDS = [("logistic", 1), ("softmax", 3), ("squared", 1), ("squared", 2)]
METHODS = ["auto", "closed-form", "exact", "permutation"]
SEMIVALUES = ["shapley", "banzhaf", "leave-one-out"]


def make_labels(rng, loss, n_samples, n_classes):
    """Return random labels that a loss takes."""
    if loss == "squared":
        return rng.normal(size=(n_samples, n_classes)[: 1 + (n_classes > 1)])
    return rng.integers(0, max(2, n_classes), n_samples)


def value_round(loss, n_classes, n_clients, size, server, method, semivalue):
    """Return the result of one random round; the second client does not move, and the third is like the first."""
    rng = np.random.default_rng([n_classes, n_clients])
    shape = (n_clients, 60, n_classes)[: 2 + (n_classes > 1)]
    previous = rng.normal(size=shape)
    current = previous + size * rng.normal(size=shape)
    current[1], previous[2], current[2] = previous[1], previous[0], current[0]
    labels = make_labels(rng, loss, 60, n_classes)
    offset = rng.normal(size=shape[1:])
    own = {"offset": offset, "previous_offset": offset - 0.1} if server else {}
    n_permutations = 50 if method == "permutation" else None
    return shapley_values(
        previous, current, labels, loss, method, semivalue=semivalue, n_permutations=n_permutations, **own
    )


def value_training(loss, n_classes, mode, server, method):
    """Return the valuation of a random training of four clients; "absent" has rounds that one of them missed."""
    rng = np.random.default_rng([n_classes, len(mode)])
    names, n_samples = ["a", "b", "c", "d"], 40
    features = [rng.normal(size=(n_samples, 2)) for _ in names]
    weights = [np.zeros((2, n_classes)) for _ in names]
    labels, everything = make_labels(rng, loss, n_samples, n_classes), np.arange(n_samples)
    n = {"n_classes": n_classes} if loss == "softmax" else {}
    with Recorder(None, labels, names, loss, **n) as recorder:
        for t in range(6):
            for own in weights:
                own += 0.4 * rng.normal(size=own.shape)
            offset = np.full((n_samples, n_classes), 0.1 * t) if server else None
            if mode == "asynchronous":
                for name, x, own in zip(names, features, weights, strict=True):
                    batch = everything if t == 0 else np.sort(rng.permutation(n_samples)[:15])
                    recorder.update(name, batch, x[batch] @ own, time=float(t))
                recorder.stamp(offset, time=t + 0.5)
                continue
            batch = everything if mode == "full" else np.sort(rng.permutation(n_samples)[:25])
            absent = [names[t % 4]] if mode == "absent" and t in (2, 3) else []
            uploads = {name: x[batch] @ own for name, x, own in zip(names, features, weights, strict=True)}
            recorder.log(
                batch,
                {name: h for name, h in uploads.items() if name not in absent},
                None if offset is None else offset[batch],
                absent=absent,
            )
    return value(recorder, method, n_permutations=20 if method == "permutation" else None)


def cases():
    """Yield the name of each case and how to compute it."""
    for (loss, c), m, size, server, method, semivalue in itertools.product(
        KINDS, (3, 6), (0.05, 1.5), (False, True), METHODS, SEMIVALUES
    ):
        if semivalue == "shapley" or (method != "closed-form" and m == 3 and size == 1.5):
            arguments = loss, c, m, size, server, method, semivalue
            yield " ".join(map(str, ("round", *arguments))), lambda arguments=arguments: value_round(*arguments)
    for (loss, c), mode, server, method in itertools.product(
        KINDS, ("full", "batches", "absent", "asynchronous"), (False, True), METHODS
    ):
        arguments = loss, c, mode, server, method
        yield " ".join(map(str, ("training", *arguments))), lambda arguments=arguments: value_training(*arguments)


def as_numbers(result):
    """Return what is stored of a result."""
    values, errors = [*result.values.tolist(), result.server_value], [*result.errors.tolist(), result.server_error]
    return {"values": values, "errors": errors, "is_sampled": result.error_kind == "confidence"}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("part", range(8))
def test_results_are_what_they_were(part):
    """Values agree to rounding where nothing was sampled, within errors where something was; errors do not grow.

    Errors that sampled values enter may be up to 5 % larger, as other draws give other errors.
    """
    stored = json.loads(STORED.read_text())
    for name, compute in itertools.islice(cases(), part, None, 8):
        before, now = stored[name], as_numbers(compute())
        values, expected = np.array(now["values"]), np.array(before["values"])
        errors, allowed = np.array(now["errors"]), np.array(before["errors"])
        scale = np.abs(expected).max()
        slack = errors + allowed if before["is_sampled"] else 1e-12 * scale
        assert (np.abs(values - expected) <= slack).all(), name
        growth = 0.05 if before["is_sampled"] else 1e-6
        assert (errors <= allowed * (1 + growth) + 1e-12 * scale)[np.isfinite(allowed)].all(), name


if __name__ == "__main__":
    numbers = {name: as_numbers(compute()) for name, compute in cases()}
    STORED.write_text(json.dumps(numbers, separators=(",", ":")) + "\n")
    sys.stdout.write(f"{len(numbers)} results in {STORED.name}\n")
