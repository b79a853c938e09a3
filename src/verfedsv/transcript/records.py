"""The records of a transcript: uploads, time stamps, joins and leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array


@dataclass(frozen=True, eq=False)
class Upload:
    """Embeddings of one client, (samples, width), for these samples."""

    client: str
    time: float
    samples: NDArray[np.uint32]
    embeddings: Array


@dataclass(frozen=True, eq=False)
class Stamp:
    """A time of valuation: the end of a round.

    `offset` is added by the head: (classes,) if it is the same for all samples, else (samples, classes), or None. These
    are the uploaded samples if the round is synchronous and all clients uploaded the same ones in the same order, and
    all samples otherwise. `absent` are the clients declared absent from a synchronous round. `state` has the hashes of
    the head's parameters after the round, in the order of `description.head.parameters`, for `Transcript.head_state`.
    """

    time: float
    offset: Array | None
    absent: tuple[str, ...] = ()
    state: tuple[str, ...] = ()


@dataclass(frozen=True)
class Join:
    """A client takes part from now on; its embeddings are zero until its first upload ever."""

    client: str
    time: float


@dataclass(frozen=True)
class Leave:
    """A client stops taking part; its embeddings stay what they were."""

    client: str
    time: float


Record = Upload | Stamp | Join | Leave
