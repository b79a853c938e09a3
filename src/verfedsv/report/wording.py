"""What a report says in sentences: for people who neither train models nor read code.

Texts are plain. Whoever renders them escapes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from verfedsv.report.amounts import between_text, share_text
from verfedsv.report.numbers import MINUS, digits, number
from verfedsv.report.summary import ClientSummary, Payout, SettlementSummary, Summary
from verfedsv.settlement.books import balanced_decimals, is_balanced
from verfedsv.shapley.result import count
from verfedsv.texts import listed
from verfedsv.valuation.result import Books

_MOST_NAMES = 12
_ARITHMETIC_ONLY = "This is about the arithmetic only, not about whether the training went well or what is fair to pay."


def headline(summary: Summary) -> str:
    """Return how the loss changed, and who changed it."""
    books, who = summary.books, "the only client"
    if len(summary.clients) > 1:
        who = f"the {len(summary.clients):,} clients together"
    ends = f"from {digits(books.start)} to {digits(books.end)}"
    is_same = not books.loss_rose and books.start - books.end <= 1e-12 * abs(books.start)
    path = "stayed the same" if is_same else f"{'rose' if books.loss_rose else 'fell'}, {ends}"
    server = f", and the server's own part {_change(books.server)}" if books.server else ""
    return f"In {_extent(summary)} the model's loss {path}: {who} {_change(books.clients)}{server}."


def _change(decrease: float) -> str:
    if decrease == 0:
        return "did not change it"
    return f"{'lowered' if decrease > 0 else 'raised'} it by {digits(abs(decrease))}"


def _extent(summary: Summary) -> str:
    if summary.n_planned is None or not summary.is_unfinished:
        return count(summary.n_rounds, "round")
    return f"the first {summary.n_rounds:,} of {summary.n_planned:,} planned rounds"


NO_SHARES = (
    "There are no shares: percentages of a loss that the clients did not lower would be shares of the damage. What "
    "each did to the loss is given instead."
)


def balance(books: Books) -> str:
    """Return where the loss went, as an equation whose numbers have the same decimals.

    >>> balance(Books(0.6931, 2.413, 17.4, -19.1199))
    'Loss at the start 0.693 = at the end 2.413 + by the clients 17.400 − by the server 19.120'
    """
    decimals = balanced_decimals(books, 3)
    terms = [f"Loss at the start {number(books.start, decimals)} = at the end {number(books.end, decimals)}"]
    for who, amount in (("clients", books.clients), ("server", books.server)):
        if amount or who == "clients":
            terms.append(f"{MINUS if amount < 0 else '+'} by the {who} {number(abs(amount), decimals)}")
    if books.unaccounted:
        sign = MINUS if books.unaccounted < 0 else "+"
        terms.append(f"{sign} unaccounted for {number(abs(books.unaccounted), decimals)}")
    if not is_balanced(books, decimals):
        error = abs(books.remainder)
        is_rounding = error < 0.5 * 0.1**decimals  # of what is written
        terms.append("(rounded)" if is_rounding else f"(but for {digits(error, 2)}, the numerical error)")
    return " ".join(terms)


def server(summary: Summary) -> str:
    """Return what the server's own part did, apart from the clients; nothing if it has none."""
    if not summary.books.server:
        return ""
    change = _change(summary.books.server).replace(" it ", " the loss ")
    return (
        f"The server's own part of the model, such as an intercept, {change} over all rounds, with an error of "
        f"{digits(summary.total(summary.server_error), 2)}. It is no client's and has no share."
    )


SHARES = "Shares are parts of what the clients together took off the loss."
VALUE = "Total value: by how much the client lowered the loss, over all rounds together; below zero, it raised it."


def interval_header(summary: Summary) -> str:
    """Return what the intervals of shares are of."""
    return "Share among those with known errors" if summary.unknown else "Share lies between"


def measured_on(summary: Summary) -> str:
    """Return what loss and contributions are measured on, and who the clients are."""
    samples = f"the {count(summary.n_samples, 'sample')}"
    return (
        "Clients are the organisations that trained the model together, each with columns of data of its own. The loss "
        f"says how wrong the model is. It is measured here on {samples} (rows of data: persons, say) of the training "
        "itself: what a client is worth on new samples may differ."
    )


def numerical_error(summary: Summary) -> str:
    """Return how far the numbers may be off, and that nothing else is said by that."""
    what = "value and share" if summary.has_shares else "value"
    exact = f"computed exactly, every {what} would lie within the range given for it"
    said = {
        "proven": f"{exact}; that is proven.",
        "confident": f"{exact}, with 99.9 % confidence.",
        "estimated": (
            "estimated. Part of what the numbers depend on was never sent and had to be filled in. How well that works "
            "was checked on embeddings that were sent but set aside, and a margin was added; the ranges are no "
            "guarantee."
        ),
        "unknown": "unknown, for every client.",
        "unreliable": f"so large that any {'share' if summary.has_shares else 'value'} could be quite another.",
    }[summary.numerical_error]
    return f"Numerical error: {said}{_left_out(summary)}{_unclear(summary)} {_ARITHMETIC_ONLY}"


def _left_out(summary: Summary) -> str:
    """Return whose errors are not known, and what that means for the others, as a sentence to follow another."""
    if not summary.unknown or summary.numerical_error == "unknown":
        return ""
    ranges = " The ranges of the others' shares leave them out of the sum." if summary.has_intervals else ""
    return f" It is unknown for {listed(summary.unknown)}.{ranges}"


def _unclear(summary: Summary) -> str:
    """Return whose interval has zero in it, as a sentence to follow another."""
    found = [client.name for client in summary.clients if may_be_zero(client)]
    if not found:
        return ""
    ranges = "its range has" if len(found) == 1 else "their ranges have"
    return f" Whether {listed(found)} helped at all is open: {ranges} zero inside."


def may_be_zero(client: ClientSummary) -> bool:
    """Return whether zero is strictly within the interval of a client's share."""
    return client.share_low is not None and client.share_high is not None and client.share_low < 0 < client.share_high


def is_doubtful(summary: Summary) -> bool:
    """Return whether the numbers may be off so far that they say little."""
    return summary.numerical_error in ("unknown", "unreliable")


def payout_warning(summary: Summary) -> str:
    """Return why payouts by these values should not be made yet, or nothing."""
    found = dict.fromkeys(reason.brief for reason in summary.verdict.reasons if reason.weight != "note")
    return f"Do not pay by these amounts yet: {'; '.join(found)}." if found else ""


def predicate(client: ClientSummary, summary: Summary) -> str:
    """Return what the sentence on a client says after its name."""
    if not summary.has_shares:
        return _predicate_of_value(client, summary)
    if client.value == 0 and not client.error:
        return "contributed nothing: what it sent never changed the loss."
    share = share_text(client)
    if client.share_low is None or client.share_high is None:
        why = "its numerical error is unknown" if client.error is None else "the errors are too large to rely on that"
        return f"comes out at {share}; {why}."
    between = between_text(client, "among the clients whose errors are known, " if summary.unknown else "")
    if client.share_low <= 0 <= client.share_high:
        return f"comes out at {share}{between}: it may be zero."
    if client.value < 0:
        return f"raised the loss: {share}{between}."
    return f"contributed {share}{between}."


def _predicate_of_value(client: ClientSummary, summary: Summary) -> str:
    if client.value == 0:
        return "did not change the loss."
    change = "lowered" if client.value > 0 else "raised"
    error = "an unknown error" if client.error is None else f"an error of {digits(summary.total(client.error), 2)}"
    return f"{change} the loss by {digits(abs(client.decrease))} over the training, with {error}."


def first(summary: Summary, most: int) -> list[ClientSummary]:
    """Return the clients to name first: some of those with the largest values, and up to five that did harm."""
    harmful = [client for client in summary.clients[most:] if client.value < 0]
    return [*summary.clients[:most], *harmful[-5:]]


def negative(summary: Summary) -> str:
    """Return what shares below zero mean, or nothing if there are none; nobody is accused of what may not be so."""
    below = [client for client in summary.clients if client.value < 0] if summary.has_shares else []
    certain = [client for client in below if client.share_high is not None and client.share_high < 0]
    lines = []
    if certain:
        lines.append(
            "A negative share means that the model's loss rose, where it should fall, because of what this client "
            "sent: the others had to make up for it. Usual reasons are columns that carry nothing but noise, samples "
            "that were joined wrongly, or steps of training that were too large; it is not by itself a sign of bad "
            "intent."
        )
    if len(certain) < len(below):
        lines.append(
            "Where the interval of a negative share reaches above zero, or is unknown, it cannot be told whether the "
            "client did any harm."
        )
    if lines:
        paid = " (how payouts treat them is said there)" if summary.settlement is not None else ""
        lines.append(
            f"Negative shares are shown as they are{paid}, so those of all others add up to more than 100 per cent."
        )
    return " ".join(lines)


def ranking(summary: Summary) -> str:
    """Return how far the order of the clients is clear."""
    if len(summary.clients) == 1:
        return "There is only one client, and nothing to rank."
    unknown, lines = summary.unknown, []
    estimated = ", if the estimated errors hold" if summary.numerical_error == "estimated" else ""
    if summary.n_groups:
        lines.append(
            "Clients whose values overlap within their errors cannot be ranked: no two of a group listed here can. "
            f"Clients with known errors that share no group can{estimated}."
        )
    elif len(summary.clients) - len(unknown) > 1:
        whose = "the other" if unknown else "all"
        lines.append(f"No two values overlap within their errors: the order of {whose} clients is clear{estimated}.")
    if unknown:
        lines.append(f"{listed(unknown)}: without a known error there is no rank.")
    return " ".join(lines)


def ranked_by(summary: Summary) -> str:
    """Return by what clients are ranked, and why not by shares; nothing of a client that is alone."""
    if len(summary.clients) == 1:
        return ""
    text = (
        "Clients are ranked by value. If the ranges in which two values lie have a number in common, either client may "
        "be the one before the other."
    )
    if not summary.has_intervals:
        return text
    return (
        f"{text} Intervals of shares may overlap where the order is clear: they also count the error of the sum of all "
        "values, which moves both shares together."
    )


def group_lines(summary: Summary, most: int) -> list[str]:
    """Return the groups in which no two clients can be ranked, a line each."""
    lines = [group_text(group, summary) for group in summary.groups[:most]]
    more = summary.n_groups - len(lines)
    return [*lines, f"and {count(more, 'more group')}"] if more else lines


def group_text(group: Sequence[int], summary: Summary) -> str:
    """Return a group of clients that cannot be ranked, in a line; of one too large to be named, where it lies."""
    named = listed([summary.clients[m].name for m in group])
    if len(group) <= _MOST_NAMES + 3:
        return named
    return f"{named} ({len(group)} clients between numbers {group[0] + 1} and {group[-1] + 1} by value)"


def settlement(known: SettlementSummary) -> str:
    """Return how much was settled."""
    return f"{known.budget} {known.currency} were shared among {count(len(known.payouts), 'client')}, to the cent."


def payout_range(line: Payout) -> str:
    """Return the range of a payout."""
    return "unknown" if line.lowest is None or line.highest is None else f"{line.lowest} to {line.highest}"
