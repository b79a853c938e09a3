import numpy as np
import pytest

from experiments.lab import final_loss
from experiments.random_features import ASYNCHRONOUS, SYNCHRONOUS, RandomFeatureSettings, _highest_rate, _with_random

SETTINGS = RandomFeatureSettings(clients=3, batch_size=100, rate=0.4, rounds=10, train=400, halvings=10)


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")  # few samples tell little
def test_the_highest_rate_is_the_first_that_lowers_the_loss():
    """On raw random columns; all higher rates that were tried end above the loss at the start."""
    found = _highest_rate("adult", SETTINGS, 0)
    *higher, last = found["losses"].values()
    assert all(loss is None or loss >= np.log(2) for loss in higher)
    assert higher
    assert last < np.log(2)
    assert found["rate"] == 0.4 / 2 ** len(higher)
    again = SETTINGS.but(rate=found["rate"])
    assert final_loss(_with_random("adult", again, 0), again) == pytest.approx(last)


def test_verdicts_are_two_sided():
    """Shares far above the paper's are not reproduced, and far or even negative ones below only in trend.

    Verdicts are on estimates; if stated errors would allow another, or are unknown, that is marked.
    """

    def verdict(*sums, experiment=SYNCHRONOUS, error=1e-3):
        parts = {
            f"seed {seed}": {
                "artificial": [total / 5] * 5,
                "regular": [(100 - total) / 3] * 3,
                "errors": [error, None, 0.0, 0.0, 0.0] if error is None else [error] * 5,
            }
            for seed, total in enumerate(sums)
        }
        [claim] = experiment.claims({"adult": parts})
        return claim.verdict, claim.ours, claim.is_open

    for error, is_open in ((0.1, False), (20.0, True), (99.0, True), (None, True)):  # the paper has 2.09
        found = verdict(2.0, experiment=ASYNCHRONOUS, error=error)
        assert (found[0], found[2]) == ("yes", is_open)
    assert verdict(-0.3, -0.2)[0] == "in trend"
    assert "lower" in verdict(-0.3, -0.2)[1]

    assert verdict(0.05, 0.2, 0.1)[0] == "yes"  # the paper has 0.12
    assert verdict(0.01, 0.02)[0] == "in trend"
    assert "lower" in verdict(0.01, 0.02)[1]
    assert verdict(0.3, 0.4)[0] == "in trend"
    # Of three seeds, one has artificial clients at half of regular ones.
    assert verdict(0.1, 47.0, 0.1)[0] == "in trend"
    assert "higher" in verdict(0.3, 0.4)[1]
    assert verdict(0.1, 80.0)[0] == "no"  # of two seeds, one has artificial clients above regular ones


def test_one_share_that_could_be_above_a_regular_one_is_marked():
    """Errors of a single artificial client, or of a regular one where they were kept; shares of the others fall."""

    def is_open(errors, regular_errors=None):
        part = {"artificial": [0.4] * 5, "regular": [33.0, 64.0, 1.0], "errors": errors}
        kept = {} if regular_errors is None else {"regular errors": regular_errors}
        [claim] = ASYNCHRONOUS.claims({"adult": {f"seed {seed}": {**part, **kept} for seed in range(3)}})
        assert claim.verdict == "yes"  # the paper has 2.09 % together
        return claim.is_open

    assert not is_open([0.05, 0, 0, 0, 0])
    assert is_open([0.15, 0, 0, 0, 0])  # more than half of 1 %
    assert not is_open([0.0] * 5, [5.0, 5.0, 0.1])
    assert is_open([0.0] * 5, [0.0, 0.0, 0.3])
    assert is_open([0.0] * 5, [0.0, 0.0, None])


def test_both_readings_of_the_number_of_clients_are_judged():
    """Each in a row of its own; other variants, such as scales, are in the tables only."""
    part = {"artificial": [0.02] * 5, "regular": [33.3] * 3, "errors": [1e-3] * 5}
    more = {**part, "artificial": [50.0] * 5}
    measured = {"seed 0": part, "8 + 5 clients, seed 0": more, "rows of norm 1, seed 0": more}
    assert [(claim.item, claim.verdict) for claim in SYNCHRONOUS.claims({"adult": measured})] == [
        ("Table 1, synchronous: random clients", "yes"),
        ("Table 1, synchronous: random clients, other number of clients", "no"),
    ]


def test_numbers_of_fewer_seeds_say_so():
    """Older results with all embeddings known have neither errors nor the shares of regular clients."""
    older = {"artificial": [0.1] * 5, "regular": [33.0] * 3, "errors": [9.0] * 5, "accuracy": 0.8, "truth": [0.2] * 5}
    newer = {**older, "truth, errors": [0.5] * 5, "truth, regular": [30.0, 29.0, 41.0]}
    table = SYNCHRONOUS.tables({"adult": {"seed 0": older, "seed 1": newer}})[1]
    found = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert found["Adult, as above"]["largest stated error"] == "9"
    truth = found["Adult, as above, all embeddings known"]
    assert (truth["seeds"], truth["largest stated error"]) == ("2", "0.5 (1 seed)")
    assert truth["lowest of a regular one"] == "29.000 (1 seed)"
