import numpy as np
from scipy.sparse import csr_array

from experiments.similar_features import EXPERIMENT, _copy
from verfedsv.data import ClientData


def test_noise_as_large_as_each_columns_spread():
    """It goes to a fraction of the columns; without noise the copy is the same object's numbers."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(5000, 10)) * 10.0 ** np.arange(-5, 5)
    client = ClientData("a", csr_array(columns))
    assert _copy(client, "b", 0.0, "column", 0).numeric is client.numeric
    noise = _copy(client, "b", 0.4, "column", 0).numeric - columns
    noisy = np.abs(noise).max(axis=0) > 1e-9 * columns.std(axis=0)
    assert noisy.sum() == 4
    np.testing.assert_allclose(noise.std(axis=0)[noisy], columns.std(axis=0)[noisy], rtol=0.05)


def test_verdicts_on_proportional_differences():
    """Proportional, rising only, and neither."""

    def verdicts(*differences):
        fractions = [0.0, 0.1, 0.2, 0.3, 0.4]
        parts = {
            f"seed {seed}": {"fractions": fractions, "paper": {"differences": list(x)}}
            for seed, x in enumerate(differences)
        }
        return [claim.verdict for claim in EXPERIMENT.claims({"adult": parts})]

    fractions = np.array([0.0, 0.1, 0.2, 0.3, 0.4])
    assert verdicts(fractions**0.95, fractions**1.05, fractions) == ["yes", "yes"]
    assert verdicts(fractions**0.3, fractions**0.31) == ["yes", "in trend"]
    assert verdicts([0.1, 0.4, 0.3, 0.2, 0.1], [0.1, 0.4, 0.3, 0.2, 0.1]) == ["no", "no"]
