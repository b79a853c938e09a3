"""The game of a round whose closed form a GPU computes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from verfedsv.arrays import Array, Floats
from verfedsv.gpu.memory import as_device_array, free_bytes, upload, zeros
from verfedsv.losses import Loss
from verfedsv.shapley.blocks import compensated_sum
from verfedsv.shapley.factor_sums import Sums
from verfedsv.shapley.game import RoundGame, with_classes
from verfedsv.shapley.gpu.closed_form import DeviceRound, can_value, sum_round
from verfedsv.threads import split


class RoundOnGpu(RoundGame):
    """The game of a round, of arrays on the GPU or elsewhere.

    What is not the closed form of all samples, `previous` and `current` are copied from the GPU for, once.
    """

    def __init__(
        self,
        previous: Any,
        current: Any,
        labels: Array,
        loss: Loss,
        offset: Floats | None,
        previous_offset: Floats | None,
        n_threads: int,
    ) -> None:
        own = {
            "given": (previous, current),
            "labels": labels,
            "loss": loss,
            "offset": offset,
            "previous_offset": previous_offset,
            "n_threads": n_threads,
        }
        vars(self).update(own)

    given: tuple[Any, Any]

    @cached_property
    def previous(self) -> Array:
        """The embeddings before the round, in main memory."""
        return _on_host(self.given[0])

    @cached_property
    def current(self) -> Array:
        """The embeddings after the round, in main memory."""
        return _on_host(self.given[1])

    @property
    def n_clients(self) -> int:
        return int(self.given[0].shape[0])

    @property
    def n_samples(self) -> int:
        return int(self.given[0].shape[1])

    @property
    def n_classes(self) -> int:
        return int(self.given[0].shape[2])

    @staticmethod
    def as_embeddings(name: str, embeddings: Any) -> Any:
        """Return embeddings on the GPU or elsewhere, with an axis of classes."""
        return with_classes(name, as_device_array(name, embeddings))

    def third_order_sums(self) -> Floats | None:
        if not can_value(self.loss, self.n_players, self.n_classes):
            return None
        parts = split(self.n_samples, self._most_samples())
        return compensated_sum(np.concatenate([each.ravel() for each in self._sums(part)]) for part in parts)

    def _most_samples(self) -> int:
        """Return how many samples are on the GPU at once: all, if the arrays are there already."""
        if not all(isinstance(array, np.ndarray) for array in self.given):
            return self.n_samples
        bytes_each = sum(array.dtype.itemsize for array in self.given) * self.n_clients * self.n_classes
        return max(1, free_bytes() // int(2 * (bytes_each + 24 * self.n_classes)))

    def _sums(self, part: slice) -> Sums:
        arrays = [self._flat(array[:, part] if isinstance(array, np.ndarray) else array) for array in self.given]
        offsets = [each for each in (self.previous_offset, self.offset) if each is not None]
        offset = upload(np.stack([each[part].ravel() for each in offsets])) if offsets else zeros(0, 1)
        labels = self.labels[part].reshape(-1)
        previous, current = arrays
        return sum_round(DeviceRound(previous, current, offset, upload(labels)), self.loss, self.n_classes)

    def _flat(self, embeddings: Any) -> Any:
        flat = upload(embeddings) if isinstance(embeddings, np.ndarray) else embeddings
        return flat.reshape((self.n_clients, flat.size // self.n_clients))


def _on_host(embeddings: Any) -> Array:
    return embeddings if isinstance(embeddings, np.ndarray) else np.asarray(embeddings.copy_to_host())
