"""Table 1, asynchronous: clients with random columns get next to nothing, however often they upload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from experiments.experiment import Experiment, Findings
from experiments.lab import Settings, split, train_asynchronously
from experiments.random_features import claims_against, found, tables_against
from verfedsv.data import ClientData

PAPER = {
    "adult": (0.93, 0.06, 0.33, 0.43, 0.35),
    "web": (0.26, 0.31, 0.36, 0.40, 0.28),
    "covtype": (0.35, 0.21, 0.22, 0.25, 0.39),
    "rcv1": (1.66, 1.75, 1.64, 1.50, 1.54),
}
"""Percentages that artificial clients 1 to 5 get in the paper."""


class AsyncRandomFeatureSettings(Settings):
    """Artificial client i uploads every `period` times the i-th of `slowness` seconds."""

    slowness: tuple[int, ...] = (1, 2, 3, 4, 5)
    draws: int = 1


def parts(name: str, settings: AsyncRandomFeatureSettings) -> Mapping[str, Callable[[], Findings]]:
    """Return a training for each draw of the random columns, N(0, 1)."""

    def measure(draw: int) -> Findings:
        data, rng = split(name, settings), np.random.default_rng(draw)
        shape = data.clients[0].numeric.shape
        more = (ClientData(f"artificial {i}", rng.standard_normal(shape)) for i in settings.slowness)
        periods = [settings.period] * settings.clients + [settings.period * i for i in settings.slowness]
        trained = train_asynchronously(data.with_clients(*more), settings, periods)
        return found(trained.value(), len(settings.slowness), trained.accuracy)

    return {f"draw {draw}": partial(measure, draw) for draw in range(settings.draws)}


EXPERIMENT = Experiment(
    name="random-features-async",
    title="Random features, asynchronous (Table 1, right)",
    about="Five clients with random columns N(0, 1) join the regular ones; the i-th uploads every 0.01 i seconds, for "
    "20 seconds with 500 time stamps.",
    settings_type=AsyncRandomFeatureSettings,
    parts=parts,
    tables=tables_against(PAPER),
    claims=claims_against(PAPER),
)
