from decimal import Decimal

import pytest

from verfedsv import InputError
from verfedsv.settlement.money import Currency, parse_percent


@pytest.mark.parametrize(
    ("code", "amount", "cents"),
    [
        ("EUR", "100000", 10_000_000),
        ("EUR", "0.10", 10),
        ("EUR", "12.3", 1230),
        ("EUR", 7, 700),
        ("EUR", Decimal("1E+3"), 100_000),
        ("JPY", "100000", 100_000),
        ("KWD", "1.234", 1234),
    ],
)
def test_amounts_are_whole_numbers_of_the_smallest_unit(code, amount, cents):
    """Amounts are converted to cents, or what the currency has instead, and back."""
    currency = Currency.of(code)
    assert currency.parse("budget", amount) == cents
    assert currency.amount(cents) == Decimal(str(amount))


@pytest.mark.parametrize(
    ("code", "amount", "message"),
    [
        ("EUR", "0.001", "2 digits after the point in EUR, and no separators of thousands; received 0.001"),
        ("EUR", "100.000", "2 digits after the point in EUR, and no separators of thousands; received 100.000"),
        ("EUR", "1." + "0" * 40 + "1", "2 digits after the point in EUR"),
        ("JPY", "0.5", "budget has no decimals in JPY"),
        ("EUR", "100,000", "without separators of thousands; received '100,000'"),
        ("EUR", "1e5", "must be an amount"),
        ("EUR", "-5", "must not be negative; received -5"),
        ("EUR", "NaN", "must be an amount"),
        ("EUR", "٣", "must be an amount"),
        ("EUR", "", "must be an amount"),
        ("EUR", "9" * 16, "budget may have 15 digits before the point at most; received 9999999999999999"),
        ("EUR", 0.5, "must be a text such as '2500.50', a whole number or a Decimal; received the float 0.5"),
        ("EUR", True, "must be an amount"),
        ("EUR", Decimal("Infinity"), "must be an amount"),
        ("euros", "1", "a code of three letters, such as EUR; received 'euros'"),
        ("=1+", "1", "a code of three letters"),
        (None, "1", "a code of three letters"),
        ("ERU", "1", "ERU is not a currency of ISO 4217 for payments; check the code"),
        ("XAU", "1", "XAU is not a currency"),
        ("CLF", "1", "CLF is not a currency"),
    ],
)
def test_what_is_no_amount_is_refused(code, amount, message):
    """The message says what is allowed, and what was received."""
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        Currency.of(code).parse("budget", amount)


@pytest.mark.parametrize(("code", "cents"), [("EUR", 5), ("JPY", -7), ("KWD", 10**40 + 1), ("EUR", -(10**99))])
def test_amounts_of_any_size_come_back(code, cents):
    """They are not rounded, and no other way of writing them is read."""
    currency = Currency.of(code)
    text = str(currency.amount(cents))
    assert currency.read("a payout", text) == cents
    assert currency.shown(cents).replace(",", "") == text
    for other in (f"0{text}", f"{text}.", f" {text}", f"{text}e0", "", None, 5.0):
        with pytest.raises(InputError, match="a payout must be written like"):
            currency.read("a payout", other)


@pytest.mark.parametrize("text", ["20", "101%", "-1%", "%", "1e1%", "twenty", 20])
def test_a_percentage_has_its_sign_and_is_at_most_100(text):
    """Whether 0.2 means 20 % or 0.2 % is not guessed."""
    assert parse_percent("fixed_part", "100%") == 100
    with pytest.raises(InputError, match="a percentage from 0% to 100%"):
        parse_percent("fixed_part", text)
