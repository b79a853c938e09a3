"""The result of settling: payouts, as data, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, NonNegativeInt

from verfedsv.errors import InputError
from verfedsv.settlement.books import describe_books
from verfedsv.settlement.documents import BooksContent, ClientsContent, parse, read_bytes, validate
from verfedsv.settlement.money import Currency
from verfedsv.settlement.rules import Negative, Rule
from verfedsv.settlement.terms import TERMS, Terms
from verfedsv.texts import spreadsheet_text
from verfedsv.valuation.result import Books

FORMAT, VERSION = "verfedsv settlement", 2

BYTE_ORDER_MARK = "\N{BYTE ORDER MARK}"
"""Tells spreadsheets that a CSV is UTF-8; without it, they garble accents."""

_HEADER = ["client", "payout", "part_of_budget", "share_of_values", "lowest", "highest", "currency", "note"]
CSV_BEGINNING = BYTE_ORDER_MARK + ",".join(f'"{name}"' for name in _HEADER)
"""The first line of the CSV of a settlement."""


class SettlementContent(ClientsContent):
    """The JSON fields of a settlement. Amounts are texts, so that no reader turns them into binary fractions."""

    columns = ("values", "errors", "shares", "payouts", "lowest", "highest", "notes")
    budget: str
    currency: str
    rule: Rule
    negative: Negative | None
    floor: str | None
    cap: str | None
    fixed_part: str
    pay_server: str | None
    values: list[float]
    errors: list[float | None]
    shares: list[float | None]
    payouts: list[str]
    lowest: list[str | None]
    highest: list[str | None]
    notes: list[str]
    books: BooksContent
    head: str
    n_rounds: NonNegativeInt
    n_planned: NonNegativeInt | None
    took_part: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class Settlement:
    """What each client is paid. `payouts` are in cents and add up to the budget; negative ones are to be paid in.

    If the server is paid too, it is the last of the `clients`, by the name in the terms. `lowest` and `highest` are the
    payouts that the errors of the values allow, None where these are unknown. `notes` say what a rule did to a client.
    The other fields are those of the valuation; `n_planned` is the planned number of rounds, None if it is unknown, and
    `took_part` says in which rounds clients took part that missed any, as far as the run shows it.
    """

    terms: Terms
    clients: tuple[str, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]
    payouts: tuple[int, ...]
    lowest: tuple[int | None, ...]
    highest: tuple[int | None, ...]
    notes: tuple[str, ...]
    books: Books
    head: str
    n_rounds: int
    n_planned: int | None = None
    took_part: Mapping[str, str] = field(default_factory=dict)

    @property
    def currency(self) -> Currency:
        return self.terms.currency

    @property
    def order(self) -> list[int]:
        """The indices of the clients by descending payout, then value; ties are in the order of the transcript."""
        return sorted(range(len(self.clients)), key=lambda m: (-self.payouts[m], -self.values[m]))

    @property
    def amounts(self) -> tuple[Decimal, ...]:
        """The payouts as amounts of the currency."""
        return tuple(map(self.currency.amount, self.payouts))

    @property
    def shares(self) -> tuple[float, ...]:
        """Fractions of the sum of the values, which can be negative; NaN if the sum is not positive."""
        total = float(np.sum(self.values))  # summed as a valuation sums
        return tuple(value / total if total > 0 else math.nan for value in self.values)

    @property
    def parts(self) -> tuple[float, ...]:
        """The payouts as fractions of the budget."""
        return tuple(payout / self.terms.budget for payout in self.payouts)

    def to_fields(self) -> dict[str, Any]:
        """Return the JSON fields of the settlement: amounts as texts, null for what is unknown."""
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
            "books": self.books._asdict(),
            "head": self.head,
            "n_rounds": self.n_rounds,
            "n_planned": self.n_planned,
            **({"took_part": dict(self.took_part)} if self.took_part else {}),
        }

    def to_json(self) -> str:
        """Return the settlement as JSON."""
        return json.dumps(self.to_fields(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_csv(self, about: Mapping[str, str] | None = None) -> str:
        """Return a table for spreadsheets: the clients by descending payout, the sum, and the terms.

        `about` are further lines, each with a name and a text. Names that look like formulas are made harmless.
        Programs should read the JSON.
        """
        sink = io.StringIO()
        # All quoted: where semicolons separate cells, one in a name would begin another cell.
        writer = csv.writer(sink, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
        writer.writerow(_HEADER)
        payouts, lowest, highest = map(self._texts, (self.payouts, self.lowest, self.highest))
        for m in self.order:
            share = "" if math.isnan(self.shares[m]) else repr(self.shares[m])
            bounds = ["unknown" if bound is None else bound for bound in (lowest[m], highest[m])]
            cells = payouts[m], repr(self.parts[m]), share, *bounds, self.currency.code
            writer.writerow([spreadsheet_text(self.clients[m]), *cells, self.notes[m]])
        code, total = self.currency.code, str(self.currency.amount(sum(self.payouts)))
        writer.writerow(["sum", total, "1.0", "", "", "", code, ""])
        writer.writerow([])
        for name, text in {**self._terms_as_texts(), **(about or {})}.items():
            writer.writerow([spreadsheet_text(name), spreadsheet_text(text)])
        return BYTE_ORDER_MARK + sink.getvalue()

    def _terms_as_texts(self) -> dict[str, str]:
        """Return the terms, and what was settled, as lines of a table for people."""
        stated = {name: text for name, text in self.terms.to_fields().items() if text is not None}
        planned = {} if self.n_planned is None else {"rounds planned": str(self.n_planned)}
        return {
            **{name.replace("_", " "): text for name, text in stated.items()},
            "rounds": str(self.n_rounds),
            **planned,
            **{f"took part: {name}": text for name, text in self.took_part.items()},
            "books": describe_books(self.books),
            "head of the transcript": self.head,
        }

    @classmethod
    def read(cls, path: Path) -> Settlement:
        """Return the settlement in a JSON file; raise InputError if it is not one."""
        content = read_bytes(path)
        if path.suffix.lower() == ".csv" or content.startswith(BYTE_ORDER_MARK.encode()):
            raise InputError(f"{path} is a table for people; pass the JSON: verfedsv settle ... -o payouts.json")
        return cls.from_json(content)

    @classmethod
    def from_json(cls, text: str | bytes) -> Settlement:
        """Return the settlement that `to_json` wrote; raise InputError if it is not one."""
        return cls.from_fields(parse(text, FORMAT))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Settlement:
        """Return the settlement in JSON fields; raise InputError if they are damaged."""
        content = validate(SettlementContent, fields, FORMAT, VERSION)
        terms = Terms.of(**{name: fields[name] for name in TERMS})

        def cents(column: Sequence[str | None]) -> tuple[Any, ...]:
            return tuple(None if text is None else terms.currency.read("a payout", text) for text in column)

        return cls(
            terms=terms,
            clients=tuple(content.clients),
            values=tuple(content.values),
            errors=tuple(math.nan if error is None else error for error in content.errors),
            payouts=cents(content.payouts),
            lowest=cents(content.lowest),
            highest=cents(content.highest),
            notes=tuple(content.notes),
            books=Books(**content.books.model_dump()),
            head=content.head,
            n_rounds=content.n_rounds,
            n_planned=content.n_planned,
            took_part=content.took_part,
        )

    def _texts(self, column: Sequence[int | None]) -> list[str | None]:
        return [None if cents is None else str(self.currency.amount(cents)) for cents in column]
