"""Whether two batches are of the same samples: a transport may copy arrays, and a caller may fill one anew."""

from __future__ import annotations

import numpy as np

from verfedsv.losses import Array


def freeze(samples: Array) -> Array:
    """Return an array that cannot change any more, so that it need not be copied or compared number by number."""
    samples.flags.writeable = False
    return samples


def keep(samples: Array) -> Array:
    """Return what stays as it is now: the array itself if nothing can change it, or a copy."""
    return samples if samples.base is None and not samples.flags.writeable else np.array(samples)


def same(kept: Array, samples: Array) -> bool:
    """Return whether `samples` are those that were kept."""
    return kept is samples or np.array_equal(kept, samples)
