"""Whether a run was trained and valued as agreed, and how to repeat its valuation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from verfedsv.errors import InputError
from verfedsv.head_layers import describe_layers
from verfedsv.runs.config import Config
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.metrics import Patience
from verfedsv.settings import ROWS, ValuationSettings
from verfedsv.texts import count, shortened
from verfedsv.transcript import Description, Transcript
from verfedsv.transcript.verification import Verified
from verfedsv.valuation import Valuation


def describe_agreement(about: Description) -> str:
    """Return what was agreed before the first round, in words."""
    defaults = ValuationSettings().as_dict()
    others = [f"{name} {setting}" for name, setting in about.valuation.as_dict().items() if setting != defaults[name]]
    step = about.step if isinstance(about.step, str | None) else ", ".join(f"{n} {s}" for n, s in about.step.items())
    stated = {
        "valuation": ", ".join(others) or "default settings",
        "step": None if step is None else shortened(step, 300),
        "rounds": about.n_planned,
        "intercept": {True: "yes", False: "no", None: None}[about.intercept],
    }
    if about.head.kind != "sum":
        layers = about.head.layers
        said = "whose layers are not recorded" if layers is None else describe_layers(layers)
        stated["head"] = f"a network of the server, {said}"
    return "; ".join(f"{name}: {'not stated' if said is None else said}" for name, said in stated.items())


def find_deviations(
    settings: ValuationSettings, about: Description, config: Config | None, has_offset: Callable[[], bool]
) -> Iterator[str]:
    """Yield a clause for each way in which a run was not trained or valued as agreed.

    These are other settings of the valuation, and an offset although it was agreed that there is none: with an offset,
    the server can move value from one client to another. `has_offset` is called only if that was agreed.
    """
    if others := settings.differences(about.valuation):
        yield f"the values were not computed with the agreed settings: {', '.join(others)}"
    if _agreed_intercept(about, config) is False and has_offset():
        yield "it was agreed that the server has no intercept, but the transcript has an offset"


def server_cautions(about: Description, config: Config | None, verified: Verified) -> Iterator[str]:
    """Yield what a reader should ask about the server's own part: its offset, its network, and when it ended."""
    if about.head.kind != "sum":
        yield (
            "the server has a network on top of the embeddings, and what each client's changes are worth depends on "
            "its parameters. These are recorded; that they were trained as agreed was not checked"
        )
    if Patience.agreed_in(about.step) is not None and about.n_planned not in (None, verified.n_rounds):
        yield (
            f"the training ended after {verified.n_rounds:,} of at most {count(about.n_planned or 0, 'round')}: that "
            "the test loss no longer fell, which may end it by agreement, is not in the transcript and was not checked"
        )
    if verified.has_offset and _agreed_intercept(about, config) is None:
        yield "the server adds an offset, and the transcript does not say whether that was agreed"
    if verified.offset_varies:
        yield (
            "the server's offset differs between samples, so it is more than an intercept, and what each client's "
            "changes are worth depends on it. Make sure that this was agreed"
        )


def _agreed_intercept(about: Description, config: Config | None) -> bool | None:
    """Return whether the server may have an intercept, by the transcript or else the configuration; None if unknown."""
    return config.training.intercept if about.intercept is None and config is not None else about.intercept


def refuse_others(folder: RunFolder, transcript: Transcript, settings: ValuationSettings, *, accepted: bool) -> None:
    """Raise InputError if a run was not trained or valued as agreed, unless that is accepted."""
    if accepted:
        return
    for other in _others(folder, transcript, settings):
        raise InputError(f"{other}; train and value the run as agreed, or add accept_settings=True (--accept-settings)")


def describe_accepted(folder: RunFolder, settings: ValuationSettings) -> list[str]:
    """Return sentences on what was not as agreed and has been accepted."""
    return [f"Accepted, although {other}." for other in _others(folder, folder.open(for_values=False), settings)]


def _others(folder: RunFolder, transcript: Transcript, settings: ValuationSettings) -> Iterator[str]:
    config = folder.config_of(transcript)
    return find_deviations(settings, transcript.description, config, lambda: transcript.verify_more().has_offset)


def check_is_of(valuation: Valuation, transcript: Transcript) -> None:
    """Raise InputError unless a valuation is of this transcript, to its last round."""
    if not RunFolder.matches(valuation, transcript):
        raise InputError("the valuation is not of this transcript, or the transcript has grown since; value it again")


def options_of(settings: ValuationSettings) -> dict[str, Any]:
    """Return the arguments of `value` that repeat a valuation; raise InputError if there are none."""
    if settings.rows not in ROWS:
        raise InputError(
            f"the valuation is of samples chosen by index ({settings.rows}), which it does not list, so nobody can "
            f"repeat it; choose rows by name: {', '.join(map(repr, ROWS))}"
        )
    return settings.as_dict()
