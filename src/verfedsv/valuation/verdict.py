"""Whether a valuation can be trusted: decided here alone, for everything that shows, settles or signs values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from verfedsv.arrays import Floats
from verfedsv.shapley.estimate import is_confidence
from verfedsv.texts import count, misleading, printable, quoted
from verfedsv.valuation.result import Books, Valuation, why_unknown

Weight = Literal["alarm", "doubt", "note"]
"""An alarm forbids settling and signing. A doubt should be resolved before anything is paid. A note informs."""

NumericalError = Literal["proven", "confident", "assumed", "estimated", "unknown", "unreliable"]
"""How reliable the errors are: proven (but for the rounding of a user's loss), of 99.9 % confidence; the
same, if no draw is far outside those seen; or estimated. Unknown, if they are for every client; or unreliable, if
together they reach the sum of the values. Otherwise, clients whose error is unknown are ignored."""

_LITTLE, _LEAST_ROUNDS = 0.02, 5
_ROUNDING = 1e-9
_LARGEST_SHARE = 2.0
_LEAST_CONFIRMED = 0.5
_WEIGHTS: tuple[Weight, ...] = "alarm", "doubt", "note"


class Reason(NamedTuple):
    """A reason not to trust a valuation fully: `text` is in sentences, `brief` a clause for a list of reasons."""

    weight: Weight
    kind: str
    text: str
    brief: str


@dataclass(frozen=True)
class Verdict:
    """The reasons not to trust a valuation, the most serious first."""

    reasons: tuple[Reason, ...]

    @property
    def word(self) -> Literal["rejected", "doubtful", "sound"]:
        """The verdict: "rejected" with an alarm, else "doubtful" with a doubt, else "sound"."""
        weights = {reason.weight for reason in self.reasons}
        return "rejected" if "alarm" in weights else "doubtful" if "doubt" in weights else "sound"

    def texts(self, *weights: Weight) -> list[str]:
        """Return the sentences of the reasons with the given weights, by default of all."""
        return [reason.text for reason in self.reasons if reason.weight in (weights or _WEIGHTS)]

    def to_fields(self) -> dict[str, object]:
        """Return the verdict as a JSON object."""
        return {"word": self.word, "reasons": [reason._asdict() for reason in self.reasons]}


class Valued(Protocol):
    """What can be judged: a `Valuation`, or the part of one that was settled or signed."""

    @property
    def clients(self) -> Sequence[str]: ...
    @property
    def values(self) -> Sequence[float] | Floats: ...
    @property
    def errors(self) -> Sequence[float] | Floats: ...
    @property
    def books(self) -> Books: ...
    @property
    def n_rounds(self) -> int: ...


class RunFacts(NamedTuple):
    """Facts on the run that was valued: the number of rounds planned, if known, and whether it is still running.

    `faults` are sentences on what is wrong with its record; `notes` are clauses it recorded on data and training.
    `evaluated` is the least training loss that the server measured itself, if it did.
    """

    n_planned: int | None = None
    is_running: bool = False
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    evaluated: float | None = None


NO_FACTS = RunFacts()


def judge(valued: Valued, run: RunFacts = NO_FACTS) -> Verdict:
    """Return whether values can be trusted. Balance and training are judged only for a complete `Valuation`."""
    reasons = [
        *_judge_books(valued),
        *(_judge_balance(valued) if isinstance(valued, Valuation) else ()),
        *_judge_errors(valued),
        *_judge_extent(valued.n_rounds, run),
        *judge_evaluation(valued.books, run.evaluated),
        *map(_judge_fault, run.faults),
        *(Reason("doubt", "names", text, "names of clients are misleading") for text in misleading(valued.clients)),
        *(_judge_training(valued) if isinstance(valued, Valuation) else ()),
        *(Reason("note", "data", f"{note}.", note) for note in run.notes),
    ]
    return Verdict(tuple(sorted(reasons, key=lambda reason: _WEIGHTS.index(reason.weight))))


def _largest_share(valued: Valued) -> float:
    """Return how many times the sum of all values, a server's too if it is paid, the largest of them is."""
    values = np.asarray(valued.values)
    total = abs(float(values.sum()))
    return float(np.abs(values).max()) / total if total > 0 else np.inf


def _judge_fault(text: str) -> Reason:
    shown = printable(text.replace("\n", " "))  # it may quote a file that somebody else wrote
    return Reason("doubt", "record", shown, "something is wrong with the record of this run")


def _judge_books(valued: Valued) -> Iterator[Reason]:
    books = valued.books
    if books.loss_rose:
        text = f"The loss rose over the training, from {books.start:.4g} to {books.end:.4g}: the model became worse."
        yield Reason("alarm", "loss", text, "the loss rose")
    if not books.has_shares:
        text = f"The clients together did not lower the loss: their values add up to {books.clients:.4g}."
        yield Reason("alarm", "clients", text, "the clients together did not lower the loss")
    elif (share := _largest_share(valued)) > _LARGEST_SHARE:
        total = float(np.sum(valued.values)) * valued.n_rounds
        text = (
            f"The values nearly cancel: they add up to {total:.4g}, and the largest is {share:.3g} times that. "
            "Shares of so small a sum mean little."
        )
        yield Reason("doubt", "cancel", text, "the values nearly cancel")
    if books.is_mostly_server:
        if abs(books.server) > abs(books.clients):
            text = (
                "The server's own part changed the loss more than all clients together: it "
                f"{_changed(books.server)}, the clients {_changed(books.clients)}."
            )
        else:
            text = (
                "The server's own part moved the loss up and down more than all clients together, by "
                f"{books.server_moved:.4g} over all rounds, the clients by {books.clients_moved:.4g}: the values of "
                "the clients depend on it."
            )
        yield Reason("doubt", "server", text, "the server's own part did more than the clients")


def judge_evaluation(books: Books, evaluated: float | None) -> Iterator[Reason]:
    """Yield a doubt if the least training loss that the server measured fell by less than half of what was recorded.

    Uploads come in rounds, and predictions for the measurements: a client may answer the first with what it knows of
    the labels, and the second by its columns. In 43 different honest trainings, the measured decrease was at least 0.91
    of the recorded one.
    """
    if evaluated is None or books.start <= books.end:
        return
    if books.start - evaluated < _LEAST_CONFIRMED * (books.start - books.end):
        text = (
            f"The server's own evaluations contradict what was recorded: by the uploads the loss fell from "
            f"{books.start:.4g} to {books.end:.4g}, and by the predictions that clients sent for the same samples, to "
            f"{evaluated:.4g} at best. A client may have uploaded embeddings that do not come from its columns, or "
            "have been away whenever the server evaluated."
        )
        yield Reason("doubt", "evaluation", text, "the server's own evaluations contradict what was recorded")


def _changed(decrease: float) -> str:
    return f"{'lowered' if decrease >= 0 else 'raised'} it by {abs(decrease):.4g}"


def _judge_balance(valuation: Valuation) -> Iterator[Reason]:
    """Yield a reason if the books do not balance within the errors of the estimator.

    Of all semivalues, only Shapley values add up to the decrease of the loss.
    """
    if valuation.settings.semivalue != "shapley":
        return
    books = valuation.books
    # Completion does not affect the balance, and unknown errors allow nothing.
    allowed = valuation.n_rounds * float(np.nansum(valuation.estimator_errors))
    allowed += float(np.nansum(valuation.per_round_server_errors))
    allowed += _ROUNDING * (abs(books.start) + abs(books.end) + books.clients_moved + books.server_moved)
    if abs(books.remainder) > allowed:
        text = (
            f"The books do not balance: {abs(books.remainder):.2g} of the loss is unaccounted for, and the errors "
            f"allow {allowed:.2g}. Value the run again."
        )
        yield Reason("doubt", "balance", text, "the books do not balance")


def _judge_errors(valued: Valued) -> Iterator[Reason]:
    """Yield reasons if errors are unknown, reach the sum of the values together, or exceed the largest value."""
    values, errors = np.asarray(valued.values), np.asarray(valued.errors)
    unknown = [name for name, error in zip(valued.clients, errors, strict=True) if not np.isfinite(error)]
    known_errors = np.where(np.isfinite(errors), errors, 0.0)
    largest, worst = float(np.abs(values).max()), int(known_errors.argmax())
    cause, remedy = _cause(valued, worst)
    if _is_unreliable(values, errors):
        text = f"The values cannot be relied on: their errors add up to as much as the values{cause}. {remedy}."
        yield Reason("doubt", "errors", text, "the numerical error is too large")
    elif 0 < largest < known_errors[worst]:
        whose, size = quoted([valued.clients[worst]]), f"{errors[worst] / largest:.2g} times the largest value"
        text = f"The value of {whose} cannot be relied on: its error is {size}{cause}. {remedy}."
        yield Reason("doubt", "errors", text, f"the numerical error of {whose} is too large")
    if unknown:
        whose = "every value" if len(unknown) == len(errors) else f"the value of {quoted(unknown)}"
        which = "that value" if len(unknown) == 1 else "these values"
        reason = why_unknown(valued) if isinstance(valued, Valuation) else ""
        remedy = f"{_higher_rank(valued)}Record more rounds before paying anything based on {which}"
        if isinstance(valued, Valuation) and valued.error_kind == "unknown":
            reason, remedy = "nothing bounds that of the closed form under a head", "Use the method auto"
        because = f", because {reason}" if reason else ""
        text = f"The error of {whose} is unknown{because}. {remedy}."
        yield Reason("doubt", "unknown", text, f"the numerical error of {whose} is unknown")


def _is_unreliable(values: Floats, errors: Floats) -> bool:
    """Return whether the known errors add up to the sum of the values, of which shares are fractions.

    If that sum is not positive, there are no shares, and the absolute values are summed instead.
    """
    is_known = np.isfinite(errors)
    known, error = values[is_known], float(errors[is_known].sum())
    if values.sum() > 0:
        return bool(is_known.any() and error >= known.sum())
    return error > 0 and error >= float(np.abs(known).sum())


def _cause(valued: Valued, worst: int) -> tuple[str, str]:
    """Return the cause of the largest error, a phrase to follow a clause, and a remedy."""
    remedy = "Record more rounds before paying anything based on them"
    if not isinstance(valued, Valuation):
        return "", remedy
    if not valued.completion_errors[worst] <= valued.estimator_errors[worst]:
        return ", because of completion", f"{_higher_rank(valued)}{remedy}, or larger batches"
    if is_confidence(valued.error_kind):
        return ", because of sampling", "Allow more permutations (verfedsv value --permutations)"
    return ", because of the closed form", "Use the method auto"


def _higher_rank(valued: Valued) -> str:
    """Return what to do first, in a sentence, if the rank of the completion was fixed; else nothing."""
    rank = valued.settings.rank if isinstance(valued, Valuation) and valued.completion is not None else "auto"
    if rank == "auto":
        return ""
    return f'The rank of the completion was set to {rank}: try a higher one, or "auto" (verfedsv value --rank auto). '


def _is_loss_known(valuation: Valuation) -> bool:
    """Return whether completion is good enough for the losses of single rounds to say something of the training."""
    errors = valuation.completion_errors
    return bool(np.isfinite(errors).any()) and not _is_unreliable(valuation.values, errors)


def _judge_extent(n_rounds: int, run: RunFacts) -> Iterator[Reason]:
    is_unfinished = run.n_planned is not None and n_rounds < run.n_planned
    extent = f"{n_rounds:,} of {count(run.n_planned or 0, 'round')}" if is_unfinished else count(n_rounds, "round")
    if run.is_running:
        text = f"The training is still running, {extent} so far: the values will change."
        yield Reason("doubt", "extent", text, "the training is still running")
    elif is_unfinished:
        text = f"The training was stopped after {extent}: the values are those of an unfinished training."
        yield Reason("doubt", "extent", text, f"only {extent} are recorded")


def _judge_training(valuation: Valuation) -> Iterator[Reason]:
    """Yield a doubt if the loss rose again, and notes on what to know when reading the values.

    Losses are those of completed embeddings. Where these are far off, they say nothing of the training.
    """
    losses, is_known = valuation.losses, _is_loss_known(valuation)
    lowest = np.minimum.accumulate(losses)
    highest = int((losses - lowest).argmax())
    if is_known and losses[0] >= losses[-1] and losses[highest] - lowest[highest] > (losses[0] - lowest[-1]) / 2:
        text = (
            f"The loss rose again, from {lowest[highest]:.4g} to {losses[highest]:.4g} after round {highest:,}, by "
            "more than half of its total decrease. The training may have diverged, or been recorded twice."
        )
        yield Reason("doubt", "rise", text, "the loss rose again")
    if valuation.error_kind == "confidence on an assumption":
        text = (
            "The errors of sampling are not proven: they assume that no draw is far outside those that were seen. A "
            "few samples that matter in few coalitions may be missed; the method exact misses none."
        )
        yield Reason("note", "assumed", text, "the errors of sampling rest on an assumption")
    if valuation.tolerance_met is False:
        text = f"The tolerance of {valuation.settings.tolerance:g} was not reached; the errors say what remains."
        yield Reason("note", "tolerance", text, "the tolerance was not met")
    yield from _judge_withheld(valuation)
    if valuation.n_unseen:
        # In synchronous training their embeddings are unknown; in asynchronous training they are known to be zeros.
        how = "not part of the values" if valuation.mode == "synchronous" else "counted with embeddings of zero"
        verb = "was" if valuation.n_unseen == 1 else "were"
        text = f"{count(valuation.n_unseen, 'sample')} {verb} never uploaded by any client ({how})."
        yield Reason("note", "unseen", text, "some samples were never uploaded")
    if is_known and (part := still_falling(losses)) is not None:
        last = max(1, valuation.n_rounds // 10)
        rounds = "round" if last == 1 else f"{last:,} rounds"
        text = (
            f"The loss was still falling at the end: the last {rounds} brought {100 * part:.1f} % of the total "
            "decrease, and a longer training may give other values and shares."
        )
        yield Reason("note", "falling", text, "the loss was still falling")


def _judge_withheld(valuation: Valuation) -> Iterator[Reason]:
    """Yield a note if a client omitted samples that others uploaded in the same rounds, a doubt if it omitted most.

    Completion gives it embeddings there, so that it is paid for what it never uploaded.
    """
    reports = list(zip(valuation.clients, valuation.completion or (), strict=False))
    mostly = [name for name, report in reports if report.n_withheld > report.n_observations]
    if whose := mostly or [name for name, report in reports if report.n_withheld]:
        how = "most of the samples" if mostly else "some samples"
        text = (
            f"{quoted(whose)} did not upload {how} that other clients uploaded in the same rounds; these embeddings "
            "were completed. A client that chooses its own samples can be paid for embeddings it never uploaded: let "
            "the server choose them."
        )
        brief = f"{quoted(whose)} did not upload {how} that others uploaded"
        yield Reason("doubt" if mostly else "note", "withheld", text, brief)


def still_falling(losses: Floats) -> float | None:
    """Return the fraction of the total decrease of the loss in the last tenth of the rounds; None if at most 2 %.

    `losses`, (rounds + 1,), begin before the first round. Means over the last two tenths are compared, as single rounds
    go up and down. Below 20 rounds, the last round is compared with the one before, and the limit grows in proportion:
    with 5 rounds, where one round is a fifth, it is 4 %. With fewer than 5 rounds, the result is None.
    """
    n_rounds, decrease = len(losses) - 1, float(losses[0] - losses[-1])
    if n_rounds < _LEAST_ROUNDS or decrease <= 0:
        return None
    last = max(1, n_rounds // 10)
    part = float(losses[-2 * last : -last].mean() - losses[-last:].mean()) / decrease
    return part if part * n_rounds > _LITTLE * 10 * last else None


def numerical_error(valuation: Valuation) -> NumericalError:
    """Return how reliable the errors are, ignoring clients whose own error is unknown."""
    is_known = np.isfinite(valuation.errors)
    if not is_known.any():
        return "unknown"
    if _is_unreliable(valuation.values, valuation.errors):
        return "unreliable"
    if valuation.completion_errors[is_known].any():
        return "estimated"
    if valuation.error_kind == "confidence on an assumption":
        return "assumed"
    return "confident" if valuation.error_kind == "confidence" else "proven"
