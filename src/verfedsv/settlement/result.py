"""The result of settling: payouts, as data, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from verfedsv.errors import InputError
from verfedsv.settlement.documents import check_format, parse
from verfedsv.settlement.money import Currency
from verfedsv.settlement.terms import TERMS, Terms
from verfedsv.texts import printable

FORMAT, VERSION = "verfedsv settlement", 1


@dataclass(frozen=True)
class Settlement:
    """What each client is paid. `payouts` are in cents and add up to the budget; negative ones are to be paid in.

    `lowest` and `highest` are the payouts that the errors of the values allow, None where that is unknown. `notes` say
    what a rule did to a client. `values`, `errors` and `head` are of the valuation that was settled.
    """

    terms: Terms
    clients: tuple[str, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]
    payouts: tuple[int, ...]
    lowest: tuple[int | None, ...]
    highest: tuple[int | None, ...]
    notes: tuple[str, ...]
    head: str

    @property
    def currency(self) -> Currency:
        return self.terms.currency

    @property
    def amounts(self) -> tuple[Decimal, ...]:
        """The payouts as amounts of the currency."""
        return tuple(map(self.currency.amount, self.payouts))

    @property
    def shares(self) -> tuple[float, ...]:
        """Fractions of the sum of the values, which can be negative; NaN if the sum is 0."""
        total = float(np.sum(self.values))  # summed as a valuation sums
        return tuple(value / total if total else math.nan for value in self.values)

    def to_fields(self) -> dict[str, Any]:
        """Return the settlement as JSON has it: amounts as texts, null for what is unknown."""
        return {
            "format": FORMAT,
            "version": VERSION,
            **self.terms.to_fields(),
            "clients": list(self.clients),
            "values": list(self.values),
            "errors": [error if math.isfinite(error) else None for error in self.errors],
            "shares": [share if math.isfinite(share) else None for share in self.shares],
            "payouts": self._texts(self.payouts),
            "lowest": self._texts(self.lowest),
            "highest": self._texts(self.highest),
            "notes": list(self.notes),
            "head": self.head,
        }

    def to_json(self) -> str:
        """Return the settlement as JSON."""
        return json.dumps(self.to_fields(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """Return a table with a row for each client; names that a spreadsheet would take for formulas are harmless."""
        sink = io.StringIO()
        # All quoted: where a semicolon ends a cell, what comes after one in a name would be a cell of its own.
        writer = csv.writer(sink, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
        writer.writerow(["client", "share", "payout", "lowest", "highest", "currency", "note"])
        columns = self.clients, self.shares, *map(self._texts, (self.payouts, self.lowest, self.highest)), self.notes
        for client, share, payout, low, high, note in zip(*columns, strict=True):
            bounds = ["unknown" if bound is None else bound for bound in (low, high)]
            number = "" if math.isnan(share) else repr(share)
            writer.writerow([spreadsheet_text(client), number, payout, *bounds, self.currency.code, note])
        return sink.getvalue()

    @classmethod
    def from_json(cls, text: str | bytes) -> Settlement:
        """Return the settlement that `to_json` wrote; raise InputError if it is none."""
        return cls.from_fields(parse(text, FORMAT))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Settlement:
        """Return the settlement in fields of JSON; raise InputError if they are damaged."""
        fields = check_format(fields, FORMAT, VERSION)
        try:
            terms = Terms.of(**{name: fields[name] for name in TERMS})

            def cents(amount: str | None) -> int | None:
                return None if amount is None else terms.currency.read("a payout", amount)

            return cls(
                terms=terms,
                clients=_column(fields, "clients", str),
                values=_column(fields, "values", float),
                errors=_column(fields, "errors", lambda error: math.nan if error is None else float(error)),
                payouts=_column(fields, "payouts", lambda amount: terms.currency.read("a payout", amount)),
                lowest=_column(fields, "lowest", cents),
                highest=_column(fields, "highest", cents),
                notes=_column(fields, "notes", str),
                head=str(fields["head"]),
            )
        except KeyError as error:
            raise InputError(f"the JSON of this settlement is damaged: {error} is missing") from None
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"the JSON of this settlement is damaged: {error}") from None

    def _texts(self, column: Sequence[int | None]) -> list[str | None]:
        return [None if cents is None else str(self.currency.amount(cents)) for cents in column]


def _column(fields: Mapping[str, Any], name: str, convert: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return what there is of each client, converted."""
    if len(fields[name]) != len(fields["clients"]):
        raise ValueError(f"{name} has {len(fields[name])} entries for {len(fields['clients'])} clients")
    return tuple(convert(item) for item in fields[name])


def spreadsheet_text(text: str) -> str:
    r"""Return a text that a spreadsheet shows and does not calculate: what begins like a formula gets an apostrophe.

    Control characters are replaced, as they could hide what comes first.

    >>> spreadsheet_text('=HYPERLINK("x")'), spreadsheet_text("telco"), spreadsheet_text("\t=1")
    ('\'=HYPERLINK("x")', 'telco', "'�=1")
    """
    plain = printable(text)
    first = unicodedata.normalize("NFKC", plain.lstrip(" \N{REPLACEMENT CHARACTER}")[:1])
    return f"'{plain}" if first in tuple("=+-@") else plain
