import csv
import dataclasses
import io
import itertools
import json
import math
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import verfedsv
from tests.games import LogCosh
from tests.settlement.runs import CLIENTS, make_run, record
from verfedsv import InputError, Recorder, TranscriptError
from verfedsv.settlement import Settlement, Terms, settle
from verfedsv.settlement.explanation import SHARED, cautions, describe_terms, explain
from verfedsv.settlement.payouts import Basis, pay
from verfedsv.settlement.rules import Rule
from verfedsv.texts import spreadsheet_text
from verfedsv.valuation.result import Books
from verfedsv.valuation.verdict import judge

NAMES = ["bank", "telco", "shop", "clinic", "rail", "gas", "post"]


def settled(values, budget="100", errors=None, currency="EUR", **terms):
    """Return the settlement of values; without errors they are 0."""
    errors = [0.0] * len(values) if errors is None else errors
    return pay(Terms.of(budget, currency, **terms), basis(values, errors))


def basis(values, errors, names=NAMES, n_planned=None, server=(0.0, 0.0), books=None):
    """Return what payouts are computed from; the books balance if none are given, with a loss of 1 at the start."""
    if books is None:
        books = Books(1.0, 1.0 - 6 * (sum(values) + server[0]), 6 * sum(values), 6 * server[0])
    return Basis(tuple(names[: len(values)]), tuple(values), tuple(errors), *server, books, "head", 6, n_planned)


def euros(settlement):
    return [float(amount) for amount in settlement.amounts]


positive = st.floats(1e-12, 1e6)
any_value = st.one_of(st.floats(-1e3, 1e6), st.just(0.0))
budgets = st.integers(1, 10**9).map(lambda cents: f"{cents // 100}.{cents % 100:02}")


@st.composite
def settlements(draw):
    """Return values, errors and terms that can be settled together."""
    values = draw(st.lists(any_value, min_size=1, max_size=7))
    errors = draw(st.lists(st.floats(0, 1e3), min_size=len(values), max_size=len(values)))
    rule = draw(st.sampled_from(["shares", "floor", "cap", "floor-and-cap", "shapley-positive"]))
    negative = draw(st.sampled_from(["zero", "deduct"] if rule == "shares" else ["zero"]))
    terms = {"rule": rule, "negative": negative, "fixed_part": f"{draw(st.integers(0, 100))}%"}
    budget = draw(budgets)
    cents = int(budget.replace(".", ""))
    if rule in ("floor", "floor-and-cap"):
        terms["floor"] = f"{draw(st.integers(0, cents // len(values))) / 100:.2f}"
    if rule in ("cap", "floor-and-cap"):
        terms["cap"] = f"{draw(st.integers(-(-cents // len(values)), cents)) / 100:.2f}"
    try:
        return settled(values, budget, errors, **terms)
    except InputError:
        assume(False)  # hypothesis discards this example


@given(settlements())
def test_payouts_add_up_to_the_budget_to_the_cent(settlement):
    """This holds for every rule."""
    assert sum(settlement.payouts) == settlement.terms.budget
    assert all(isinstance(payout, int) for payout in settlement.payouts)


@given(settlements())
def test_floors_and_caps_are_kept_after_rounding(settlement):
    """Nobody gets a cent less than the floor, or more than the cap."""
    if settlement.terms.floor is not None:
        assert min(settlement.payouts) >= settlement.terms.floor
    if settlement.terms.cap is not None:
        assert max(settlement.payouts) <= settlement.terms.cap
    if settlement.terms.negative != "deduct":
        assert min(settlement.payouts) >= 0


@given(settlements())
def test_a_payout_lies_within_its_range(settlement):
    """The lower end of the range is never above its upper end."""
    for payout, low, high in zip(settlement.payouts, settlement.lowest, settlement.highest, strict=True):
        assert low is None or low <= payout <= high


@given(settlements())
def test_the_json_comes_back(settlement):
    """It is read back as the same settlement, and settling its terms again gives it too."""
    again = Settlement.from_json(settlement.to_json())
    assert again == settlement
    assert pay(again.terms, basis(again.values, again.errors, books=again.books)) == settlement


@pytest.mark.parametrize(
    ("values", "terms"),
    [
        ([1.0, 2.0], {"fixed_part": "0.0000001%"}),
        ([1.0, -(1 - 2**-50)], {"budget": "100000", "negative": "deduct"}),
        ([1.0, -(1 - 2**-53)], {"budget": "9" * 15, "negative": "deduct"}),
    ],
)
def test_extreme_settlements_come_back_too(values, terms):
    """Small percentages, and payouts with more digits than a budget may have, are not lost in JSON."""
    settlement = settled(values, **terms)
    assert Settlement.from_json(settlement.to_json()) == settlement
    assert sum(map(Fraction, settlement.amounts)) == Fraction(settlement.terms.budget, 100)


@given(st.lists(positive, min_size=2, max_size=7, unique=True), budgets, st.randoms(use_true_random=False))
def test_another_order_of_the_clients_changes_only_the_order_of_the_payouts(values, budget, random):
    """Only where two clients lose exactly the same by rounding down may they swap a cent."""
    order = list(range(len(values)))
    random.shuffle(order)
    first, second = settled(values, budget).payouts, settled([values[m] for m in order], budget).payouts
    total = sum(map(Fraction, values))
    cents = int(budget.replace(".", ""))
    losses = [cents * Fraction(value) / total % 1 for value in values]
    for place, m in enumerate(order):
        is_tied = losses.count(losses[m]) > 1
        assert abs(second[place] - first[m]) <= is_tied


@given(st.lists(any_value, min_size=1, max_size=7), budgets)
def test_the_proportional_rule_is_the_textbook(values, budget):
    """Each payout is less than a cent from its exact part of the budget."""
    total = sum(map(Fraction, values))
    assume(total > 0)
    cents = int(budget.replace(".", ""))
    for payout, value in zip(settled(values, budget, negative="deduct").payouts, values, strict=True):
        assert abs(payout - cents * Fraction(value) / total) < 1


def test_ties_go_to_the_first_in_the_transcript():
    """A cent that three equal clients cannot share goes to the first one."""
    assert settled([0.1, 0.1, 0.1]).payouts == (3334, 3333, 3333)
    assert settled([0.3, 0.3, 0.3], "0.02").payouts == (1, 1, 0)


def test_equal_payouts_are_shown_by_value():
    """As with a floor, which several clients may get."""
    assert settled([1.0, 2.0, 40.0, 3.0], rule="floor", floor=20).order == [2, 3, 1, 0]
    assert settled([1.0, 1.0, 40.0], rule="floor", floor=20).order == [2, 0, 1]


def test_floats_are_taken_as_they_are():
    """One part in 10^15 of a value can decide who gets the odd cent, also beside huge and tiny values."""
    assert settled([0.1, math.nextafter(0.1, 1)], "0.01").payouts == (0, 1)
    assert settled([5e-324, 1e307, 1e307], "1").payouts == (0, 50, 50)


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ({}, [60, 30, 10]),
        ({"rule": "floor", "floor": 20}, [53.33, 26.67, 20]),
        ({"rule": "floor", "floor": 33}, [34, 33, 33]),
        ({"rule": "floor", "floor": 0}, [60, 30, 10]),
        ({"rule": "cap", "cap": 50}, [50, 37.5, 12.5]),
        ({"rule": "cap", "cap": 40}, [40, 40, 20]),
        ({"rule": "cap", "cap": 60}, [60, 30, 10]),
        ({"rule": "floor-and-cap", "floor": 20, "cap": 50}, [50, 30, 20]),
        ({"rule": "floor-and-cap", "floor": 25, "cap": 70}, [50, 25, 25]),
        ({"rule": "floor-and-cap", "floor": 12, "cap": 45}, [45, 41.25, 13.75]),
        ({"rule": "floor-and-cap", "floor": 25, "cap": 45, "fixed_part": "30%"}, [45, 30, 25]),
        ({"fixed_part": "30%"}, [52, 31, 17]),
        ({"fixed_part": "100%"}, [33.34, 33.33, 33.33]),
        ({"rule": "floor", "floor": 20, "fixed_part": "30%"}, [50, 30, 20]),
        ({"rule": "floor", "floor": 5, "fixed_part": "30%"}, [52, 31, 17]),
        ({"rule": "cap", "cap": 45, "fixed_part": "30%"}, [45, 36.25, 18.75]),
    ],
)
def test_rules_by_hand(terms, expected):
    """Values of 6, 3 and 1 share 100 euros."""
    assert euros(settled([6.0, 3.0, 1.0], **terms)) == expected


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ({"negative": "zero"}, [75, 25, 0]),
        ({"rule": "shapley-positive"}, [75, 25, 0]),
        ({"rule": "shapley-positive", "negative": "zero"}, [75, 25, 0]),
        ({"negative": "deduct"}, [100, 33.33, -33.33]),
        ({"rule": "floor", "floor": 10, "negative": "zero"}, [67.5, 22.5, 10]),
        ({"rule": "cap", "cap": 60, "negative": "zero"}, [60, 40, 0]),
        ({"negative": "deduct", "fixed_part": "30%"}, [80, 33.33, -13.33]),
    ],
)
def test_negative_values_by_hand(terms, expected):
    """Values of 3, 1 and -1 share 100 euros."""
    result = settled([3.0, 1.0, -1.0], **terms)
    assert euros(result) == pytest.approx(expected, abs=0.011)
    assert sum(result.payouts) == 10_000
    assert "negative value" in result.notes[2]


@pytest.mark.parametrize(
    ("values", "terms", "message"),
    [
        ([3.0, -1.0], {}, "the value of 'telco' is negative; choose what happens .* 'zero' .* 'deduct' .* 'refuse'"),
        ([3.0, -1.0, -1.0], {"rule": "floor", "floor": 1}, "values of 'telco' and 'shop' are negative; choose"),
        ([3.0, -1.0], {"negative": "refuse"}, "refused: the value of 'telco' is negative"),
        ([-3.0, -1.0], {"negative": "zero"}, "no client has a positive value"),
        ([0.0, 0.0], {}, "no client has a positive value"),
        ([1.0, -1.0], {"negative": "deduct"}, "the values add up to no more than 0"),
        ([1.0, math.nan], {}, "the value of client 'telco' is not a number"),
        ([1.0, 1.0], {"rule": "floor", "floor": "50.01"}, "2 floors of 50.01 are 100.02, more than the budget"),
        ([1.0, 1.0], {"rule": "cap", "cap": "49.99"}, "2 caps of 49.99 are 99.98, less than the budget"),
        (
            [1.0, 0.0],
            {"rule": "cap", "cap": "60"},
            "at the cap of 60.00, and 40.00 EUR .*, or add fixed_part",
        ),
        (
            [1.0, 0.0],
            {"rule": "cap", "cap": "60", "fixed_part": "20%"},
            "30.00 EUR .* raise the cap or fixed_part",
        ),
        ([1.0], {"rule": "floor"}, r"rule 'floor' needs a floor: add floor=AMOUNT \(--floor AMOUNT\)"),
        ([1.0], {"cap": 5}, r"rule 'shares' takes no cap; received 5.00 EUR. Use rule='cap' \(--rule cap\), or"),
        (
            [1.0],
            {"rule": "floor", "floor": 1, "cap": 5},
            "rule 'floor' takes no cap; received 5.00 EUR. Use rule='floor-and-cap'",
        ),
        ([1.0], {"rule": "floor-and-cap", "cap": 5}, "rule 'floor-and-cap' needs a floor: add floor="),
        ([1.0], {"rule": "floor-and-cap", "floor": 6, "cap": 5}, "the floor of 6.00 is above the cap of 5.00"),
        ([1.0], {"fixed_part": "20"}, "the fixed part must be a percentage"),
        ([1.0], {"rule": "floor", "floor": 1, "negative": "deduct"}, "only with rule 'shares'"),
        ([1.0], {"rule": "shapley-positive", "negative": "refuse"}, "to refuse them, use 'shares'"),
        ([1.0], {"rule": "lottery"}, "unknown rule 'lottery'; allowed are 'shares'"),
        ([1.0], {"negative": "forget"}, "unknown negative 'forget'; allowed are 'zero'"),
        ([1.0], {"budget": "0"}, "budget must be more than 0"),
    ],
)
def test_what_cannot_be_settled_is_an_error(values, terms, message):
    """Nothing is decided silently, and no setting is without effect."""
    with pytest.raises(InputError, match=message):
        settled(values, **terms)


def fill(weights, pot, floor, cap):
    """Return the floor and cap rules by bisection for the price of a unit of weight."""
    low, high = 0.0, 1e9
    parts = []
    for _ in range(200):
        price = (low + high) / 2
        parts = [min(cap, max(floor, price * weight)) for weight in weights]
        low, high = (price, high) if sum(parts) < pot else (low, price)
    return parts


@given(
    st.lists(st.floats(0.01, 100), min_size=2, max_size=6),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(["floor", "cap", "floor-and-cap"]),
)
def test_floor_and_cap_are_the_same_as_by_bisection(weights, low, high, rule):
    """All clients within the limits are paid the same for a unit of value."""
    even = 1000 / len(weights)
    limits = {"floor": math.floor(100 * low * even) / 100, "cap": math.ceil(100 * (even + high * (1000 - even))) / 100}
    if rule != "floor-and-cap":
        limits = {rule: limits[rule]}
    expected = fill(weights, 1000, limits.get("floor", 0), limits.get("cap", 1000))
    result = settled(weights, "1000", rule=rule, **{name: f"{limit:.2f}" for name, limit in limits.items()})
    np.testing.assert_allclose(euros(result), expected, atol=0.02)


def corners(values, errors, budget, **terms):
    """Return the payouts at all corners, (corners, clients), in cents; NaN at those that cannot be settled."""
    result = []
    for signs in itertools.product([-1, 1], repeat=len(values)):
        there = [value + sign * error for value, error, sign in zip(values, errors, signs, strict=True)]
        try:
            result.append(settled(there, budget, **terms).payouts)
        except InputError:
            result.append([math.nan] * len(values))
    return np.array(result, dtype=float)


TERMS = [
    {"negative": "zero"},
    {"negative": "deduct"},
    {"negative": "zero", "fixed_part": "25%"},
    {"rule": "floor", "floor": 150, "negative": "zero"},
    {"rule": "cap", "cap": 400, "negative": "zero"},
    {"rule": "cap", "cap": 300, "negative": "zero", "fixed_part": "50%"},
    {"rule": "floor-and-cap", "floor": 150, "cap": 400, "negative": "zero"},
]


# Numbers of two digits, which floats add without rounding that would matter at the corners.
@pytest.mark.parametrize("terms", TERMS, ids=str)
@given(st.data())
def test_ranges_are_those_of_all_corners(terms, data):
    """The lowest and highest payouts of all 2^M corners are within the range, and less than two cents from its ends.

    Errors may be larger than values, which are then zero or negative at some corners. That a range is narrow is tested
    only where all corners can be paid; elsewhere its ends are limits, which another test is about.
    """
    n_clients = data.draw(st.integers(4, 5))
    whole = st.lists(st.integers(1, 99), min_size=n_clients, max_size=n_clients)
    values = [number / 4 for number in data.draw(whole)]
    errors = [number / 8 for number in data.draw(whole)]
    if terms["negative"] == "deduct":
        values[0] = -values[0]
        assume(sum(values) - sum(errors) > 1)
    result = settled(values, "1000", errors, **terms)
    found = corners(values, errors, "1000", **terms)
    np.testing.assert_array_less(np.array(result.lowest) - 1, np.nanmin(found, axis=0))
    np.testing.assert_array_less(np.nanmax(found, axis=0), np.array(result.highest) + 1)
    assume(not np.isnan(found).any())
    np.testing.assert_array_less(found.min(axis=0) - 2, result.lowest)
    np.testing.assert_array_less(np.array(result.highest) - 2, found.max(axis=0))


@pytest.mark.parametrize(
    "terms", [{}, {"rule": "floor", "floor": 20}, {"rule": "floor-and-cap", "floor": 10, "cap": 60}], ids=str
)
@given(st.data())
def test_no_values_within_the_errors_pay_more_or_less_than_the_range(terms, data):
    """This holds inside the box too, and with errors larger than the values."""
    numbers = st.lists(st.floats(0.1, 10), min_size=3, max_size=3)
    values, errors = data.draw(numbers), data.draw(numbers)
    result = settled(values, "100", errors, **terms)
    positions = data.draw(st.lists(st.floats(-1, 1), min_size=3, max_size=3))
    there = [value + x * error for value, error, x in zip(values, errors, positions, strict=True)]
    try:
        found = settled(there, "100", negative="zero", **terms)
    except InputError:
        assume(False)  # hypothesis discards this example
    for low, payout, high in zip(result.lowest, found.payouts, result.highest, strict=True):
        assert low <= payout <= high


def test_a_corner_that_cannot_be_paid_is_a_limit():
    """A client whose value may vanish gets at least what the others may not take."""
    result = settled([1.0, 1.0], "100", [0.0, 5.0], rule="cap", cap=60)
    assert (result.lowest, result.highest) == ((4000, 4000), (6000, 6000))
    result = settled([1.0, 0.0], "100", [5.0, 0.0])
    assert (result.lowest, result.highest) == ((10000, 0), (10000, 0))


def test_an_unknown_error_leaves_the_other_ranges_known():
    """They take that value as exact; its own range is unknown, unless everything is a fixed part."""
    values, errors = [1.0, 2.0, 1.0], [math.nan, 0.1, 0.1]
    result = settled(values, errors=errors)
    known = settled(values, errors=[0.0, 0.1, 0.1])
    assert result.lowest == (None, *known.lowest[1:])
    assert result.highest == (None, *known.highest[1:])
    assert known.lowest[1] < result.payouts[1] < known.highest[1]
    assert json.loads(result.to_json())["lowest"][0] is None
    assert '"unknown","unknown"' in result.to_csv()
    assert settled([1.0, 2.0], errors=[math.nan, math.nan]).lowest == (None, None)
    assert settled([1.0, 2.0], errors=[math.nan, 0.1], fixed_part="100%").lowest == (5000, 5000)
    assert settled([1.0, -0.5], errors=[0.3, 0.3], negative="deduct").lowest == (None, None)
    assert settled([1.0, -0.5], errors=[0.3, math.nan], negative="deduct").lowest[0] is not None


def test_values_whose_sum_overflows_cannot_be_settled():
    """JSON could not state their books."""
    with pytest.raises(InputError, match="losses or sums of values are not finite"):
        pay(Terms.of(100, "EUR"), basis([1.7e308, 1.7e308], [0.0, 0.0]))


def test_currencies_with_other_cents():
    """Yen have no decimals, dinars have three."""
    assert [str(amount) for amount in settled([2.0, 1.0], "100", currency="JPY").amounts] == ["67", "33"]
    assert [str(amount) for amount in settled([2.0, 1.0], "1", currency="KWD").amounts] == ["0.667", "0.333"]


def test_a_table_for_spreadsheets_is_in_the_order_of_the_screen():
    """It is sorted by descending payout and marked as UTF-8, with the sum and the terms below."""
    text = settled([1.0, 3.0], errors=[0.1, 0.1]).to_csv()
    assert text.startswith('\ufeff"client","payout","part_of_budget"')
    lines = text.splitlines()
    assert [line.split(",")[0] for line in lines[1:4]] == ['"telco"', '"bank"', '"sum"']
    assert lines[3] == '"sum","100.00","1.0","","","","EUR",""'
    assert '"budget","100.00"' in lines
    assert '"head of the transcript","head"' in lines


NASTY = [
    '=HYPERLINK("http://x","y")',
    "+1",
    "-1",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    " =1",
    "\uff1d1",
    "<script>",
    "a\nb",
    'a"b,c',
    "x;=1+cmd",
    'x";=1+cmd',
    "x\t=1+cmd",
]


def test_names_are_harmless_in_a_spreadsheet():
    """No cell begins like a formula, each client has one row, and numbers stay numbers."""
    values = [1.0] * (len(NASTY) - 1) + [-1.0]
    result = pay(Terms.of(100, "EUR", negative="deduct"), basis(values, [0.0] * len(NASTY), NASTY))
    text = result.to_csv({"run": "=1+1"}).removeprefix("\ufeff")
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert [row[0] for row in rows[1 + len(NASTY) :] if row] == [
        *("sum", "budget", "currency", "rule", "negative", "fixed part", "rounds", "books", "head of the transcript"),
        "run",
    ]
    assert rows[-1] == ["run", "'=1+1"]
    assert rows[1 + len(NASTY)][1] == "100.00"
    rows = rows[: 1 + len(NASTY)]
    assert all(row[0][0] not in "=+-@\uff1d\t\r " for row in rows)
    assert all(letter.isprintable() for row in rows for cell in row for letter in cell)
    for delimiter in ";\t":
        rows_there = csv.reader(io.StringIO(result.to_csv(), newline=""), delimiter=delimiter)
        assert all(cell[:1] not in tuple("=+-@") for row in rows_there for cell in row)
    assert rows[1][0] == '\'=HYPERLINK("http://x","y")'
    assert float(rows[-1][1]) < 0
    assert spreadsheet_text("Zürich & Söhne") == "Zürich & Söhne"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "novel"}, "this is not a settlement that verfedsv wrote"),
        ({"format": "verfedsv valuation"}, "this is a valuation, not a settlement that verfedsv wrote"),
        ({"version": 1}, "a settlement of format version 1; this verfedsv reads version 2"),
        ({"books": {"start": 1.0}}, r"books\.end: Field required"),
        ({"books": [1.0, 1.0, 1.0, 1.0]}, "is damaged"),
        ({"clients": "ab"}, "clients: Input should be a valid list"),
        ({"values": ["1.0", 1.0]}, r"values\.0: Input should be a valid number"),
        ({"notes": [1, ""]}, r"notes\.0: Input should be a valid string"),
        ({"pay_server": " "}, "the name of the server is not valid: "),
        ({"n_rounds": 1.5}, "n_rounds: Input should be a valid integer"),
        ({"n_planned": -1}, "n_planned: Input should be greater than or equal to 0"),
        ({"payouts": ["1.00"]}, "payouts must have one entry for each client"),
        ({"budget": "much"}, "budget must be an amount"),
        ({"values": [None, 1.0]}, "is damaged"),
        ({"head": ...}, "head: Field required"),
    ],
)
def test_damaged_json_is_named(change, message):
    """The error names the field."""
    fields = json.loads(settled([1.0, 2.0]).to_json()) | change
    fields = {name: value for name, value in fields.items() if value is not ...}
    with pytest.raises(InputError, match=message):
        Settlement.from_json(json.dumps(fields))
    with pytest.raises(InputError, match="not the JSON of a settlement"):
        Settlement.from_json("[1")


@pytest.mark.parametrize("name", ["payouts.csv", "payouts.json"])
def test_a_table_in_the_place_of_the_json_is_named(tmp_path, name):
    """Whatever its name is, with the file to pass instead."""
    path = tmp_path / name
    path.write_text(settled([1.0, 2.0]).to_csv(), encoding="utf-8")
    with pytest.raises(InputError, match=f"{name} is a table for people; pass the JSON: verfedsv settle ... -o"):
        Settlement.read(path)
    path = tmp_path / "right.json"
    path.write_text(settled([1.0, 2.0]).to_json())
    assert Settlement.read(path) == settled([1.0, 2.0])


def said(values, errors, n_planned=None, names=NAMES, about={}, **terms):  # noqa: B006  # it is only read
    """Return what is said of a settlement, in one text."""
    result = pay(Terms.of(100, "EUR", **terms), basis(values, errors, names, n_planned, **about))
    with Recorder(None, labels=[0, 1], clients=[*result.clients]) as recorder:
        for t in range(result.n_rounds):
            recorder.log([0, 1], {name: [-float(t), float(t)] for name in result.clients})
    return " ".join(explain(result, verfedsv.value(recorder)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (([3.0, 1.0], [0.1, 2.0]), "Value of 'telco' may be negative within the error, which the ranges ignore: "),
        (([3.0, 1.0], [0.1, 2.0]), "choose --negative zero or deduct to include it."),
        (([3.0, 1.0, 1.0], [0.1, 2.0, 1.5]), "Values of 'telco' and 'shop' may be negative"),
        (([3.0, 1.0], [math.nan, 0.1]), "The error of the value of 'bank' is unknown. Record more rounds "),
        (([3.0, 1.0], [math.nan, 0.1]), "Unknown for 'bank', whose error is unknown; the others' ranges take that"),
        (([3.0, 1.0], [math.nan, math.nan]), "Ranges are unknown: no error is known."),
        (([3.0, 1.0], [2.0, 2.0]), "The values cannot be relied on: their errors add up to as much as the values."),
        (([3.0, 1.0], [0.1, 0.1], 9), "The training was stopped after 6 of 9 rounds"),
        (([3.0, 1.0], [0.1, 0.1], None, ["\u00c1", "A\u0301"]), "look alike: make sure who is who."),
        (([3.0, 1.0], [0.1, 0.1], None, ["A", "a"]), "'A' and 'a' look alike"),
        (([3.0, 1.0], [0.1, 0.1], None, ["bank", "b\u0430nk"]), "look alike: make sure who is who."),
    ],
)
@pytest.mark.filterwarnings("ignore:.*look.* alike")
def test_what_speaks_against_paying_is_said(arguments, expected):
    """Values that may be negative or are uncertain, a training that was stopped, and names that look alike."""
    assert expected in said(*arguments)


@pytest.mark.parametrize(("errors", "is_said"), [([50.0, 2.0], True), ([0.5, 0.5], False)])
def test_errors_larger_than_values_that_do_harm_are_said(errors, is_said):
    """This holds although the values add up to less than zero."""
    reasons = cautions(basis([-3.0, 1.0], errors))
    assert any("cannot be relied on" in reason.text for reason in reasons) == is_said


def test_nothing_is_said_where_all_is_well():
    """There is no warning, and who pays in is named."""
    text = said([3.0, 1.0], [0.1, 0.1], 6)
    assert text.startswith(
        "Books: loss 1.000 at the start, \N{MINUS SIGN}23.000 at the end; the clients lowered it by 24.000. "
        "Rule: shares"
    )
    assert "may be negative" not in text
    assert "may be negative" not in said([3.0, 1.0], [0.1, 2.0], negative="zero")
    assert "nothing would then be settled" in said([3.0, 1.0], [0.1, 2.0], negative="refuse")
    assert "To be paid in, in EUR: shop 12.50 and telco 12.50." in said([3.0, -0.3, -0.3], [0.0] * 3, negative="deduct")


def test_a_chosen_rule_for_negative_values_is_in_the_range():
    """A value that may be negative may cost its client money if negative values are deducted."""
    assert settled([3.0, 1.0], errors=[0.1, 2.0], negative="deduct").lowest[1] < 0
    assert settled([3.0, 1.0], errors=[0.1, 2.0], negative="zero").lowest[1] == 0


def test_every_rule_has_words_of_its_own(monkeypatch):
    """A rule that is added without them cannot be described, rather than being called proportional."""
    assert SHARED.keys() == {*get_args(Rule)}
    result = settled([3.0, 1.0])
    monkeypatch.delitem(SHARED, "shares")
    with pytest.raises(KeyError, match="shares"):
        describe_terms(result)


def test_the_server_is_paid_only_if_asked():
    """Then shares, ranges, floors and fixed parts include it."""
    source = basis([6.0, 2.0], [0.1, 0.1], server=(2.0, 0.5))
    assert pay(Terms.of(100, "EUR"), source).payouts == (7500, 2500)
    result = pay(Terms.of(100, "EUR", pay_server="hub"), source)
    assert (result.clients, result.payouts) == (("bank", "telco", "hub"), (6000, 2000, 2000))
    assert result.shares == (0.6, 0.2, 0.2)
    assert result.lowest[2] < 2000 < result.highest[2]
    assert Settlement.from_json(result.to_json()) == result
    assert '"pay server","hub"' in result.to_csv()
    expected = "shares, in proportion to values; the server is paid 20.00 EUR for its own part, as 'hub'"
    assert describe_terms(result) == expected
    large = pay(Terms.of(100, "EUR", pay_server="hub"), basis([0.6, 0.2], [0.1, 0.1], server=(20.0, 0.5)))
    assert "cancel" not in [reason.kind for reason in judge(large).reasons]  # the largest is below the sum of all
    floored = pay(Terms.of(100, "EUR", rule="floor", floor=30, pay_server="hub"), source)
    assert floored.payouts == (4000, 3000, 3000)
    assert pay(Terms.of(99, "EUR", fixed_part="100%", pay_server="hub"), source).payouts == (3300,) * 3
    with pytest.raises(InputError, match="the server cannot have the name of client 'telco'"):
        pay(Terms.of(100, "EUR", pay_server="telco"), source)
    with pytest.raises(InputError, match="the value of 'hub' is negative"):
        pay(Terms.of(100, "EUR", pay_server="hub"), basis([6.0, 2.0], [0.1, 0.1], server=(-2.0, 0.5)))


@pytest.mark.parametrize(
    ("books", "expected"),
    [
        (Books(0.7, 2.4, 17.4, -19.1), "The loss rose over the training, from 0.7 to 2.4: the model became worse."),
        (
            Books(0.7, 2.4, 17.4, -19.1),
            "The server's own part changed the loss more than all clients together: it raised",
        ),
        (Books(0.7, 0.6, -0.1, 0.2), "The clients together did not lower the loss: their values add up to -0.1."),
        (
            Books(0.7, 0.6, 0.03, 0.07),
            "more than all clients together: it lowered it by 0.07, the clients lowered it by",
        ),
    ],
)
def test_where_the_loss_went_is_said_before_anything_is_paid(books, expected):
    """Warnings are of a loss that rose, clients that did not lower it, and a server that changed more than they did."""
    assert expected in said([3.0, 1.0], [0.1, 0.1], about={"books": books})


def test_what_the_clients_did_not_make_better_is_not_settled():
    """It can be settled only explicitly."""
    with Recorder(None, labels=[0, 1], clients=["bank", "telco"]) as recorder:
        recorder.log([0, 1], {"bank": [1.0, 0.0], "telco": [-0.5, 0.0]})
    valuation = verfedsv.value(recorder)
    with pytest.raises(InputError, match=r"not settled: The loss rose over the training, from 0\.6931 to "):
        settle(valuation, Terms.of(100, "EUR", negative="zero"))
    paid = settle(valuation, Terms.of(100, "EUR", negative="zero"), even_if_the_loss_rose=True)
    assert paid.payouts == (0, 10_000)


def test_other_settings_are_refused_unless_they_were_agreed_or_are_accepted(tmp_path):
    """Without a run nothing is known to be agreed, so only default settings are settled."""
    for name, agreed in (("default", None), ("banzhaf", {"semivalue": "banzhaf"})):
        record(tmp_path / name, valuation=agreed)
    terms = Terms.of(100, "EUR", negative="zero")
    valuation = verfedsv.value(tmp_path / "default", semivalue="banzhaf")
    with pytest.raises(InputError, match=r"agreed settings are unknown.* semivalue is banzhaf and not shapley"):
        settle(valuation, terms)
    with pytest.raises(InputError, match="not computed with the agreed settings: semivalue is banzhaf and not shapley"):
        settle(valuation, terms, run=tmp_path / "default")
    for run in (None, tmp_path / "default"):
        assert sum(settle(valuation, terms, run=run, accept_settings=True).payouts) == 10_000
    with pytest.raises(InputError, match="the valuation is not of this transcript"):
        settle(valuation, terms, run=tmp_path / "banzhaf")
    agreed = verfedsv.value(tmp_path / "banzhaf")
    assert agreed.settings.semivalue == "banzhaf"
    assert sum(settle(agreed, terms, run=tmp_path / "banzhaf").payouts) == 10_000


def test_a_run_is_settled_only_when_it_has_ended_and_with_its_plan(tmp_path):
    """A running training is refused; one that was stopped early is settled as such."""
    record(tmp_path / "run", n_rounds=4, n_planned=6)
    valuation, terms = verfedsv.value(tmp_path / "run"), Terms.of(100, "EUR", negative="zero")
    paid = settle(valuation, terms, run=tmp_path / "run")
    assert (paid.n_rounds, paid.n_planned) == (4, 6)
    assert any("stopped after 4 of 6 rounds" in reason.text for reason in cautions(paid))
    with (
        Recorder(tmp_path / "run", np.arange(40) % 2, CLIENTS, n_planned=6, resume=True),
        pytest.raises(InputError, match="the training is still running, 4 of 6 rounds so far, so it is not settled"),
    ):
        settle(valuation, terms, run=tmp_path / "run")


@pytest.mark.parametrize("arguments", [(3, Terms.of(1, "EUR")), (None, None)])
def test_what_cannot_be_settled(arguments):
    """Anything but a valuation and terms is refused with an example."""
    with pytest.raises(InputError, match=r"settle takes a Valuation and Terms, such as settle\(value\(run\), Terms.of"):
        settle(*arguments)


def test_a_run_is_checked_as_the_command_does(tmp_path):
    """Names that are swapped, or a transcript that was changed, are refused."""
    run = make_run(tmp_path / "run")
    valuation = verfedsv.value(run)
    swapped = dataclasses.replace(valuation, clients=valuation.clients[::-1])
    with pytest.raises(InputError, match="the valuation is not of this transcript"):
        settle(swapped, Terms.of(100, "EUR"), run=run, accept_settings=True)
    uploads = run / "transcript" / "uploads-00001.arrows"
    content = bytearray(uploads.read_bytes())
    content[content.index(b"telco") + 3000] ^= 1
    uploads.write_bytes(content)
    with pytest.raises(TranscriptError, match="the transcript was changed"):
        settle(valuation, Terms.of(100, "EUR", negative="zero"), run=run, accept_settings=True)


def test_a_run_with_a_loss_of_ones_own_is_settled(tmp_path):
    """It was valued in Python, and needs no loss to be settled."""
    with Recorder(tmp_path / "run", [0.0, 1.0], ["bank", "telco"], LogCosh()) as recorder:
        recorder.log([0, 1], {"bank": [0.0, 0.5], "telco": [0.0, 0.2]})
    valuation = verfedsv.value(tmp_path / "run", loss=LogCosh())
    assert sum(settle(valuation, Terms.of(100, "EUR"), run=tmp_path / "run").amounts) == 100


def test_doubts_that_only_the_valuation_shows_are_said():
    """A settlement has no completion; who withheld samples is said where the valuation is at hand."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 200))
    with Recorder(None, labels=(x[0] > 0).astype(int), clients=["a", "b"]) as recorder:
        for t in range(12):
            batch = {"a": np.arange(200), "b": rng.permutation(200)[:40] if t else np.arange(200)}
            recorder.log(batch, {"a": 0.1 * t * x[0], "b": 0.1 * t * x[1][batch["b"]]})
    valuation = verfedsv.value(recorder)
    result = settle(valuation, Terms.of(100, "EUR", negative="zero"))
    assert "'b' did not upload most of the samples that other clients uploaded" in explain(result, valuation)[0]
