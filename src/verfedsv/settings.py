"""`ValuationSettings`: how a training is valued, agreed before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from verfedsv.arguments import as_positive, as_whole
from verfedsv.errors import InputError
from verfedsv.shapley import Method
from verfedsv.shapley.estimators import get_estimator
from verfedsv.shapley.semivalues import get_semivalue

ROWS = ("all", "gradient", "no-gradient")
"""The choices of samples that have a name, and so can be agreed on; rows chosen by index are only described."""


@dataclass(frozen=True)
class ValuationSettings:
    """The options of `value` that change its result. A valuation can be continued or repeated only with the same ones.

    `semivalue` is a name. `rows` is one of `ROWS`, or a description of samples chosen by index.
    """

    method: Method = "auto"
    semivalue: str = "shapley"
    rank: int | Literal["auto"] = "auto"
    regularization: float | Literal["auto"] = "auto"
    tolerance: float = 1e-3
    n_permutations: int | None = None
    seed: int = 0
    rows: str = "all"

    def __post_init__(self) -> None:
        self.check_players(1)
        if not isinstance(self.rows, str):
            raise InputError(f"rows must be one of {', '.join(map(repr, ROWS))}; received {self.rows!r}")
        strength, most = self.regularization, self.n_permutations
        checked = {
            "semivalue": str(get_semivalue(self.semivalue)),
            "rank": "auto" if _is_auto(self.rank) else as_whole("rank", self.rank, at_least=1, hint="; or use 'auto'"),
            "regularization": "auto" if _is_auto(strength) else as_positive("regularization", strength),
            "tolerance": as_positive("tolerance", self.tolerance),
            "n_permutations": None if most is None else as_whole("n_permutations", most, at_least=1),
            "seed": as_whole("seed", self.seed, at_least=0),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def check_players(self, n_players: int) -> None:
        """Raise InputError if the method cannot compute the semivalue for that many players."""
        get_estimator(self.method).check(get_semivalue(self.semivalue), n_players)

    @classmethod
    def of(cls, options: Mapping[str, Any] | ValuationSettings | None) -> ValuationSettings:
        """Return settings from options by name, or the defaults; raise InputError if a name is unknown."""
        if isinstance(options, ValuationSettings):
            return options
        allowed = [field.name for field in fields(cls)]
        unknown = [name for name in options or {} if name not in allowed]
        if unknown:
            raise InputError(f"unknown setting {unknown[0]!r} of a valuation; allowed are {', '.join(allowed)}")
        return cls(**(options or {}))

    def as_dict(self) -> dict[str, Any]:
        """Return the settings by name, ready for JSON."""
        return asdict(self)

    def differences(self, other: ValuationSettings) -> list[str]:
        """Return how these settings differ from others, a phrase for each: 'rank is 3 and not auto'."""
        own, others = asdict(self), asdict(other)
        return [
            f"{name} is {_shown(own[name])} and not {_shown(others[name])}" for name in own if own[name] != others[name]
        ]


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value == "auto"


def _shown(setting: object) -> str:
    return "not given" if setting is None else str(setting)[:40]
