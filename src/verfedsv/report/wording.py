"""What a summary says in plain words: for people who neither train models nor read code.

Texts are plain. Whoever renders them escapes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from verfedsv.report.numbers import MINUS, MOST_DECIMALS, SPACE, digits, number, percent, percent_ends, size
from verfedsv.report.summary import ClientSummary, Payout, Setting, SettlementSummary, Summary
from verfedsv.shapley.result import count
from verfedsv.texts import LONGEST_NAME, shortened

_MOST_NAMES = 6

GLOSSARY = {
    "Loss": "How wrong the model is, on average over all samples, as one number. Training makes it smaller.",
    "Round": (
        "One step of training, at the end of which the model is a little different from before; where clients train "
        "each at its own pace, the time from one time stamp to the next."
    ),
    "Embedding": (
        "The number, or few numbers, into which a client turns what it knows of a sample (a person, say) before it "
        "sends them. Its columns themselves never leave it."
    ),
    "Value": (
        "A client's part of the decrease of the loss in a round, on average over the rounds: its Shapley value, which "
        "is what it adds when it joins the others, averaged over all orders in which they could join. Values of all "
        "clients add up to what all achieved together."
    ),
    "Completion": (
        "In a round, clients send embeddings of some of the samples only. Those of the others are estimated from the "
        "rounds in which they were sent. How well that works is tested on embeddings that were sent but held back."
    ),
}

NEGATIVE = (
    "A negative share means that the model's loss rose, where it should fall, because of what this client sent: the "
    "others had to make up for it. Usual reasons are columns that carry nothing but noise, samples that were joined "
    "wrongly, or steps of training that were too large; it is not by itself a sign of bad intent. Nothing is set to "
    "zero here, so the shares of all others add up to more than 100 %."
)


def amount(value: float | None, summary: Summary) -> str:
    """Return a value per round as that of the whole training, with decimals that all clients share."""
    if value is None:
        return "unknown"
    largest = max(abs(client.value) for client in summary.clients) * summary.n_rounds
    decimals = 5 if largest == 0 else max(0, 4 - math.floor(math.log10(largest)))
    if decimals > 8:
        return scaled(value, summary)
    text = number(value * summary.n_rounds, decimals)
    if value == 0 or any(letter in "123456789" for letter in text):
        return text
    return f"{'<' if value > 0 else '>'}{SPACE}{MINUS if value < 0 else ''}{10**-decimals:.{decimals}f}"


def scaled(value: float | None, summary: Summary) -> str:
    """Return a value per round as that of the whole training, with two digits, however small."""
    return digits(None if value is None else value * summary.n_rounds, 2)


def share_text(client: ClientSummary) -> str:
    """Return a client's share with as many decimals as its error allows, at most two."""
    if client.share is None:
        return "no share"
    if 0 < abs(client.share) < 0.5 * 10 ** -(MOST_DECIMALS + 2):
        least = f"less than {10**-MOST_DECIMALS:g}{SPACE}%"
        return least if client.share > 0 else f"negative, {least}"
    return percent(client.share, _decimals(client))


def interval_text(client: ClientSummary) -> str:
    """Return between which shares a client's lies, or that nobody knows."""
    if client.share_low is None or client.share_high is None:
        return "unknown"
    decimals = _decimals(client)
    if _is_exact(client, decimals):
        return f"± less than {10**-decimals:g}{SPACE}%"
    low, high = percent_ends(client.share_low, client.share_high, decimals)
    return f"{low} to {high}{SPACE}%"


def _is_exact(client: ClientSummary, decimals: int) -> bool:
    """Return whether the whole interval is less than the last decimal away from the share as it is written."""
    if client.share is None or client.share_low is None or client.share_high is None:
        return False
    written = round(100 * client.share, decimals)
    furthest = max(written - 100 * client.share_low, 100 * client.share_high - written)
    return bool(furthest < 0.999 * 10**-decimals)  # less the rounding of this itself


def _decimals(client: ClientSummary) -> int:
    if client.share_low is None or client.share_high is None:
        return 1
    half = 50 * (client.share_high - client.share_low)
    return MOST_DECIMALS if half <= 0 else min(MOST_DECIMALS, max(1, math.ceil(-math.log10(half))))


def predicate(client: ClientSummary, summary: Summary) -> str:
    """Return what the sentence on a client says after its name."""
    if not summary.has_shares:
        return _predicate_of_value(client, summary)
    if client.value == 0 and not client.error:
        return "contributed nothing: what it sent never changed the loss."
    if client.share_low is None or client.share_high is None:
        return f"comes out at {share_text(client)} of what the model learnt; {_why_unsure(client, summary)}."
    between = _between(client)
    if client.share_low <= 0 <= client.share_high:
        return f"comes out at {share_text(client)}{between}: not to be told from nothing."
    if client.value < 0:
        return f"made the model worse: {share_text(client)}{between} of what it learnt."
    return f"contributed {share_text(client)}{between} of what the model learnt."


def _why_unsure(client: ClientSummary, summary: Summary) -> str:
    if client.error is None:
        return "how exact that is, is unknown"
    if summary.verdict == "unknown":
        return "how exact that is, is unknown, because the errors of others are"
    return "the errors of all clients together are too large to rely on that"


def _between(client: ClientSummary) -> str:
    if client.share_low is None or client.share_high is None:
        return ""
    decimals = _decimals(client)
    if _is_exact(client, decimals) or share_text(client).startswith(("less", "negative")):
        return ""
    low, high = percent_ends(client.share_low, client.share_high, decimals)
    return f" (between {low} and {high}{SPACE}%)"


def _predicate_of_value(client: ClientSummary, summary: Summary) -> str:
    if client.value == 0:
        return "did not change the loss."
    change = "lowered" if client.value > 0 else "raised"
    error = "an unknown error" if client.error is None else f"an error of {digits(client.error * summary.n_rounds, 2)}"
    return f"{change} the loss by {digits(abs(client.value) * summary.n_rounds)} over the training, with {error}."


def headline(summary: Summary) -> str:
    """Return what all clients achieved together."""
    who = count(len(summary.clients), "client")
    rounds = count(summary.n_rounds, "round" if summary.mode == "synchronous" else "time stamp")
    if summary.verdict == "nothing changed":
        return f"In {rounds}, the {who} did not change the model's loss at all."
    if summary.verdict == "cancelled":
        return f"In {rounds}, the {who} left the model's loss where it was: what some took off it, others put back."
    change = "lowered" if summary.decrease > 0 else "RAISED"
    amount = digits(abs(summary.decrease))
    return f"Together, in {rounds}, the {who} {change} the model's loss by {amount}."


def verdict(summary: Summary) -> str:
    """Return whether the shares can be relied on, and why not."""
    if summary.verdict == "reliable":
        kind = "proven" if summary.error_kind == "certified" else "held with 99.9 % confidence"
        if any(client.completion_error for client in summary.clients):
            kind = "an estimate, with a margin, from embeddings that were held back"
        return f"The shares can be relied on within the intervals given; these are {kind}."
    if summary.verdict == "unknown":
        return (
            "How exact the shares are cannot be said: for some clients the error of the embeddings that were never "
            "sent could not be estimated. Take the shares as a first impression, and record more rounds before "
            "anything is paid by them."
        )
    if summary.verdict == "unreliable":
        return (
            "These shares cannot be relied on: the errors together are as large as what the model learnt. Record more "
            "rounds before anything is paid by them."
        )
    if summary.verdict == "loss rose":
        return (
            "There are no shares: the clients together made the model worse, so there is nothing that could be shared. "
            "What each did to the loss is given instead of percentages."
        )
    if summary.verdict == "cancelled":
        return (
            "There are no shares: the values of the clients add up to nothing that could be shared. What each did to "
            "the loss is given instead of percentages."
        )
    return "There are no shares: nothing that was sent changed the loss."


def notes(summary: Summary) -> list[str]:
    """Return what else the first paragraph must not leave out."""
    lines = []
    if summary.tolerance_met is False:
        lines.append("The exactness that was asked for was not reached; the intervals say what remains.")
    if summary.n_unseen:
        lines.append(unseen(summary))
    return lines


def unseen(summary: Summary) -> str:
    """Return what is known of samples that nobody ever sent."""
    if not summary.n_unseen:
        return "Every sample was sent at least once."
    verb = "was" if summary.n_unseen == 1 else "were"
    what = f"{count(summary.n_unseen, 'sample')} {verb} never sent by anybody"
    if summary.mode == "synchronous":
        return f"{what}. Nothing is known of them, and the values leave them out."
    return f"{what}. The server counted their embeddings as zero throughout, and so do the values."


def first(summary: Summary, most: int) -> list[ClientSummary]:
    """Return the clients to name first: some of those with the largest values, and up to five that did harm."""
    harmful = [client for client in summary.clients[most:] if client.value < 0]
    return [*summary.clients[:most], *harmful[-5:]]


def has_negative(summary: Summary) -> bool:
    """Return whether some client's share is below zero."""
    return summary.has_shares and any(client.value < 0 for client in summary.clients)


def ranking(summary: Summary) -> str:
    """Return how far the order of the clients is clear."""
    unknown = [client.name for client in summary.clients if client.error is None]
    n_known = len(summary.clients) - len(unknown)
    other_pairs = "other pairs of clients with a known error" if unknown else "other pairs"
    lines = []
    if len(summary.clients) == 1:
        return "There is only one client, and nothing to rank."
    if n_known > 1 and not summary.n_overlaps:
        lines.append(f"No two intervals overlap: the order of {'the other' if unknown else 'all'} clients is clear.")
    elif summary.n_overlaps == 1:
        pair = names([summary.clients[m].name for m in summary.groups[0]])
        others = f" All {other_pairs} can." if n_known > 2 else ""
        lines.append(f"{pair} cannot be ranked: their intervals overlap.{others}")
    elif summary.n_overlaps:
        lines.append(
            f"{count(summary.n_overlaps, 'pair')} of clients cannot be ranked, because their intervals overlap. Within "
            f"each of these groups no two can; all {other_pairs} can."
        )
    if unknown:
        lines.append(f"{names(unknown)}: without a known error there is no rank.")
    return " ".join(lines)


def group_text(group: Sequence[int], summary: Summary) -> str:
    """Return a group of clients that cannot be ranked, in a line."""
    places = f"places {group[0] + 1} to {group[-1] + 1}"
    between = group[-1] - group[0] + 1 > len(group)
    of_them = f"{len(group)} of {places}" if between else places
    return f"{names([summary.clients[m].name for m in group])} ({of_them})"


def settlement(known: SettlementSummary) -> str:
    """Return how much was settled."""
    return f"{known.budget} {known.currency} were shared among {len(known.payouts)} clients, to the cent."


def payout_range(line: Payout) -> str:
    """Return the range of a payout."""
    return "unknown" if line.lowest is None or line.highest is None else f"{line.lowest} to {line.highest}"


def names(all_of_them: Sequence[str]) -> str:
    """Return names as a list in words, the first six of many.

    >>> names(["bank", "shop", "telco"])
    'bank, shop and telco'
    """
    shown = [shortened(name, LONGEST_NAME) for name in all_of_them[:_MOST_NAMES]]
    if len(all_of_them) > _MOST_NAMES:
        shown.append(f"{len(all_of_them) - _MOST_NAMES} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def errors(summary: Summary) -> str:
    """Return what the two parts of an error are."""
    kind = "proven: it cannot be larger" if summary.error_kind == "certified" else "held with 99.9 % confidence"
    text = f"An error has two parts. The first is what the computation of the values leaves out; it is {kind}."
    if summary.clients[0].completion is None:
        return f"{text} The second, from embeddings that were not sent, is zero here: nothing had to be completed."
    return (
        f"{text} The second comes from embeddings that were not sent in a round and had to be completed. It is "
        "estimated from embeddings that were sent but held back, with a margin, and is no guarantee."
    )


def completion(summary: Summary) -> str:
    """Return how much was completed, and how."""
    if summary.clients[0].completion is None:
        why = (
            "the server keeps the last embeddings it got"
            if summary.mode == "asynchronous"
            else "the same samples were sent in every round"
        )
        return f"Nothing had to be completed: {why}. {unseen(summary) if summary.n_unseen else ''}".strip()
    sent = sum(client.uploads.n_embeddings for client in summary.clients)
    needed = len(summary.clients) * summary.n_rounds * summary.n_recorded
    return (
        f"Of all embeddings of all rounds, {percent(min(1.0, sent / needed), 1)} were sent; the others were completed. "
        "The rank says how many independent patterns a client's embeddings were taken to have. The error is that on "
        "embeddings which were held back, and how large it is compared with the embeddings themselves. "
        f"{unseen(summary)}"
    )


def communication(summary: Summary) -> str:
    """Return what was sent in all."""
    n_bytes = sum(client.uploads.n_bytes for client in summary.clients)
    uploads = count(sum(client.uploads.n_uploads for client in summary.clients), "upload")
    embeddings = count(sum(client.uploads.n_embeddings for client in summary.clients), "embedding")
    return (
        f"All clients together sent {embeddings} in {uploads}, {size(n_bytes)} of numbers and sample ids. What the "
        "server answered is not recorded."
    )


def relative(client: ClientSummary) -> str:
    """Return how large an error is, compared with the value."""
    if client.error is None or client.value == 0:
        return "unknown" if client.error is None else "no value"
    ratio = client.error / abs(client.value)
    return f"less than 0.01{SPACE}%" if 0 < ratio < 5e-5 else percent(ratio)


def facts(summary: Summary) -> list[Setting]:
    """Return what was recorded and how, settings included, as a table has them."""
    samples = f"{summary.n_samples:,}"
    if summary.n_samples != summary.n_recorded:
        samples += f" of {summary.n_recorded:,}"
    recorded = [
        ("recorded", summary.recorded),
        ("training", summary.mode),
        ("loss", summary.loss),
        ("clients", f"{len(summary.clients):,}"),
        ("rounds" if summary.mode == "synchronous" else "time stamps", f"{summary.n_rounds:,}"),
        ("samples valued", samples),
        ("numbers per embedding", f"{summary.n_classes:,}"),
        ("values computed by", summary.method),
    ]
    if summary.guarantee is not None:
        recorded.append(("error bound of Proposition 2", f"{digits(summary.guarantee)} (a very pessimistic estimate)"))
    return [Setting("run", name, text) for name, text in recorded] + list(summary.settings)
