import numpy as np
import pytest

from experiments.frequency import EXPERIMENT, SMALLER, FrequencySettings, _measure

PER_SECOND = np.array([100.0, 50.0, 100 / 3, 25.0, 20.0])


def parts(*shares):
    """Return the findings of a seed for each row of shares."""
    return {
        f"seed {seed}": {"per_second": PER_SECOND.tolist(), "shares": list(x), "errors": [0.1] * 5, "accuracy": 0.8}
        for seed, x in enumerate(shares)
    }


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([PER_SECOND**0.95, PER_SECOND**1.05, PER_SECOND], "yes"),
        ([PER_SECOND**2, PER_SECOND**2.1], "in trend"),
        ([PER_SECOND, PER_SECOND[::-1], PER_SECOND[::-1]], "no"),
        ([[5.0, 4.0, 3.0, 2.0, -1.0]], "in trend"),  # rising, but no power
    ],
)
def test_verdicts_on_frequencies(shares, expected):
    """Proportional with its whole interval, rising only, and neither."""
    [claim] = EXPERIMENT.claims({"adult": parts(*shares)})
    assert claim.verdict == expected


def test_errors_that_could_tilt_the_exponent_are_marked():
    """Shares of 5 to 1 with errors of 0.05 are proportional whatever they are; with errors of 0.5 they need not be."""
    for error, is_open in ((0.05, False), (0.5, True)):
        measured = parts(*([PER_SECOND / 20, PER_SECOND / 20.2] * 3))
        for part in measured.values():
            part["errors"] = [error] * 5
        [claim] = EXPERIMENT.claims({"adult": measured})
        assert (claim.verdict, claim.is_open) == ("yes", is_open)


def test_the_largest_error_is_shown():
    """Beside the shares, in their unit."""
    [table] = EXPERIMENT.tables({"adult": parts(PER_SECOND, PER_SECOND)})
    assert dict(zip(table.header, table.rows[0], strict=True))["largest stated error"] == "0.1"


def test_copies_that_upload_more_often_get_more():
    """Seeds differ, as batches do, but not with full batches."""
    settings = FrequencySettings(clients=3, batch_size=200, rate=0.4, duration=1.0, train=2000)
    few, full = ([_measure("adult", x, seed) for seed in (0, 1)] for x in (settings, settings.but(batch_size=2000)))
    assert few[0]["shares"][0] > few[0]["shares"][-1] > 0
    assert few[0]["shares"] != few[1]["shares"]
    assert full[0]["shares"] == full[1]["shares"]


def test_the_description_follows_the_settings():
    """A quick run is not described as one of 20 seconds; data sets can have different durations."""
    full, quick = (
        EXPERIMENT.describe([EXPERIMENT.settings(name, quick=is_quick) for name in EXPERIMENT.data])
        for is_quick in (False, True)
    )
    assert "every 0.01 i seconds, for 20 seconds with 500 time stamps. " in full
    assert "for 0.4 seconds with 10 time stamps or 0.2 seconds with 5 time stamps. " in quick


def test_one_share_that_could_be_below_the_next_is_marked():
    """Errors of the two slowest copies alone; all others are certain."""
    measured = parts(PER_SECOND**2, PER_SECOND**2)
    for errors, is_open in (([0, 0, 0, 100, 100], False), ([0, 0, 0, 120, 120], True)):  # 625 and 400
        for part in measured.values():
            part["errors"] = errors
        [claim] = EXPERIMENT.claims({"adult": measured})
        assert (claim.verdict, claim.is_open) == ("in trend", is_open)


def test_the_size_of_batches_is_a_statement_of_its_own():
    """Of Section 6, in which the number of embeddings counts."""
    smaller = {f"{SMALLER}, {seed}": part for seed, part in parts(PER_SECOND, PER_SECOND).items()}
    claims = EXPERIMENT.claims({"adult": {**parts(PER_SECOND**2, PER_SECOND**2), **smaller}})
    assert [(claim.item, claim.group, claim.verdict) for claim in claims] == [
        ("Figure 3: frequency", "statement", "in trend"),
        ("Section 6: size of batches", "statement", "yes"),
    ]


def test_copies_with_larger_batches_get_more():
    """They upload as often as the others."""
    settings = FrequencySettings(clients=3, batch_size=200, rate=0.4, duration=1.0, train=2000, slowness=(1, 1))
    found = _measure("adult", settings.but(divisors=(1, 4)), 0)
    assert found["per_second"] == [100, 25]
    assert found["shares"][0] > 2 * found["shares"][1]
    equal = _measure("adult", settings, 0)["shares"]
    assert equal[0] < 2 * equal[1]
