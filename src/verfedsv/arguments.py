"""Checks of the arguments that users pass."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedsv.errors import InputError


def as_whole(name: str, value: Any, *, at_least: int, hint: str = "") -> int:
    """Return `value` if it is a whole number of at least that size."""
    try:
        number = operator.index(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a whole number; received {value!r}{hint}") from None
    if isinstance(value, bool) or number < at_least:
        raise InputError(f"{name} must be at least {at_least}; received {value!r}{hint}")
    return number


def as_positive(name: str, value: Any) -> float:
    """Return `value` if it is a positive number."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a positive number; received {value!r}") from None
    if isinstance(value, str | bool) or not 0 < number < math.inf:
        raise InputError(f"{name} must be a positive number; received {value!r}")
    return number


def as_numpy(name: str, values: Any) -> NDArray[Any]:
    """Return `values` as an array of any type; tensors are detached and moved to the CPU."""
    if type(values) is np.ndarray:
        return values
    if values is None or isinstance(values, str | bytes | dict | set):
        raise InputError(f"{name} must be an array of numbers; received {type(values).__name__}")
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{name} is a masked array, and masks are not supported; fill or remove the masked entries")
    # Neither torch nor scipy is imported for this: their types are recognised by their methods.
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if "strided" not in str(getattr(values, "layout", "strided")):
            raise InputError(f"{name} is a sparse tensor; convert it with .to_dense()")
        if str(getattr(values, "dtype", "")).startswith(("torch.bfloat16", "torch.float8")):
            values = values.float()  # exact, and NumPy has no such types
    elif hasattr(values, "__cuda_array_interface__"):
        values = values.get() if hasattr(values, "get") else values.copy_to_host()
    elif hasattr(values, "toarray") and hasattr(values, "nnz"):
        raise InputError(f"{name} is a sparse matrix; convert it with .toarray()")
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} cannot be read as an array of numbers: {error}") from None


def as_array(name: str, values: Any) -> NDArray[Any]:
    """Return `values` as an array of numbers."""
    array = as_numpy(name, values)
    if array.dtype.kind in "OUT":
        # Columns of a data frame with missing values have this type, and so do decimals and numbers in text.
        try:
            array = array.astype(object).astype(np.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{name} must hold real numbers: {error}") from None
    if array.dtype.kind not in "biuf":
        shown = ", ".join(repr(value) for value in array.ravel()[:2].tolist())
        raise InputError(f"{name} must hold real numbers; received {shown}, ... of type {array.dtype}")
    return array


def as_samples(name: str, batch: Any, n_samples: int, *, may_be_empty: bool = False) -> NDArray[np.uint32]:
    """Return the sample numbers in a list or a mask."""
    samples = as_numpy(name, batch)
    if samples.dtype == bool:
        if samples.shape != (n_samples,):
            raise InputError(f"{name} as a mask needs one entry per sample, ({n_samples},); received {samples.shape}")
        samples = np.flatnonzero(samples)
    if samples.size == 0:
        if not may_be_empty:
            raise InputError(f"{name} must hold at least one sample; received none")
        samples = samples.astype(np.uint32)  # an empty list is of floats
    if samples.ndim != 1 or samples.dtype.kind not in "iu":
        raise InputError(f"{name} must be a list of sample numbers; received shape {samples.shape} of {samples.dtype}")
    if samples.size and not (samples.min() >= 0 and samples.max() < n_samples):
        wrong = samples[(samples < 0) | (samples >= n_samples)][0]
        raise InputError(f"{name} must hold sample numbers from 0 to {n_samples - 1}; received {wrong}")
    # Marking is ten times faster than sorting.
    seen = np.zeros(n_samples, dtype=bool)
    seen[samples] = True
    if np.count_nonzero(seen) < len(samples):
        numbers, counts = np.unique(samples, return_counts=True)
        raise InputError(f"{name} must not repeat samples; sample {numbers[counts > 1][0]} is repeated")
    return samples.astype(np.uint32)


def as_progress(progress: Any) -> Any:
    """Return `progress` if it can be called, or is None."""
    if progress is not None and not callable(progress):
        raise InputError(f"progress must be a function of two numbers, steps done and total; received {progress!r}")
    return progress
