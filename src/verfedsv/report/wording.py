"""The sentences of a report, for people who neither train models nor read code.

Texts are plain: the renderers escape them.
"""

from __future__ import annotations

from rich import filesize

from verfedsv.federation.evaluation import MEASURES
from verfedsv.report.amounts import percent, share_range, share_text
from verfedsv.report.curves import Curve
from verfedsv.report.summary import ClientSummary, SettlementSummary, Summary
from verfedsv.settlement.books import balanced_decimals, is_balanced
from verfedsv.shapley.estimate import MEANING
from verfedsv.texts import MINUS, count, digits, error_text, listed, number
from verfedsv.valuation.result import Books

NO_SHARES = (
    "There are no shares: the clients together did not lower the loss, so percentages would be shares of the damage. "
    "Each client's effect on the loss is given instead."
)
VALUE = "Total value: how much the client lowered the loss over all rounds; negative if it raised it."

_SEMIVALUES = {
    "shapley": ("Shapley value", "when it joins the others, averaged over all orders in which they could join"),
    "banzhaf": ("Banzhaf value", "to a coalition of the others, averaged over all coalitions"),
    "leave-one-out": ("leave-one-out value", "to all the others"),
}
"""The name of each semivalue, and how a sentence continues after "what a client adds"."""

_LEAST_DIGITS = 3
"""Of the smallest number in the balance of the loss."""

OVER_ROUNDS = {
    "cumulative": (
        "When each client contributed: how much it had lowered the loss up to each round. A line that climbs early and "
        "then stays level belongs to a client whose data were learnt early, or that no longer took part; where a line "
        "falls, the client did harm in those rounds. It ends at the client's value."
    ),
    "per_round": (
        "How much each client lowered the loss in each round; negative if it raised it. Single rounds go up and down "
        "for every client; what counts is their sum."
    ),
}
"""How to read the chart over rounds."""


def glossary(summary: Summary) -> dict[str, str]:
    """Return the terms of a report, explained."""
    name, added = _semivalue(summary.semivalue)
    total = "The values of all clients and of the server's own part, if it has one, add up to the decrease in loss."
    if summary.semivalue != "shapley":
        total = "The values of all clients need not add up to the decrease in loss."
    loss = _measured_as(summary)
    return {
        "Loss": f"How wrong the model is, on average over all samples{loss}. Training makes it smaller.",
        "Round": (
            "One step of training. If each client trains at its own pace, the time between two valuations of the model."
        ),
        "Embedding": (
            "The number, or the few numbers, that a client computes from its columns for one sample (a person, say) "
            "and sends to the server. The columns themselves never leave the client."
        ),
        "Value": (
            f"What a client is credited with: its {name}, which is what it adds {added}. Here it is the total over all "
            f"rounds; statements and valuation files have the mean per round. {total}"
        ),
        "Completion": (
            "In a round, clients send embeddings of only some of the samples. The others are filled in from the rounds "
            "in which they were sent. How well that works is tested on embeddings that were sent but held out."
        ),
    }


def _measured_as(summary: Summary) -> str:
    """Return what the loss of a sample is, after a comma or a colon."""
    if summary.loss != "squared":
        return ", as one number"
    units = ", in units of the standard deviation of the labels" if summary.are_labels_standardised else ""
    return f": half the squared error of its predictions{units}"


def labels(summary: Summary) -> str:
    """Return what the labels are."""
    if summary.loss == "squared":
        return "amounts" + (", in units of their standard deviation" if summary.are_labels_standardised else "")
    return f"classes {listed(summary.classes)}" if summary.classes else "classes, numbered"


def _semivalue(name: str) -> tuple[str, str]:
    """Return the entry of a semivalue in `_SEMIVALUES`, or one made for it."""
    called = f"{name.capitalize()} Shapley value" if name.startswith("beta(") else f"value by the semivalue {name!r}"
    weighted = "to coalitions of the others, averaged with weights that depend on their size"
    return _SEMIVALUES.get(name, (called, weighted))


def shares(summary: Summary) -> str:
    """Return what shares are fractions of, or why there are none."""
    if not summary.has_shares:
        return NO_SHARES
    if summary.semivalue == "shapley":
        return "Shares are fractions of the decrease in loss that all clients achieved together."
    name, _ = _semivalue(summary.semivalue)
    return (
        f"The value of a client is its {name}. Unlike Shapley values, these need not add up to the decrease in loss. "
        "Shares are fractions of the sum of these values."
    )


def headline(summary: Summary) -> str:
    """Return how the loss changed."""
    books, rounds = summary.books, count(summary.n_rounds, "round")
    if summary.is_unfinished:
        rounds = f"the first {summary.n_rounds:,} of {summary.n_planned:,} planned rounds"
    is_same = not books.loss_rose and books.start - books.end <= 1e-12 * abs(books.start)
    change = "rose" if books.loss_rose else "fell"
    decimals = balanced_decimals(books, _LEAST_DIGITS)
    ends = f"from {number(books.start, decimals)} to {number(books.end, decimals)}"
    path = "stayed the same" if is_same else f"{change} {ends}"
    return f"In {rounds} the model's loss {path}."


def balance(books: Books) -> str:
    """Return where the loss went, as an equation whose numbers have the same decimals.

    >>> balance(Books(0.6931, 2.413, 17.4, -19.1199))
    'Loss: 0.693 at the start = 2.413 at the end + 17.400 by the clients − 19.120 by the server'
    """
    decimals = balanced_decimals(books, _LEAST_DIGITS)
    text = f"Loss: {number(books.start, decimals)} at the start = {number(books.end, decimals)} at the end"
    terms = {"by the clients": books.clients, "by the server": books.server, "unaccounted for": books.unaccounted}
    for what, amount in terms.items():
        if round(amount, decimals) or what == "by the clients":
            text += f" {MINUS if amount < 0 else '+'} {number(abs(amount), decimals)} {what}"
    if is_balanced(books, decimals):
        return text
    error = abs(books.remainder)
    is_rounding = error < 0.5 * 0.1**decimals
    return text + (" (rounded)" if is_rounding else f" (up to {error_text(error)}, the numerical error)")


def server(summary: Summary) -> str:
    """Return what the server's own part did to the loss; nothing if there is none."""
    if not summary.books.server:
        return ""
    return (
        f"The server's own part of the model, an intercept or a network, {_changed(summary.books.server)} over all "
        f"rounds, with an error of {error_text(summary.total(summary.server_error))}. It belongs to no client and has "
        "no share."
    )


def _changed(decrease: float) -> str:
    if not decrease:
        return "did not change the loss"
    return f"{'lowered' if decrease > 0 else 'raised'} the loss by {digits(abs(decrease))}"


def measured_on(summary: Summary) -> str:
    """Return who the clients are, and on which samples the loss is measured."""
    return (
        "Clients are the organisations that trained the model together, each with its own columns of data. The loss is "
        f"measured on the {count(summary.n_samples, 'sample')} (rows of data, such as persons) of the training itself: "
        "what a client is worth on new samples may differ."
    )


def numerical_error(summary: Summary) -> str:
    """Return how far the numbers may be off, for which clients that is unknown, and which values may be zero."""
    whose = "every client with a known error" if summary.unknown else "every client"
    exact = f"exact value and share of {whose} lie" if summary.has_shares else f"exact value of {whose} lies"
    text = {
        "proven": f"{MEANING[summary.estimator_error_kind]}. The {exact} within its range.",
        "confident": f"with 99.9 % confidence, the {exact} within its range.",
        "assumed": (
            f"with 99.9 % confidence, the {exact} within its range, assuming that no random draw would be far outside "
            "those that were made."
        ),
        "estimated": (
            "estimated. Some embeddings were never sent and had to be filled in. How well that works was checked on "
            "embeddings that were held out, and a margin was added; the ranges are not guaranteed."
        ),
        "unknown": "unknown, for every client.",
        "unreliable": f"so large that any {'share' if summary.has_shares else 'value'} could be quite different.",
    }[summary.numerical_error]
    if summary.unknown and summary.numerical_error != "unknown":
        text += f" It is unknown for {listed(summary.unknown)}."
        text += " The others' ranges are of shares among themselves." if summary.has_intervals else ""
    if unclear := [client.name for client in summary.clients if client.share_contains_zero]:
        text += f" Whether {listed(unclear)} helped at all is open: zero lies within the range."
    only = "This is about the arithmetic only, not about whether the training went well or what is fair to pay."
    return f"Numerical error: {text} {only}"


def is_doubtful(summary: Summary) -> bool:
    """Return whether the errors are unknown, or so large that the values say little."""
    return summary.numerical_error in ("unknown", "unreliable")


def payout_warning(summary: Summary) -> str:
    """Return why nothing should be paid by these values yet, if there are reasons."""
    found = dict.fromkeys(reason.brief for reason in summary.verdict.reasons if reason.weight != "note")
    return f"Do not pay by these amounts yet: {'; '.join(found)}." if found else ""


def predicate(client: ClientSummary, summary: Summary) -> str:
    """Return the sentence on a client without its subject, the name."""
    if client.value == 0 and client.error == 0:
        has_uploads = client.uploads.n_uploads or not any(each.uploads.n_uploads for each in summary.clients)
        return f"contributed nothing: {'its uploads never changed the loss' if has_uploads else 'it uploaded nothing'}."
    if not summary.has_shares:
        error = "an unknown error" if client.error is None else f"an error of {error_text(summary.total(client.error))}"
        return f"{_changed(client.decrease)} over the training, with {error}."
    share = share_text(client)
    if client.share_low is None or client.share_high is None:
        why = "its numerical error is unknown" if client.error is None else "the errors are too large to rely on that"
        return f"comes out at {share}; {why}."
    among = " among the clients with known errors" if summary.unknown else ""
    found = f"{share} ({share_range(client)}{among})"
    if client.share_low <= 0 <= client.share_high:
        return f"comes out at {found}: it may be zero."
    return f"{'raised the loss:' if client.value < 0 else 'contributed'} {found}."


def first(summary: Summary, most: int) -> list[ClientSummary]:
    """Return the clients to name first: the `most` with the largest values, and up to five others that did harm."""
    harmful = [client for client in summary.clients[most:] if client.value < 0]
    return [*summary.clients[:most], *harmful[-5:]]


def negative(summary: Summary) -> str:
    """Return what negative shares mean, if there are any; harm is only stated where it is certain."""
    below = [client for client in summary.clients if client.value < 0] if summary.has_shares else []
    certain = [client for client in below if client.share_high is not None and client.share_high < 0]
    if not below:
        return ""
    text = "Negative shares are shown as they are, so the others add up to more than 100 per cent."
    if certain:
        text += (
            " A negative share means that what the client sent raised the loss: the others had to make up for it. "
            "Common reasons are columns of noise, wrongly joined samples, or training steps that were too large; it is "
            "not by itself a sign of bad intent."
        )
    if len(certain) < len(below):
        text += " Where the range of a negative share reaches above zero, or is unknown, no harm is established."
    return text


def ranking(summary: Summary) -> str:
    """Return whether the order of the clients is clear."""
    if len(summary.clients) == 1:
        return "There is only one client: nothing to rank."
    lines = []
    estimated = ", if the estimated errors hold" if summary.numerical_error == "estimated" else ""
    if summary.n_groups:
        others = "Clients with known errors that share no group" if summary.unknown else "All other pairs of clients"
        lines.append(
            "Clients whose value ranges overlap cannot be ranked against each other; each group below is such a set of "
            f"clients. {others} can be ranked{estimated}."
        )
    elif len(summary.clients) - len(summary.unknown) > 1:
        whose = "the other" if summary.unknown else "all"
        lines.append(f"No two value ranges overlap: the order of {whose} clients is clear{estimated}.")
    if summary.unknown:
        lines.append(f"{listed(summary.unknown)} cannot be ranked: the error is unknown.")
    if summary.has_intervals:
        lines.append("Share ranges may overlap even where the order is clear: they include the error of the sum.")
    return " ".join(lines)


def group_lines(summary: Summary, most: int) -> list[str]:
    """Return a line for each of the first `most` groups in which no two clients can be ranked."""
    lines = [listed([summary.clients[m].name for m in group]) for group in summary.groups[:most]]
    more = summary.n_groups - len(lines)
    return [*lines, f"and {count(more, 'more group')}"] if more else lines


def settlement(summary: SettlementSummary) -> str:
    """Return how much was settled."""
    return (
        f"{summary.budget} {summary.currency} were shared among {count(len(summary.payouts), 'client')}, to the cent."
    )


def training(summary: Summary) -> str:
    """Return what the curves of the training show."""
    curves = [curve for curve in summary.metrics.values() if curve is not None]
    if not curves:
        return "The loss on the embeddings that were valued. Nothing else was measured in this training."
    begin = min(curve.rounds[0] for curve in curves)
    return (
        f"As measured by the training itself, first after round {begin:,}. The losses at the top are of the embeddings "
        "that were valued, from before the first round on, and may differ."
    )


def measured(name: str, amount: float) -> str:
    """Return a number of a measure, such as 'loss', as text."""
    return percent(amount, 1) if MEASURES[name].is_fraction else digits(amount)


def measure_title(name: str) -> str:
    """Return what a chart of a measure is called."""
    title = MEASURES[name].title
    return title[:1].upper() + title[1:]


def measure_caption(name: str) -> str:
    """Return what a chart of a measure shows."""
    return f"{measure_title(name)} over the rounds: {MEASURES[name].meaning}."


def metric_title(metric: str) -> str:
    """Return what a metric is called.

    >>> metric_title("test_loss")
    'test loss'
    """
    part, _, name = metric.partition("_")
    return f"{part} {MEASURES[name].title}"


def from_to(metric: str, curve: Curve) -> str:
    """Return the first and the last number of a metric; one without a name is the loss."""
    name = metric.partition("_")[2] or "loss"
    ends = sorted({0, len(curve.rounds) - 1})
    return ", ".join(f"{measured(name, curve.values[k])} after round {curve.rounds[k]:,}" for k in ends)


def errors(summary: Summary) -> str:
    """Return what the two parts of an error are."""
    completion = "estimated on embeddings that were held out as a check, with a margin; no guarantee"
    if not summary.was_completed:
        completion = "zero here: nothing was completed"
    return (
        f"An error has two parts: that of computing the values ({MEANING[summary.estimator_error_kind]}), and that of "
        f"completing embeddings that were not sent ({completion})."
    )


def completion(summary: Summary) -> str:
    """Return how much was completed, and how."""
    if not summary.was_completed:
        is_asynchronous = summary.mode == "asynchronous"
        why = "the server keeps the last embeddings" if is_asynchronous else "each client always sent the same samples"
        return f"Nothing had to be completed: {why}."
    sent = sum(client.uploads.n_embeddings for client in summary.clients)
    needed = sum(summary.n_rounds - client.uploads.n_missed for client in summary.clients) * summary.n_recorded
    part = percent(min(1.0, sent / needed), 1) if needed else "some"
    return (
        f"Of all embeddings of the rounds in which a client took part, {part} were sent; the others were filled in "
        "from those sent in other rounds, as mixtures of a few basic patterns (their number is the rank). The typical "
        "error is that of embeddings held out as a check, also given as a fraction of their size."
    )


def communication(summary: Summary) -> str:
    """Return how much was sent."""
    uploads = [client.uploads for client in summary.clients]
    n_uploads = count(sum(each.n_uploads for each in uploads), "upload")
    n_embeddings = count(sum(each.n_embeddings for each in uploads), "embedding")
    size = filesize.decimal(sum(each.n_bytes for each in uploads))
    text = (
        f"All clients together sent {n_embeddings} in {n_uploads}, {size} of numbers and sample ids. The server's "
        "answers are not recorded."
    )
    if missing := [client.name for client in summary.clients if client.uploads.n_missed]:
        text += (
            f" In some rounds {listed(missing)} took no part: absent, not yet a member, or no longer one. In such a "
            "round a client keeps its last embeddings, if it has any, and its value is 0."
        )
    return text


def origin(summary: Summary) -> str:
    """Return what the report was made from, as a sentence to be completed by the last hash."""
    verified = ", whose hash chain was verified" if summary.recorded else ""  # a bare valuation has no date
    return (
        f"Made by {summary.package} from the record of the training (its transcript){verified}. The last hash of the "
        "chain, which changes with every byte of the record, is"
    )
