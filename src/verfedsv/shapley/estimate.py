"""`Estimate`: values of players and bounds on their errors, of a block of samples, a round or several rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array, Floats
from verfedsv.compiled import compiled
from verfedsv.shapley.confidence import radius_of_sum

ErrorKind = Literal["certified", "certified but for rounding", "confidence", "confidence on an assumption", "unknown"]
"""Whether errors are proven, proven except for the rounding of a user's loss, bounds of 99.9 % confidence, such bounds
on the assumption that no draw is much further off than those that were seen, or unknown (and then infinite)."""

MEANING: Mapping[ErrorKind, str] = {
    "certified": "proven",
    "certified but for rounding": "proven but for the rounding of the loss",
    "confidence": "with 99.9 % confidence",
    "confidence on an assumption": "with 99.9 % confidence, assuming that no draw is far outside those seen",
    "unknown": "unknown",
}
"""What people are told about each kind."""


def is_confidence(kind: ErrorKind) -> bool:
    """Return whether errors of this kind are of draws."""
    return kind.startswith("confidence")


_PER_PLAYER = "values", "errors", "variance", "largest"


@dataclass(frozen=True, eq=False)
class Estimate:
    """Values of all players in a game, (players,), or in several rounds, (rounds, players).

    `errors` add up over samples and rounds. Errors of sampling average out instead: `variance` is the variance of the
    values, and `largest` bounds how far a single draw can be from its expectation; `bound` includes both. (If
    `largest` is 0, the errors already cover the variance.) `utility`, () or (rounds,), is the decrease of the loss.
    `methods` and `kind` say how values and errors were obtained; `n_evaluations` counts losses of single samples.
    """

    values: Floats
    errors: Floats
    utility: Floats
    methods: frozenset[str]
    kind: ErrorKind = "certified"
    n_evaluations: int = 0
    variance: Floats = field(default_factory=lambda: np.zeros(()))
    largest: Floats = field(default_factory=lambda: np.zeros(()))

    def __post_init__(self) -> None:
        for name in ("variance", "largest"):
            if getattr(self, name).ndim == 0:
                object.__setattr__(self, name, np.zeros(self.values.shape))

    @classmethod
    def none(cls, *shape: int) -> Estimate:
        """Return zeros of shape (players,) or (rounds, players)."""
        return cls(np.zeros(shape), np.zeros(shape), np.zeros(shape[:-1]), frozenset())

    @classmethod
    def of_rounds(cls, rounds: Mapping[int, Estimate], n_rounds: int, n_players: int) -> Estimate:
        """Return single rounds as one estimate, with zeros for missing rounds and missing last players."""
        result = cls.none(n_rounds, n_players)
        for t, estimate in rounds.items():
            for name in _PER_PLAYER:
                own = getattr(estimate, name)
                getattr(result, name)[t, : len(own)] = own
            result.utility[t] = estimate.utility
        return result._with({}, rounds.values())

    @classmethod
    def joined(cls, parts: Iterable[Estimate]) -> Estimate:
        """Return the rounds of several estimates, concatenated."""
        parts = list(parts)
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("utility", *_PER_PLAYER)}
        return parts[0]._with(arrays, parts)

    @classmethod
    def sum(cls, parts: Iterable[Estimate]) -> Estimate:
        """Return the sum of at least one estimate, whose draws are independent; compensated (Kahan)."""
        rest = iter(parts)
        total = next(rest)
        lost = {name: np.zeros(()) for name in ("values", "errors", "utility")}
        for part in rest:
            arrays = {"variance": total.variance + part.variance, "largest": np.maximum(total.largest, part.largest)}
            for name, cut_off in lost.items():
                before, term = getattr(total, name), getattr(part, name) - cut_off
                arrays[name] = np.asarray(before + term)
                with np.errstate(invalid="ignore"):  # errors may be infinite
                    lost[name] = np.nan_to_num((arrays[name] - before) - term)
            total = total._with(arrays, (total, part))
        return total

    def with_players(self, n_players: int) -> Estimate:
        """Return the estimate with zeros for missing last players."""
        missing = [(0, 0)] * (self.values.ndim - 1) + [(0, n_players - self.values.shape[-1])]
        return self._with({name: np.pad(getattr(self, name), missing) for name in _PER_PLAYER})

    def of_players(self, players: NDArray[np.intp], n_players: int) -> Estimate:
        """Return the estimate of a game that has more players, with zeros for those that are not these."""
        arrays = {name: np.zeros(n_players) for name in _PER_PLAYER}
        for name, array in arrays.items():
            array[players] = getattr(self, name)
        return self._with(arrays)

    def as_round(self) -> Estimate:
        """Return the estimate of a game as one of a single round, (1, players)."""
        return self._with({name: getattr(self, name)[np.newaxis] for name in ("utility", *_PER_PLAYER)})

    def as_arrays(self) -> dict[str, Any]:
        """Return the estimate as arrays by name, to be written to a file."""
        how = {"methods": np.array(sorted(self.methods), str), "kind": self.kind, "n_evaluations": self.n_evaluations}
        return {name: getattr(self, name) for name in ("utility", *_PER_PLAYER)} | how

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any]) -> Estimate:
        """Return the estimate that `as_arrays` was called on."""
        rest = {"methods": frozenset(arrays["methods"].tolist()), "kind": str(arrays["kind"])}
        return cls(**{**arrays, **rest, "n_evaluations": int(arrays["n_evaluations"])})

    def _with(self, arrays: Mapping[str, Any], parts: Iterable[Estimate] = ()) -> Estimate:
        """Return the estimate with other arrays; with `parts`, how it was obtained is taken from these."""
        parts = list(parts)
        fields = {**vars(self), **arrays}  # dataclasses.replace takes 5 us, a twentieth of the time of a small round
        if parts:
            fields["methods"] = frozenset[str]().union(*(part.methods for part in parts))
            fields["kind"] = max((part.kind for part in parts), key=get_args(ErrorKind).index)
            fields["n_evaluations"] = sum(part.n_evaluations for part in parts)
        return Estimate(**fields)

    @property
    def is_sampled(self) -> bool:
        """Whether some errors average out over samples and rounds."""
        return is_confidence(self.kind) and bool(self.largest.any())

    def divided(self, n: float) -> Estimate:
        """Return the estimate of the values divided by n."""
        arrays = {name: getattr(self, name) / n for name in ("values", "errors", "utility", "largest")}
        return self._with({**arrays, "variance": self.variance / n**2})

    def symmetric(self, groups: list[list[int]]) -> Estimate:
        """Return the estimate of one game, where the players of a group share its mean value and largest error."""
        if not groups:
            return self
        arrays = {name: getattr(self, name).copy() for name in _PER_PLAYER}
        for group in groups:
            for name, array in arrays.items():
                array[group] = array[group].mean() if name == "values" else array[group].max()
        return self._with(arrays)

    def balanced(self) -> Estimate:
        """Return values that add up to the utility, each moved by at most its error, which grows by the move.

        The gap is spread in proportion to the errors, so a player that did not move still gets exactly 0.
        """
        players = self.values.shape[-1]
        values, errors = self.values.reshape(-1, players).copy(), self.errors.reshape(-1, players).copy()
        _balance(values, errors, self.utility.reshape(-1))
        shape = self.values.shape
        return self._with({"values": values.reshape(shape), "errors": errors.reshape(shape)})

    def bound(self, look: int | Array = 0) -> Floats:
        """Return error bounds of 99.9 % confidence, valid for all looks at once; `look` may differ by round."""
        if not self.is_sampled:
            return self.errors
        radius = radius_of_sum(self.variance, self.largest, np.asarray(look)[..., np.newaxis])
        return np.asarray(self.errors + np.where(self.largest > 0, radius, 0.0))

    def replaced(self, other: Estimate, where: NDArray[np.bool_]) -> Estimate:
        """Return this estimate with the rounds in `where`, (rounds,), taken from `other`; utilities stay, if known."""
        chosen = where[:, np.newaxis]
        arrays = {name: np.where(chosen, getattr(other, name), getattr(self, name)) for name in _PER_PLAYER}
        arrays["utility"] = np.where(where & np.isnan(self.utility), other.utility, self.utility)
        return self._with(arrays, (self, other))

    def total(self) -> Estimate:
        """Return the sum over rounds."""
        sums = {name: getattr(self, name).sum(axis=0) for name in ("values", "errors", "utility", "variance")}
        return self._with({**sums, "largest": self.largest.max(axis=0)})


@compiled
def _balance(values: Floats, errors: Floats, utilities: Floats) -> None:
    # Compiled for small rounds: 16 calls of NumPy took a tenth of the time of 500 samples.
    for t in range(len(values)):
        allowed, gap = errors[t].sum(), utilities[t] - values[t].sum()
        # A gap larger than the summed errors is an error of the utility: for tiny steps and most losses, a difference
        # of rounded losses. Spreading it would cost the values digits.
        fraction = gap / allowed if abs(gap) <= allowed < np.inf and allowed > 0 else 0.0
        for m in range(values.shape[1]):
            move = fraction * errors[t, m] if fraction != 0 else 0.0  # infinite errors leave the values as they are
            values[t, m] += move
            errors[t, m] += abs(move)


def keeps(tolerance: float, values: Floats, errors: Floats, loss: float = 0.0) -> bool:
    """Return whether every error is at most `tolerance` times the largest value, or 1e-12 of a mean loss."""
    return bool(errors.max() <= max(tolerance * np.abs(values).max(), 1e-12 * loss))
