import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.valuations import make_large_summary, make_summary
from verfedsv.report import wording


def sentence(summary, place=0):
    client = summary.clients[place]
    return f"{client.name} {wording.predicate(client, summary)}".replace("\N{NO-BREAK SPACE}", " ")


def test_a_share_is_said_with_its_interval():
    """In one sentence, with as many decimals as the error allows."""
    summary = make_summary([3.0, 1.0], [0.03, 0.01])
    assert sentence(summary) == "bank contributed 75.0 % (between 74.6 and 75.4 %) of what the model learnt."


def test_a_share_that_is_exact_has_no_interval():
    """Where both ends read the same, they say nothing."""
    summary = make_summary([3.0, 1.0], 1e-9)
    assert sentence(summary) == "bank contributed 75.00 % of what the model learnt."
    assert wording.interval_text(summary.clients[0]) == "± less than 0.01\N{NO-BREAK SPACE}%"


def test_a_negative_share_is_called_what_it_is():
    """It is not clipped, and explained."""
    summary = make_summary([3.0, -1.0], 0.01)
    assert sentence(summary, 1).startswith("telco made the model worse: \N{MINUS SIGN}50.0 % (between")
    assert wording.has_negative(summary)


def test_a_share_that_may_be_nothing_says_so():
    """If zero is in the interval, nobody can tell it from nothing."""
    assert sentence(make_summary([3.0, 0.01], 0.05), 1).endswith("not to be told from nothing.")


def test_a_client_that_did_nothing():
    """No percentages for nothing."""
    summary = make_summary([3.0, 0.0], [0.01, 0.0])
    assert sentence(summary, 1) == "telco contributed nothing: what it sent never changed the loss."


def test_a_tiny_share_is_less_than_something():
    """Not 0.00 %."""
    assert "less than 0.01 %" in sentence(make_summary([3.0, 1e-6], 1e-9), 1)


@pytest.mark.parametrize(
    ("values", "errors", "verdict", "words"),
    [
        ([3.0, 1.0], 0.01, "reliable", "can be relied on"),
        ([3.0, 1.0], [0.01, np.nan], "unknown", "cannot be said"),
        ([3.0, 1.0], 5.0, "unreliable", "cannot be relied on"),
        ([3.0, -4.0], 0.01, "loss rose", "made the model worse"),
        ([3.0, -3.0], 0.01, "cancelled", "add up to nothing"),
        ([0.0, 0.0], 0.0, "nothing changed", "nothing that was sent changed the loss"),
    ],
)
def test_the_verdict_says_whether_shares_can_be_relied_on(values, errors, verdict, words):
    """And sentences give no share where there is none."""
    summary = make_summary(values, errors)
    assert summary.verdict == verdict
    assert words in wording.verdict(summary)
    said = " ".join(sentence(summary, place) for place in range(2))
    assert ("%" in said) == summary.has_shares
    assert "nan" not in said.lower()


def test_one_pair_that_cannot_be_ranked_is_named():
    """Two clients whose intervals overlap."""
    said = wording.ranking(make_summary([3.0, 1.0, 0.99], 0.02))
    assert said.startswith("telco and hospital cannot be ranked")


def test_many_pairs_are_summarised_as_groups():
    """A line for each group, with places in the order."""
    summary = make_summary([3.0, 2.99, 2.98, 1.0], 0.02)
    assert wording.ranking(summary).startswith("3 pairs of clients cannot be ranked")
    assert [wording.group_text(group, summary) for group in summary.groups] == [
        "bank, telco and hospital (places 1 to 3)"
    ]


def test_a_clear_order_is_said_to_be_clear():
    """And a client without an error has no rank."""
    assert wording.ranking(make_summary([3.0, 1.0], 0.01)).startswith("No two intervals overlap")
    said = wording.ranking(make_summary([3.0, 2.0, 1.0], [0.01, np.nan, 0.01]))
    assert "telco: without a known error there is no rank" in said


def test_those_that_did_harm_are_named_first_however_many_there_are():
    """The last of 200 clients is not hidden behind the others."""
    summary = make_large_summary(200)
    assert wording.first(summary, 10)[-1].value < 0


@given(
    st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=2, max_size=4),
    st.floats(0, 0.2),
)
def test_intervals_as_written_hold_the_intervals_as_computed(values, error):
    """Ends are rounded outwards: what is called proven is."""
    summary = make_summary(values, error)
    for client in summary.clients:
        if client.share is None or client.share_low is None:
            continue
        text = wording.interval_text(client).replace("\N{MINUS SIGN}", "-").replace(",", "")
        if text.startswith("±"):
            share = wording.share_text(client)
            written = 0.0 if "less" in share else float(share.replace("\N{MINUS SIGN}", "-").replace(",", "")[:-2])
            low, high = written - 0.01, written + 0.01
        else:
            low, high = (float(end) for end in text[:-2].split(" to "))
        assert low <= 100 * client.share_low
        assert 100 * client.share_high <= high


def test_what_is_said_of_other_pairs_is_true():
    """Nothing is said of others where there are none, nor of those whose error is unknown."""
    assert wording.ranking(make_summary([1.0, 0.99], 0.02)) == (
        "bank and telco cannot be ranked: their intervals overlap."
    )
    assert wording.ranking(make_summary([3.0, 1.0, 0.99], 0.02)).endswith("overlap. All other pairs can.")
    for values in ([3.0, 2.0, 1.0, 0.99], [3.0, 2.0, 1.0, 0.99, 0.98]):
        said = wording.ranking(make_summary(values, [0.01, np.nan, *[0.02] * (len(values) - 2)]))
        assert "ll other pairs of clients with a known error can. telco: without a known error" in said


def test_values_that_cancel_are_no_damage():
    """The loss is where it was; nobody is told that the model got worse."""
    summary = make_summary([1.0, -1.0])
    assert summary.verdict == "cancelled"
    said = f"{wording.headline(summary)} {wording.verdict(summary)}"
    assert "left the model's loss where it was" in said
    assert "worse" not in said
    assert "RAISED" not in said
    assert sentence(summary, 1).startswith("telco raised the loss by 4")


@pytest.mark.parametrize(
    ("errors", "why"),
    [
        ([5.0, 0.1], "the errors of all clients together are too large"),
        ([np.nan, 0.1], "how exact that is, is unknown, because the errors of others are"),
    ],
)
def test_a_client_is_not_blamed_for_the_errors_of_others(errors, why):
    """Its own may be small."""
    assert why in sentence(make_summary([3.0, 1.0], errors), 1)
