"""The terms of a settlement, checked: no setting contradicts another or has no effect."""

from __future__ import annotations

from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction
from typing import Any, get_args

from verfedsv.errors import InputError
from verfedsv.names import check_names
from verfedsv.settlement.money import Currency, parse_percent
from verfedsv.settlement.rules import Limits, Negative, Rule

Amount = str | int | Decimal


@dataclass(frozen=True)
class Terms:
    """The terms of a settlement; `Terms.of` makes them. Amounts are in cents, `fixed_part` in percent.

    `floor` and `cap` limit the payout including the fixed part. `negative` is None if no choice was made.
    """

    budget: int
    currency: Currency
    rule: Rule
    negative: Negative | None
    floor: int | None
    cap: int | None
    fixed_part: Decimal
    pay_server: str | None

    @classmethod
    def of(
        cls,
        budget: Amount,
        currency: str,
        rule: Rule = "shares",
        *,
        negative: Negative | None = None,
        floor: Amount | None = None,
        cap: Amount | None = None,
        fixed_part: str | None = None,
        pay_server: str | None = None,
    ) -> Terms:
        """Return the terms; raise InputError if they make no sense.

        Args:
            budget: the amount to share: a text such as "100000" or "2500.50", a whole number or a Decimal.
            currency: its code of three letters.
            rule: "shares" pays in proportion to values; "floor" does the same but pays nobody less than `floor`; "cap"
                pays nobody more than `cap`; "floor-and-cap" applies both; "shapley-positive" is "shares" with negative
                values counted as zero.
            negative: what happens to negative values: "zero" counts them as zero, "deduct" makes such clients pay in,
                "refuse" raises an error. If there are any, a choice is required.
            floor: the least that each client gets.
            cap: the most that each client gets.
            fixed_part: the percentage of the budget that all share equally, such as "20%"; the rest is split by the
                rule.
            pay_server: the name under which the server is paid for the value of its own part; None if it is not paid.
        """
        money = Currency.of(currency)
        _check_choice("rule", rule, get_args(Rule))
        if negative is not None:
            _check_choice("negative", negative, get_args(Negative))
        return cls(
            budget=money.parse("budget", budget),
            currency=money,
            rule=rule,
            negative="zero" if rule == "shapley-positive" and negative is None else negative,
            floor=None if floor is None else money.parse("floor", floor),
            cap=None if cap is None else money.parse("cap", cap),
            fixed_part=parse_percent("the fixed part", "0%" if fixed_part is None else fixed_part),
            pay_server=pay_server,
        )

    def __post_init__(self) -> None:
        if self.pay_server is not None:
            try:
                check_names([self.pay_server])
            except ValueError as error:
                raise InputError(f"the name of the server is not valid: {error}") from None
        if self.budget == 0:
            raise InputError("budget must be more than 0")
        self._check_limits()
        if self.negative == "deduct" and self.rule != "shares":
            raise InputError(
                f"negative values can be deducted only with rule 'shares', not with {self.rule!r}, which lets nobody "
                "pay in; choose 'zero' or 'refuse'"
            )
        if self.negative == "refuse" and self.rule == "shapley-positive":
            raise InputError("rule 'shapley-positive' counts negative values as zero; to refuse them, use 'shares'")

    def _check_limits(self) -> None:
        """Raise InputError unless floor and cap are given where the rule has them, and nowhere else."""
        for name, amount in (("floor", self.floor), ("cap", self.cap)):
            is_of_rule = self.rule in (name, "floor-and-cap")
            if is_of_rule and amount is None:
                raise InputError(f"rule {self.rule!r} needs a {name}: add {name}=AMOUNT (--{name} AMOUNT)")
            if not is_of_rule and amount is not None:
                received = f"{self.currency.shown(amount)} {self.currency.code}"
                fitting = "floor-and-cap" if self.rule in ("floor", "cap") else name
                raise InputError(
                    f"rule {self.rule!r} takes no {name}; received {received}. Use rule={fitting!r} "
                    f"(--rule {fitting}), or leave the {name} out"
                )
        if self.floor is not None and self.cap is not None and self.floor > self.cap:
            shown = self.currency.shown
            raise InputError(f"the floor of {shown(self.floor)} is above the cap of {shown(self.cap)}")

    def check_for(self, n_clients: int) -> None:
        """Raise InputError if `n_clients` floors add up to more than the budget, or as many caps to less."""
        shown = self.currency.shown
        if self.floor is not None and self.floor * n_clients > self.budget:
            needed = f"{n_clients} floors of {shown(self.floor)} are {shown(self.floor * n_clients)}"
            raise InputError(f"{needed}, more than the budget of {shown(self.budget)} {self.currency.code}")
        if self.cap is not None and self.cap * n_clients < self.budget:
            most = f"{n_clients} caps of {shown(self.cap)} are {shown(self.cap * n_clients)}"
            raise InputError(f"{most}, less than the budget of {shown(self.budget)} {self.currency.code}")

    def fixed_for_each(self, n_clients: int) -> Fraction:
        """Return each client's part of the fixed part, in cents."""
        return Fraction(self.fixed_part) / 100 * self.budget / n_clients

    def limits_above(self, fixed: Fraction) -> Limits:
        """Return floor and cap of what comes on top of a client's fixed part."""
        floor = None if self.floor is None or self.floor <= fixed else self.floor - fixed
        return Limits(floor, None if self.cap is None else self.cap - fixed)

    def to_fields(self) -> dict[str, Any]:
        """Return the JSON fields of the terms: amounts are texts, which no reader turns into binary fractions."""

        def text(cents: int | None) -> str | None:
            return None if cents is None else str(self.currency.amount(cents))

        return {
            "budget": text(self.budget),
            "currency": self.currency.code,
            "rule": self.rule,
            "negative": self.negative,
            "floor": text(self.floor),
            "cap": text(self.cap),
            "fixed_part": f"{self.fixed_part:f}%",
            "pay_server": self.pay_server,
        }


TERMS = tuple(field.name for field in fields(Terms))
"""The names of what `Terms.to_fields` returns; all are arguments of `Terms.of`."""


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"unknown {name} {value!r}; allowed are {', '.join(map(repr, allowed))}")
