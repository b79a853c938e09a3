import numpy as np
from scipy.sparse import csr_array

from experiments.similar_features import EXPERIMENT, _copy, n_noisy
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


def copies(differences, **more):
    """Return the findings on copies whose values are larger than client 1's by these relative differences."""
    shares = [1.0, *(1 + x for x in differences)]
    return {"differences": list(differences), "shares": shares, **more}


def test_verdicts_on_proportional_differences():
    """Proportional, rising only, and neither; two numbers of noisy columns show no proportion.

    An exact copy may differ by less than 1 %, but not on Adult.
    """

    def verdicts(*differences, columns=100, data="adult"):
        fractions = [0.0, 0.1, 0.2, 0.3, 0.4]
        parts = {
            f"seed {seed}": {"fractions": fractions, "columns": columns, "paper": copies(x)}
            for seed, x in enumerate(differences)
        }
        return [claim.verdict for claim in EXPERIMENT.claims({data: parts})]

    fractions = np.array([0.0, 0.1, 0.2, 0.3, 0.4])
    assert verdicts(fractions**0.95, fractions**1.05, fractions) == ["yes", "yes"]
    assert verdicts(fractions**0.3, fractions**0.31) == ["yes", "in trend"]
    few = [0.0, 0.1, 0.1, 0.2, 0.2]
    assert verdicts(few, few, columns=6) == ["yes", None]
    near = [1e-12, 0.1, 0.2, 0.3, 0.4]
    assert [verdicts(near, data=data)[0] for data in ("adult", "web")] == ["no", "yes"]
    assert verdicts([0.1, 0.4, 0.3, 0.2, 0.1], [0.1, 0.4, 0.3, 0.2, 0.1]) == ["no", "no"]


def test_columns_with_noise_are_counted():
    """As `_copy` gives noise to: six columns have noise on one or two at 10 to 40 %."""
    client = ClientData("a", np.random.default_rng(0).normal(size=(50, 6)))
    fractions = [0.0, 0.1, 0.2, 0.3, 0.4]
    copies = [_copy(client, "b", x, "unit", 0).numeric for x in fractions]
    found = [int((copy != client.numeric).any(axis=0).sum()) for copy in copies]
    assert n_noisy({"columns": 6, "fractions": fractions}) == found == [0, 1, 1, 2, 2]


def test_stated_errors_are_those_of_the_seeds_that_have_them():
    """The largest, in percent of client 1's value; older results have none, and unknown errors are said."""

    def stated(*errors):
        parts = {
            f"seed {seed}": {
                "fractions": [0.0, 0.1],
                "accuracy": 0.8,
                "paper": {"differences": [0.0, 0.2], **({} if x is None else {"errors": x})},
            }
            for seed, x in enumerate(errors)
        }
        [table] = EXPERIMENT.tables({"adult": parts})
        return dict(zip(table.header, table.rows[0], strict=True))["largest stated error"]

    assert stated([0.1, 0.37], [0.1, 0.2]) == "37"
    assert stated(None, [0.1, 0.2]) == "20 (1 seed)"
    assert stated(None, None) == "-"
    assert stated([0.1, None], [0.1, 0.2]) == "unknown"


def test_differences_whose_order_is_uncertain_are_marked():
    """By errors of two copies, or of client 1, which is the exact copy's; seeds without any are given the largest."""

    def is_open(*errors):
        parts = {
            f"seed {seed}": {
                "fractions": [0.0, 0.1, 0.2, 0.3, 0.4],
                "columns": 100,
                "paper": copies([0.0, 0.01, 0.04, 0.09, 0.16], **({} if x is None else {"errors": x})),
            }
            for seed, x in enumerate(errors)
        }
        claim = EXPERIMENT.claims({"web": parts})[1]
        assert claim.verdict == "in trend"
        return claim.is_open

    nothing, some, much = [0.0] * 5, [0, 0, 0.02, 0.02, 0], [0, 0, 0.03, 0.03, 0]
    assert not is_open(nothing, nothing, nothing)
    assert not is_open(some, some, some)
    assert is_open(much, much, much)
    assert not is_open(nothing, nothing, much)  # medians are over seeds
    assert is_open(much, much, nothing)
    assert is_open(None, much, nothing)
    assert is_open(None, None, None)
    assert not is_open(*[[0.02, 0, 0, 0, 0]] * 3)
    assert is_open(*[[0.03, 0, 0, 0, 0]] * 3)  # 1.01 and 1.04 are as far from 1.03
    assert is_open(*[[1.5, 0, 0, 0, 0]] * 3)
    assert is_open(*[[None] * 5] * 3)
