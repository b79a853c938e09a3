import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from tests.report.valuations import make_large_summary, make_summary, make_valuation
from verfedsv.report import wording
from verfedsv.report.amounts import Amounts, place_text, share_range
from verfedsv.report.html import to_html
from verfedsv.report.markdown import to_markdown
from verfedsv.report.summary import UploadCounts, build
from verfedsv.report.tables import contributions
from verfedsv.report.terminal import brief
from verfedsv.settings import ValuationSettings
from verfedsv.settlement.books import describe_books
from verfedsv.valuation.result import Books


def sentence(summary, place=0):
    client = summary.clients[place]
    return f"{client.name} {wording.predicate(client, summary)}".replace("\N{NO-BREAK SPACE}", " ")


def test_a_share_is_said_with_its_interval():
    """It is one sentence, with the ends rounded outwards."""
    assert sentence(make_summary([3.0, 1.0], [0.03, 0.01])) == "bank contributed 75.00 % (74.62 to 75.38 %)."
    assert sentence(make_summary([3.0, 1.0], 1e-9)) == "bank contributed 75.00 % (74.99 to 75.01 %)."


def test_a_negative_share_is_called_what_it_is():
    """It is explained and not clipped."""
    summary = make_summary([3.0, -1.0], 0.01)
    assert sentence(summary, 1).startswith("telco raised the loss: \N{MINUS SIGN}50.00 % (\N{MINUS SIGN}51.02 to")
    assert "A negative share means that what the client sent raised the loss" in wording.negative(summary)


@pytest.mark.parametrize("errors", [[0.01, 2.0], [0.01, np.nan]])
def test_nobody_is_accused_of_what_may_not_be_so(errors):
    """A share below zero whose error is large, or unknown, is no evidence of harm."""
    said = wording.negative(make_summary([3.0, -0.01], errors, completed=True))
    assert "raised the loss" not in said
    assert "reaches above zero, or is unknown, no harm is established" in said
    assert wording.negative(make_summary([3.0, 1.0])) == ""


def test_a_share_that_may_be_nothing_says_so():
    """If the interval contains zero, the sentence says so."""
    assert sentence(make_summary([3.0, 0.01], 0.05), 1).endswith("it may be zero.")


def test_a_client_that_did_nothing():
    """No percentages; a client that uploaded nothing is told from one whose uploads changed nothing."""
    summary = make_summary([3.0, 0.0], [0.01, 0.0])
    assert sentence(summary, 1) == "telco contributed nothing: its uploads never changed the loss."
    absent = replace(summary.clients[1], uploads=UploadCounts(0, 0, 0))
    summary = replace(summary, clients=(summary.clients[0], absent))
    assert sentence(summary, 1) == "telco contributed nothing: it uploaded nothing."


@pytest.mark.parametrize(
    ("semivalue", "name"),
    [
        ("banzhaf", "Banzhaf value"),
        ("leave-one-out", "leave-one-out value"),
        ("beta(4, 1)", "Beta(4, 1) Shapley value"),
        ("my own", "value by the semivalue 'my own'"),
    ],
)
@pytest.mark.parametrize("render", [to_html, to_markdown])
def test_a_report_names_the_semivalue(render, semivalue, name):
    """It says Shapley only of Shapley values, and that other values do not add up to the decrease in loss."""
    assert build(make_valuation([3.0], settings=ValuationSettings(semivalue="banzhaf"))).semivalue == "banzhaf"
    shapley = make_summary([3.0, 1.0], 0.01)
    assert "its Shapley value" in render(shapley)
    text = render(replace(shapley, semivalue=semivalue)).partition("<script")[0].replace("&#39;", "'")
    assert f"its {name}" in text
    assert "its Shapley value" not in text
    assert "Shares are fractions of the sum of these values." in text
    assert "need not add up to the decrease in loss" in text


def test_a_tiny_share_is_less_than_something():
    """It is not shown as 0.00 %."""
    assert "contributed < 0.01 % (" in sentence(make_summary([3.0, 1e-6], 1e-9), 1)


@pytest.mark.parametrize(
    ("options", "numerical_error", "words"),
    [
        ({}, "proven", "proven. The exact value and share of every client lie within its range."),
        (
            {"error_kind": "confidence"},
            "confident",
            "with 99.9 % confidence, the exact value and share of every client",
        ),
        (
            {"error_kind": "confidence on an assumption"},
            "assumed",
            "within its range, assuming that no random draw would be far outside those that were made.",
        ),
        ({"error_kind": "certified but for rounding"}, "proven", "proven but for the rounding of the loss. The exact"),
        ({"completed": True}, "estimated", "the ranges are not guaranteed"),
        ({"errors": np.nan, "completed": True}, "unknown", "unknown, for every client"),
        ({"errors": 5.0}, "unreliable", "so large that any share could be quite different"),
        ({"values": [3.0, -4.0]}, "proven", "proven. The exact value of every client lies within its range."),
    ],
)
def test_proven_is_said_of_numerical_error_alone(options, numerical_error, words):
    """The same text says what the error is not about."""
    summary = make_summary(**({"values": [3.0, 1.0], "errors": 0.01} | options))
    said = wording.numerical_error(summary)
    assert summary.numerical_error == numerical_error
    assert said.startswith("Numerical error: ")
    assert words in said
    assert said.endswith("not about whether the training went well or what is fair to pay.")
    assert ("proven" in said) == (numerical_error == "proven")
    assert wording.is_doubtful(summary) == (numerical_error in ("unknown", "unreliable"))


@pytest.mark.parametrize("values", [[3.0, -4.0], [3.0, -3.0], [0.0, 0.0]])
def test_there_are_no_shares_of_nothing(values):
    """An alarm says so, and no sentence has a percentage."""
    summary = make_summary(values, 0.01)
    assert "The clients together did not lower the loss" in summary.verdict.texts("alarm")[-1]
    said = " ".join(sentence(summary, place) for place in range(2))
    assert "%" not in said
    assert "nan" not in said.lower()
    assert "did not lower the loss" in wording.payout_warning(summary)


def test_a_value_of_zero_neither_lowers_nor_raises_the_loss():
    """This is the sentence where there are no shares and the error is not zero."""
    assert sentence(make_summary([0.0, -1.0], 0.01)).startswith("bank did not change the loss over the training")


def test_only_a_record_that_was_read_is_called_verified():
    """The summary of a bare valuation does not claim that a hash chain was checked."""
    assert "whose hash chain was verified" in wording.origin(make_summary([3.0, 1.0]))
    assert "verified" not in wording.origin(build(make_valuation([3.0, 1.0])))


def test_errors_as_large_as_values_that_do_harm_are_said():
    """The sentence is on values, as there are no shares."""
    said = wording.numerical_error(make_summary([-3.0, 1.0], [50.0, 0.5]))
    assert "so large that any value could be quite different" in said
    assert "share" not in said


def test_a_client_that_may_have_done_nothing_is_named():
    """The sentence names it if zero is within its range."""
    said = wording.numerical_error(make_summary([3.0, 1.0, 0.001], 0.01))
    assert "Whether hospital helped at all is open: zero lies within the range." in said


def test_the_headline_is_how_the_loss_changed():
    """It says in one sentence whether the loss fell, rose or stayed."""
    said = [wording.headline(make_summary(values)) for values in ([3.0], [3.0, -3.0], [1.0, -1.1])]
    assert said == [
        "In 4 rounds the model's loss fell from 0.693 to \N{MINUS SIGN}11.307.",
        "In 4 rounds the model's loss stayed the same.",
        "In 4 rounds the model's loss rose from 0.693 to 1.093.",
    ]


@pytest.mark.parametrize(
    ("values", "groups"),
    [([3.0, 1.0, 0.99], ["telco and hospital"]), ([3.0, 2.99, 2.98, 1.0], ["bank, telco and hospital"])],
)
def test_those_that_cannot_be_ranked_are_listed_in_groups(values, groups):
    """A pair is a group, too."""
    summary = make_summary(values, 0.02)
    assert wording.ranking(summary).startswith("Clients whose value ranges overlap cannot be ranked")
    assert "All other pairs of clients can be ranked." in wording.ranking(summary)
    assert wording.group_lines(summary, 10) == groups
    unknown = make_summary([3.0, 2.99, 1.0], [0.02, 0.02, np.nan])
    assert "Clients with known errors that share no group can be ranked." in wording.ranking(unknown)


def test_a_clear_order_is_said_to_be_clear():
    """A client with an unknown error cannot be ranked."""
    said = wording.ranking(make_summary([3.0, 1.0], 0.01))
    assert said.startswith("No two value ranges overlap: the order of all clients is clear.")
    said = wording.ranking(make_summary([3.0, 1.0], 0.01, completed=True))
    assert "is clear, if the estimated errors hold." in said
    said = wording.ranking(make_summary([3.0, 2.0, 1.0], [0.01, np.nan, 0.01]))
    assert "telco cannot be ranked: the error is unknown" in said


def test_those_that_did_harm_are_named_first_however_many_there_are():
    """The last of 200 clients is among the first that are named."""
    summary = make_large_summary(200)
    assert wording.first(summary, 10)[-1].value < 0


@given(
    st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=2, max_size=4),
    st.floats(0, 0.2),
)
def test_intervals_as_written_hold_the_intervals_as_computed(values, error):
    """Ends are rounded outwards, so what is called proven holds as written."""
    summary = make_summary(values, error)
    for client in summary.clients:
        if client.share is None or client.share_low is None:
            continue
        text = share_range(client).replace("\N{MINUS SIGN}", "-").replace(",", "")
        low, high = (float(end) for end in text[:-2].split(" to "))
        assert low <= 100 * client.share_low
        assert 100 * client.share_high <= high


def test_values_that_cancel_are_no_damage():
    """If the loss stayed the same, the headline says so."""
    summary = make_summary([1.0, -1.0])
    assert wording.headline(summary).endswith("stayed the same.")
    assert sentence(summary, 1).startswith("telco raised the loss by 4")


def test_those_who_cannot_be_ranked_share_their_places():
    """All of them are named, unless there are many."""
    summary = make_summary([3.0, 2.0, 1.99, 1.98, 1.97, 1.96, 1.95, 1.94], 0.2)
    assert [place_text(client, summary) for client in summary.clients] == ["1"] + ["2\N{EN DASH}8"] * 7
    assert wording.group_lines(summary, 10) == ["telco, hospital, shop, insurer, energy, transit and post"]


def written_ends(amounts, client):
    """Return the range of a value as it is written, in units that all clients share."""
    text = amounts.ends(client).split(" \N{MULTIPLICATION SIGN}")[0].strip("()")
    return [float(end.replace("\N{MINUS SIGN}", "-")) for end in text.split(" to ")]


@given(
    st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=2, max_size=5),
    st.floats(0, 0.2),
)
def test_values_as_written_say_who_can_be_ranked(values, error):
    """Written ranges overlap exactly where the ranges do, unless these nearly touch."""
    summary = make_summary(values, error)
    ends = [written_ends(Amounts(summary), client) for client in summary.clients]
    largest = max(abs(end) for client in summary.clients for end in (client.decrease_low, client.decrease_high))
    for one, (low, high) in zip(summary.clients, ends, strict=True):
        for other, (other_low, other_high) in zip(summary.clients, ends, strict=True):
            gap = max(one.decrease_low - other.decrease_high, other.decrease_low - one.decrease_high)
            if gap <= 0:
                assert low <= other_high
                assert other_low <= high
            elif gap > 1e-5 * largest:
                assert low > other_high or other_low > high


def test_payouts_have_a_warning_unless_the_values_are_sure():
    """It lists every reason once."""
    assert wording.payout_warning(make_summary([3.0, 1.0], 0.01, completed=True)) == ""
    said = wording.payout_warning(make_summary([3.0, 1.0], np.nan, n_planned=9, faults=("So.", "And so.")))
    assert said == (
        "Do not pay by these amounts yet: the numerical error of every value is unknown; only 4 of 9 rounds are "
        "recorded; something is wrong with the record of this run."
    )


@pytest.mark.parametrize("render", [to_html, to_markdown])
def test_rounds_are_rounds_in_both_modes(render):
    """No format mentions time stamps."""
    text = render(make_summary([3.0, 1.0], 0.01, mode="asynchronous"))
    assert "In 4 rounds the model" in text
    assert "stamp" not in text.partition("<script")[0]


@pytest.mark.parametrize("render", [to_html, to_markdown])
def test_values_are_said_to_be_totals(render):
    """Every format says that they are over all rounds."""
    assert "Total value: how much the client lowered the loss over all rounds" in render(make_summary([3.0, 1.0], 0.01))


def diverged():
    """Return the summary of a training whose server raised the loss by more than the clients lowered it."""
    return make_summary([3.0, 1.35], 0.01, n_rounds=4, server=-4.78)


def shown_in(summary, form):
    """Return a summary as text in a format."""
    if form == "brief":
        return "\n".join(line.plain for line in brief(summary) if isinstance(line, Text))
    return {"html": to_html, "markdown": to_markdown}[form](summary).replace("&#39;", "'")


@pytest.mark.parametrize("form", ["html", "markdown", "brief"])
def test_a_loss_that_rose_is_said_first_and_in_red(form):
    """It precedes what the clients lowered, nothing calls such a training good, and the server's part is stated."""
    summary = diverged()
    text = shown_in(summary, form)
    alarm = text.index("The loss rose over the training, from 0.6931 to 2.413: the model became worse.")
    assert alarm < text.index("17.400 by the clients \N{MINUS SIGN} 19.120 by the server")
    assert alarm < text.index("Numerical error: proven.")
    assert "more than all clients together: it raised it by 19.12, the clients lowered it by 17.4." in text
    assert 'class="alarm">The loss rose' in text or form != "html"
    assert "the loss rose; the server's own part did more than the clients" in wording.payout_warning(summary)
    assert "green" not in text.partition("<script")[0]


def test_alarms_are_red_in_the_terminal():
    """Nothing is red in a sound report."""
    assert next(brief(diverged())).style == "bold red"
    sound = brief(make_summary([0.1, 0.05], 1e-4))
    assert "bold red" not in [line.style for line in sound if isinstance(line, Text)]


@pytest.mark.parametrize("form", ["html", "markdown", "brief"])
def test_the_books_are_shown_with_the_server_apart(form):
    """The equation holds, and the server has no share and no place among the clients."""
    summary = make_summary([0.1, 0.05], 1e-4, server=0.01)
    text = shown_in(summary, form)
    assert "Loss: 0.6931 at the start = 0.0531 at the end + 0.6000 by the clients + 0.0400 by the server" in text
    assert "an intercept or a network, lowered the loss by 0.0400 over all rounds" in text
    assert "It belongs to no client and has no share." in text
    assert json.loads(summary.to_json())["books"].keys() == set(Books._fields)
    assert len(summary.clients) == 2
    without = shown_in(make_summary([0.1, 0.05], 1e-4), form)
    assert "by the server" not in without
    assert "an intercept or a network" not in without


def test_one_unknown_error_leaves_the_other_shares_their_ranges():
    """They are shares among the clients whose errors are known, and the text says who is left out and why."""
    errors = [1e-4, 1e-4, np.nan, np.nan]
    summary = make_summary([0.994, 0.0046, 0.001, 0.0004], errors, completed=True, n_rounds=4)
    assert summary.numerical_error == "estimated"
    bounds = [(client.share_low, client.share_high) for client in summary.clients]
    assert bounds[0] == pytest.approx((0.9953, 0.9955), abs=1e-4)
    assert bounds[2:] == [(None, None)] * 2
    said = wording.numerical_error(summary)
    assert "It is unknown for hospital and shop." in said
    proven = make_summary([3.0, 2.0, 1.0], [0.01, np.nan, 0.01])
    assert "value and share of every client with a known error lie within its range." in wording.numerical_error(proven)
    assert "The others' ranges are of shares among themselves." in said
    assert sentence(summary) == ("bank contributed 99.40 % (99.52 to 99.55 % among the clients with known errors).")
    assert sentence(summary, 2) == "hospital comes out at 0.10 %; its numerical error is unknown."
    assert "Share among clients with known errors" in [heading.text for heading in contributions(summary).headings]
    assert "the numerical error of the value of 'hospital' and 'shop' is unknown" in wording.payout_warning(summary)


@given(st.floats(0.1, 2), st.floats(-20, 20), st.floats(-20, 20), st.sampled_from([0.0, 0.0, 1e-3]))
def test_books_as_written_balance(start, clients, server, error):
    """The printed numbers add up, or the text says why not: rounding, or the size of the numerical error."""
    books = Books(start, start - clients - server + error, clients, server)
    text = wording.balance(books).replace("\N{MINUS SIGN} ", "-").replace("\N{MINUS SIGN}", "-")
    numbers = re.findall(r"-?[0-9][0-9,.]*", text.partition(" (")[0])
    found = [float(number.replace(",", "")) for number in numbers]
    if " (" not in text:
        assert found[0] == pytest.approx(sum(found[1:]), abs=1e-9)
    else:
        assert abs(found[0] - sum(found[1:])) <= 2e-3
        assert ("(rounded)" in text) == (error == 0)


def test_what_rounds_to_nothing_is_not_in_the_balance():
    """Values of other semivalues may leave a tiny part of the decrease unaccounted for."""
    books = Books(0.69315, 0.21077, 0.48239, 0.0, unaccounted=-0.00001)
    assert wording.balance(books) == "Loss: 0.693 at the start = 0.211 at the end + 0.482 by the clients"


def test_rounding_as_written_is_not_called_the_numerical_error():
    """More decimals are written if they make the numbers balance; otherwise these are called rounded."""
    books = Books(0.6931471805599453, 0.5325645, 0.6931471805599453 - 0.5325645, 0.0)
    assert "(" not in wording.balance(books)
    text = describe_books(books)
    start, end, clients = (float(number) for number in re.findall(r"[0-9]+\.[0-9]+", text))
    assert start == pytest.approx(end + clients, abs=1e-12)


def test_the_headline_and_the_balance_have_the_same_decimals():
    """So that the same loss is the same number in both lines."""
    summary = make_summary([0.01], n_rounds=1)
    start, end = re.findall(r"[0-9]+\.[0-9]+", wording.headline(summary))
    assert wording.balance(summary.books).startswith(f"Loss: {start} at the start = {end} at the end + ")


@pytest.mark.parametrize("render", [to_html, to_markdown])
def test_a_valuation_without_a_run_has_a_heading_without_a_name(render):
    """No colon and no "in" is left over."""
    summary = make_summary([3.0, 1.0], completed=True)
    text = render(replace(summary, run=""))
    assert not re.search(r"(?:how much|report): *(?:\n|<)|Contributions in *<", text.partition("<script")[0])
    assert text.startswith("# Who contributed how much\n") or "<title>Contributions</title>" in text
    bare = to_markdown(build(make_valuation([3.0, 1.0], completed=True)))  # nothing is known of uploads
    assert re.search(r"\| bank .* [0-9] of 4 \|", bare)


def test_rounds_that_a_client_missed_count_neither_as_its_own_nor_as_completed():
    """Negative rounds are of those in which it took part, and so are embeddings that were not sent."""
    summary = make_summary([3.0, 1.0], completed=True)
    half = replace(summary.clients[1], uploads=UploadCounts(2, 60, 720, 2, "rounds 1 to 2"))
    summary = replace(summary, clients=(replace(summary.clients[0], uploads=UploadCounts(4, 120, 1440)), half))
    rows = contributions(summary).rows
    assert [row[-2].text.partition(" of ")[2] for row in rows] == ["4", "2"]
    assert [row[-1].text for row in rows] == ["all rounds", "rounds 1 to 2"]
    said = wording.completion(summary).replace("\N{NO-BREAK SPACE}", " ")
    assert said.startswith("Of all embeddings of the rounds in which a client took part, 30.0 % were sent;")
    assert "no longer one. In such a round a client keeps its last embeddings, if it has any, and its value is 0." in (
        wording.communication(summary)
    )
