import numpy as np

from experiments.lab import split
from experiments.metadata import EXPERIMENT, describe


def test_classes_and_features_are_counted():
    """On Adult: those of its labels, and of all clients together."""
    data = split("adult", EXPERIMENT.settings("adult"))
    found = describe(data)
    assert found["rows"] == len(data.labels)
    assert found["features"] == np.concatenate([client.numeric.toarray() for client in data.clients], axis=1).shape[1]
    assert found["rows of the largest class"] == max(sum(data.labels == 0), sum(data.labels == 1))


def test_verdicts():
    """Only if rows, features and classes are the paper's."""
    found = {"rows": 48_842, "features": 123, "classes": 2, "rows of the largest class": 37_155}
    for changed, verdict in (({}, "yes"), ({"rows": 48_841}, "no"), ({"classes": 3}, "no")):
        assert [x.verdict for x in EXPERIMENT.claims({"adult": {"data": {**found, **changed}}})] == [verdict]
