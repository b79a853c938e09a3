"""What the parts of a report mean: glossary, errors, completion, what was sent, settings. Texts are plain."""

from __future__ import annotations

from verfedsv.report.curves import Curve
from verfedsv.report.numbers import digits, percent, size
from verfedsv.report.summary import Setting, Summary
from verfedsv.shapley.result import count

GLOSSARY = {
    "Loss": "How wrong the model is, on average over all samples, as one number. Training makes it smaller.",
    "Round": (
        "One step of training, at the end of which the model is a little different from before. Where clients train "
        "each at its own pace, the time from one moment at which the state of all was noted to the next."
    ),
    "Embedding": (
        "The number, or few numbers, into which a client turns what it knows of a sample (a person, say) before it "
        "sends them. Its columns themselves never leave it."
    ),
    "Value": (
        "How much of the decrease of the loss a client is credited with: its Shapley value, which is what it adds when "
        "it joins the others, averaged over all orders in which they could join. Here it is the total over all "
        "rounds; statements, audits and files of values have the mean per round, which is this divided by "
        "their number. The values of all clients, and that of the server's own part where it has one, add up to the "
        "decrease of the loss. A client's share is its part of that sum."
    ),
    "Completion": (
        "In a round, clients send embeddings of some of the samples only. Those of the others are filled in from the "
        "rounds in which they were sent. How well that works is tested on embeddings that were sent, but set aside as "
        "a check and not used."
    ),
}


OVER_ROUNDS = {
    "cumulative": (
        "When each client's contribution was made: by how much it had lowered the loss up to each round. A line "
        "that climbs early and then stays level belongs to a client whose data were learnt early; where a line "
        "falls, the client did harm in those rounds. It ends at the client's value."
    ),
    "per_round": (
        "By how much each client lowered the loss in each single round; below zero, it raised it. Single rounds "
        "go up and down for everybody; what counts is their sum."
    ),
}
"""How to read the chart over rounds: of sums up to each round, and of single rounds."""


def training(summary: Summary) -> str:
    """Return how the curves of training and the losses named at the top fit together."""
    curves = [curve for curve in summary.metrics.values() if curve is not None]
    if not curves:
        return (
            "The loss on the embeddings that were valued, from before the first round on. Nothing else was measured in "
            "this training."
        )
    first = min(curve.rounds[0] for curve in curves)
    return (
        f"As the training itself measured it, first after round {first:,}. The losses named at the top are of the "
        "embeddings that were valued, from before anything was sent, so they need not be the same as these."
    )


def metric(name: str, amount: float) -> str:
    """Return what was measured as text."""
    return percent(amount, 1) if name.endswith("accuracy") else digits(amount)


def from_to(name: str, curve: Curve) -> str:
    """Return the first and the last number of what was measured."""
    last = f"{metric(name, curve.values[-1])} after round {curve.rounds[-1]:,}"
    if len(curve.rounds) == 1:
        return last
    return f"{metric(name, curve.values[0])} after round {curve.rounds[0]:,}, {last}"


def errors(summary: Summary) -> str:
    """Return what the two parts of an error are."""
    kind = (
        "proven: it cannot be larger"
        if summary.estimator_error_kind == "certified"
        else "held with 99.9 % confidence: in one of a thousand trainings it may be larger"
    )
    text = f"An error has two parts. The first is what the computation of the values leaves out; it is {kind}."
    if summary.clients[0].completion is None:
        return f"{text} The second, from embeddings that were not sent, is zero here: nothing had to be completed."
    return (
        f"{text} The second comes from embeddings that were not sent in a round and had to be completed (filled in). "
        "It is estimated from embeddings that were sent, but set aside as a check, with a margin, and is no guarantee."
    )


def completion(summary: Summary) -> str:
    """Return how much was completed, and how."""
    if summary.clients[0].completion is None:
        why = (
            "the server keeps the last embeddings it got"
            if summary.mode == "asynchronous"
            else "the same samples were sent in every round"
        )
        return f"Nothing had to be completed: {why}."
    sent = sum(client.uploads.n_embeddings for client in summary.clients)
    needed = len(summary.clients) * summary.n_rounds * summary.n_recorded
    return (
        f"Of all embeddings of all rounds, {percent(min(1.0, sent / needed), 1)} were sent; the others were completed, "
        "that is filled in from those sent in other rounds. Patterns says of how many basic patterns a client's "
        "embeddings were taken to be mixtures (their rank). The typical error is that on embeddings which were set "
        "aside as a check, and how large it is compared with the embeddings themselves."
    )


def communication(summary: Summary) -> str:
    """Return what was sent in all."""
    n_bytes = sum(client.uploads.n_bytes for client in summary.clients)
    uploads = count(sum(client.uploads.n_uploads for client in summary.clients), "upload")
    embeddings = count(sum(client.uploads.n_embeddings for client in summary.clients), "embedding")
    return (
        f"All clients together sent {embeddings} in {uploads} (messages to the server), {size(n_bytes)} of numbers and "
        "sample ids. What the server answered is not recorded."
    )


def facts(summary: Summary) -> list[Setting]:
    """Return what was recorded and how, settings included, as a table has them."""
    samples = f"{summary.n_samples:,}"
    if summary.n_samples != summary.n_recorded:
        samples += f" of {summary.n_recorded:,}"
    rounds = f"{summary.n_rounds:,}"
    if summary.n_planned is not None and summary.is_unfinished:
        rounds += f" of {summary.n_planned:,} planned"
    recorded = [
        ("recorded", summary.recorded),
        ("training", summary.mode),
        ("loss", summary.loss),
        ("clients", f"{len(summary.clients):,}"),
        ("rounds", rounds),
        ("samples valued", samples),
        ("numbers per embedding", f"{summary.n_classes:,}"),
        ("values computed by", summary.method),
    ]
    if summary.guarantee is not None:
        bound = f"{digits(summary.guarantee)} (the bound of the paper's Proposition 2, estimated; very pessimistic)"
        recorded.append(("error at worst", bound))
    return [Setting("run", name, text) for name, text in recorded] + list(summary.settings)


def origin(summary: Summary) -> str:
    """Return what the report was made from, as a sentence that the last hash follows."""
    return (
        f"Made by {summary.package} from what was recorded of the training (its transcript). A fingerprint of all of "
        "that, which changes with every byte (the last hash of its chain), is"
    )
