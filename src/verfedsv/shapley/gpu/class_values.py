"""The closed form of one sample with several classes, for a thread."""

from __future__ import annotations

from typing import Any

from numba import cuda

from verfedsv.gpu.lanes import device, lane
from verfedsv.loss_loops import expand_softmax
from verfedsv.shapley.class_sums import measure_change, value_change, write_coefficients

_expand, _measure, _value, _write = (
    lane(expand_softmax),
    lane(measure_change),
    lane(value_change),
    lane(write_coefficients),
)


@device
def added(parts: Any, at: int) -> float:
    """Return the sum over groups of a number."""
    total = 0.0
    for group in range(len(parts)):
        total += parts[group, at]
    return total


@device
def exchange_sums(parts: Any, place: Any, sums: Any, is_in_order: bool) -> tuple[float, float]:
    """Add base, total and absolute sums over groups; return the largest of the absolute ones, and their sum.

    `place` and `parts` are those of `value_sample`. If the threads of a group have numbers in the order of memory, each
    gets those of its sample.
    """
    base, total, size = sums
    sample, n_samples, group = place
    n_classes = len(base)
    width = n_samples * n_classes
    for c in range(n_classes):
        at = c * n_samples + sample
        parts[group, at] = base[c]
        parts[group, width + at] = total[c]
        parts[group, 2 * width + at] = size[c]
    cuda.syncthreads()
    largest, everything = 0.0, 0.0
    for c in range(n_classes):
        at = sample * n_classes + c if is_in_order else c * n_samples + sample
        base[c] = added(parts, at)
        total[c] = added(parts, width + at)
        own = added(parts, 2 * width + at)
        largest = max(largest, own)
        everything += own  # which keeps NaN
    return largest, everything


@device
def value_sample(
    changes: Any,
    n_players: int,
    sums: Any,
    label: Any,
    magnitude: float,
    spaces: Any,
    bound: Any,
    parts: Any,
    place: Any,
) -> float:
    """Replace the first two changes of each player by its value and error; return the decrease of the loss.

    `changes` are (players * classes,), `sums` the summed embeddings and changes, (classes,) each; `spaces` are three
    arrays of a number for each class, and one of a single number. `parts`, (groups, numbers), is shared by the threads
    of a block; `place` is the index of the sample, the number of samples, and the group of the thread.
    """
    base, total = sums
    centre, linear, quadratic, line = spaces
    sample, n_samples, group = place
    n_classes, n_groups = len(total), len(parts)
    decrease = _expand(base, total, label, 0, centre, linear, line)
    path, energy = 0.0, 0.0
    for c in range(n_classes):
        quadratic[c] = 0.0
    # A slice for each player: its indices are known when compiling.
    for k in range(group, n_players, n_groups):
        own = changes[k * n_classes : (k + 1) * n_classes]
        spread, mean, _ = _measure(own, 0, centre, bound)
        path += spread
        for c in range(n_classes):
            centred = own[c] - mean
            quadratic[c] += centred * centred
            energy += own[c] * own[c]
    if n_groups > 1:
        cuda.syncthreads()
        for c in range(n_classes):
            parts[group, c * n_samples + sample] = quadratic[c]
        parts[group, n_classes * n_samples + sample] = path
        parts[group, (n_classes + 1) * n_samples + sample] = energy
        cuda.syncthreads()
        for c in range(n_classes):
            quadratic[c] = added(parts, c * n_samples + sample)
        path = added(parts, n_classes * n_samples + sample)
        energy = added(parts, (n_classes + 1) * n_samples + sample)
    truncation, rounding = _write((total, centre, centre, linear, quadratic), path, energy, magnitude, bound)
    for k in range(group, n_players, n_groups):
        own = changes[k * n_classes : (k + 1) * n_classes]
        spread, mean, size = _measure(own, 0, centre, bound)  # again: to keep them would need more memory
        value = _value(own, 0, mean, linear, quadratic, bound)
        own[0] = value
        own[1] = spread * truncation + size * rounding
    return decrease  # type: ignore[no-any-return]
