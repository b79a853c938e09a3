"""Amounts of money: whole numbers of the smallest unit of a currency, called cents here; never a binary fraction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from verfedsv.errors import InputError

_BY_DIGITS = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF",
    2: "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CNY COP "
    "CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR "
    "JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN "
    "NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP "
    "SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD UYU UZS VED VES WST XCD XCG YER ZAR ZMW ZWG",
    3: "BHD IQD JOD KWD LYD OMR TND",
}
_DIGITS = {code: digits for digits, codes in _BY_DIGITS.items() for code in codes.split()}
"""The currencies of ISO 4217 that payments are made in, and their digits after the point.

Its units of account (CLF, XDR), metals and codes for tests are left out: a mistyped code must not pass for one of them.
"""

_MOST_DIGITS = 15
_AMOUNT = re.compile(r"(\d+)(?:\.(\d+))?", re.ASCII)
_WRITTEN = re.compile(r"-?\d{1,999}(?:\.\d+)?", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,12})?) ?%", re.ASCII)


@dataclass(frozen=True)
class Currency:
    """A currency by its code of three letters, and how many digits its amounts have after the point."""

    code: str
    digits: int

    @classmethod
    def of(cls, code: str) -> Currency:
        """Return the currency of a code; raise InputError if there is none.

        >>> Currency.of("JPY").digits, Currency.of("kwd").digits, Currency.of("EUR").digits
        (0, 3, 2)
        """
        name = code.upper() if isinstance(code, str) else ""
        if not re.fullmatch("[A-Z]{3}", name):
            raise InputError(f"currency must be a code of three letters, such as EUR; received {code!r}")
        if name not in _DIGITS:
            raise InputError(f"{name} is not a currency of ISO 4217 for payments; check the code")
        return cls(name, _DIGITS[name])

    def parse(self, name: str, amount: str | int | Decimal) -> int:
        """Return an amount in cents; raise InputError, calling it `name`, unless it is a whole number of them.

        A float is refused: 0.1 is not a tenth.

        >>> Currency.of("EUR").parse("budget", "100000.5")
        10000050
        """
        text = f"{amount:f}" if isinstance(amount, Decimal) else str(amount)
        if isinstance(amount, float):
            allowed = "a text such as '2500.50', a whole number or a Decimal"
            raise InputError(f"{name} must be {allowed}; received the float {text}, which may not be what was written")
        found = None if isinstance(amount, bool) else _AMOUNT.fullmatch(text.removeprefix("-"))
        if found is None:
            wanted = "an amount such as 100000 or 2500.50, without separators of thousands"
            raise InputError(f"{name} must be {wanted}; received {text[:40]!r}")
        if text.startswith("-"):
            raise InputError(f"{name} must not be negative; received {text[:40]}")
        integer, fraction = found[1], found[2] or ""
        if len(integer) > _MOST_DIGITS:
            raise InputError(f"{name} may have {_MOST_DIGITS} digits before the point at most; received {text[:40]}")
        if len(fraction) > self.digits:
            allowed = f"may have {self.digits} digits after the point" if self.digits else "has no decimals"
            raise InputError(f"{name} {allowed} in {self.code}, and no separators of thousands; received {text[:40]}")
        return int(integer + fraction.ljust(self.digits, "0"))

    def amount(self, cents: int) -> Decimal:
        """Return an amount in cents as a Decimal.

        >>> Currency.of("EUR").amount(-1250)
        Decimal('-12.50')
        """
        # Not by scaleb, which rounds to 28 digits.
        return Decimal((int(cents < 0), tuple(map(int, str(abs(cents)))), -self.digits))

    def read(self, name: str, text: str) -> int:
        """Return the cents of an amount as `amount` writes it, of any size and sign; raise InputError if it is not one.

        >>> Currency.of("EUR").read("a payout", "-12.50")
        -1250
        """
        cents = int(text.replace(".", "")) if isinstance(text, str) and _WRITTEN.fullmatch(text) else None
        if cents is None or str(self.amount(cents)) != text:
            example = self.amount(-1250)
            raise InputError(f"{name} must be written like {example}; received {str(text)[:40]!r}")
        return cents

    def shown(self, cents: int) -> str:
        """Return an amount for people, with commas between thousands.

        >>> Currency.of("EUR").shown(10000050)
        '100,000.50'
        """
        return f"{self.amount(cents):,f}"


def parse_percent(name: str, text: str) -> Decimal:
    """Return the percentage in a text, from 0 to 100; raise InputError, calling it `name`, if there is none.

    >>> parse_percent("the fixed part", "12.5%")
    Decimal('12.5')
    """
    found = _PERCENT.fullmatch(text) if isinstance(text, str) else None
    if found is None or Decimal(found[1]) > 100:
        raise InputError(f"{name} must be a percentage from 0% to 100%, such as 20%; received {str(text)[:40]!r}")
    return Decimal(found[1])
