"""Asynchronous training: the server's table of embeddings, replayed from the uploads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from verfedsv.losses import Array
from verfedsv.shapley.blocks import split
from verfedsv.valuation.chunks import ReplayChunk, UploadsOfRound, apply
from verfedsv.valuation.stream import Rounds, Stream, chunk_size
from verfedsv.valuation.trainings import Training

SEGMENT_ELEMENTS, SEGMENT_ROUNDS = 2**22, 64
"""So many numbers, offsets included, of so many rounds are held at a time and valued together."""


def value_replayed(
    training: Training, rows: NDArray[np.intp], first_round: int, stream: Stream, progress: Callable[[int], None]
) -> tuple[Rounds, int]:
    """Return the values of the rounds from `first_round` on, and how many of the rows were never uploaded.

    The embeddings are zero at time 0. `progress` is called with the number of rounds done.
    """
    n_clients = len(training.clients)
    table = np.zeros((n_clients, len(rows), training.n_classes))
    place = np.full(training.n_samples, -1, np.int32 if training.n_samples < 2**31 else np.int64)
    place[rows] = np.arange(len(rows))
    is_seen = np.zeros(len(rows), bool)
    result, segment, n_elements = Rounds.none(n_clients), list[UploadsOfRound](), 0

    def flush() -> None:
        if segment:
            result.append(_value_segment(training, rows, table, segment, stream))
            for uploads in segment:
                apply(table, uploads)
            segment.clear()

    for number, recorded in enumerate(training.rounds()):
        uploads = _of_rows(recorded, rows, place, training.is_synchronous)
        for samples in uploads.samples:
            is_seen[samples] = True
        if number < first_round:
            apply(table, uploads)
            continue
        segment.append(uploads)
        n_elements += sum(values.size for values in uploads.embeddings)
        n_elements += 0 if uploads.offset is None else uploads.offset.size
        if n_elements >= SEGMENT_ELEMENTS or len(segment) == SEGMENT_ROUNDS:
            flush()
            n_elements = 0
            progress(number + 1)
    if segment:
        flush()
        progress(training.n_rounds)
    return result, int((~is_seen).sum())


def _value_segment(
    training: Training, rows: NDArray[np.intp], table: Array, segment: Sequence[UploadsOfRound], stream: Stream
) -> Rounds:
    n_clients = len(training.clients)
    labels = training.labels[rows]
    parts = split(len(rows), chunk_size(n_clients, training.n_classes))
    edges = [part.start for part in parts] + [len(rows)]
    cut = [_cut(uploads, edges) for uploads in segment]

    def chunks() -> Iterator[ReplayChunk]:
        for number, part in enumerate(parts):
            yield ReplayChunk(
                number,
                training.loss,
                labels[part],
                n_clients,
                len(segment),
                training.n_classes,
                np.ascontiguousarray(table[:, part]),
                [of_round[number] for of_round in cut],
            )

    return stream.value(chunks, len(segment), n_clients, len(rows))


def _of_rows(uploads: UploadsOfRound, rows: NDArray[np.intp], place: Array, is_synchronous: bool) -> UploadsOfRound:
    """Return the uploads with samples numbered among `rows`, sorted, and others left out."""
    samples, embeddings = [], []
    offset = uploads.offset
    for numbers, values in zip(uploads.samples, uploads.embeddings, strict=True):
        places = place[numbers]
        order = np.argsort(places, kind="stable")
        order = order[np.searchsorted(places, 0, sorter=order) :]
        samples.append(places[order])
        embeddings.append(values[order])
    if offset is not None:
        # In synchronous training the offset is for the samples of the batch, in asynchronous training for all.
        if is_synchronous:
            full = np.zeros((len(place), offset.shape[1]))
            full[uploads.samples[0]] = offset
            offset = full
        offset = offset[rows]
    return UploadsOfRound(uploads.clients, samples, embeddings, offset)


def _cut(uploads: UploadsOfRound, edges: Sequence[int]) -> list[UploadsOfRound]:
    """Return the uploads for each chunk of samples, numbered within it."""
    where = [np.searchsorted(samples, edges) for samples in uploads.samples]
    result = []
    for number in range(len(edges) - 1):
        first, last = edges[number], edges[number + 1]
        slices = [slice(ends[number], ends[number + 1]) for ends in where]
        samples = [s[part] - s.dtype.type(first) for s, part in zip(uploads.samples, slices, strict=True)]
        embeddings = [e[part] for e, part in zip(uploads.embeddings, slices, strict=True)]
        offset = None if uploads.offset is None else uploads.offset[first:last]
        result.append(UploadsOfRound(uploads.clients, samples, embeddings, offset))
    return result
