"""What a transcript is a sequence of: uploads and time stamps, and clients that join or leave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verfedsv.losses import Array


@dataclass(frozen=True, eq=False)
class Upload:
    """Embeddings of one client, (samples, width), for the samples numbered `samples`."""

    client: str
    time: float
    samples: NDArray[np.uint32]
    embeddings: Array


@dataclass(frozen=True, eq=False)
class Stamp:
    """A time of valuation: the end of a round.

    `offset` is what the head adds of its own: (classes,) if it is the same for all samples, or (samples, classes); None
    if there is none. In asynchronous training these are all samples; in synchronous training those of the uploads if
    all clients uploaded the same samples in the same order, and all samples otherwise. `absent` are the clients that
    were declared absent from a synchronous round. `state` are the hashes of the head's parameters after the round, in
    the order of `description.head.parameters`; `Transcript.head_state` reads them.
    """

    time: float
    offset: Array | None
    absent: tuple[str, ...] = ()
    state: tuple[str, ...] = ()


@dataclass(frozen=True)
class Join:
    """A client takes part from here on; until its first upload its embeddings are zero."""

    client: str
    time: float


@dataclass(frozen=True)
class Leave:
    """A client takes no part any more; its embeddings stay what they were."""

    client: str
    time: float


Record = Upload | Stamp | Join | Leave
