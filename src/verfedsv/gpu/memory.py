"""Arrays in the memory of a GPU: the caller's, without a copy, and our own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from verfedsv.arguments import as_array
from verfedsv.arrays import Array
from verfedsv.errors import InputError
from verfedsv.gpu.devices import is_on_gpu, without_gradient
from verfedsv.gpu.lanes import kernel, one_each

RESERVE = 1 << 30
"""Bytes of a GPU's memory that are left for what else runs there."""


def as_device_array(name: str, values: Any) -> Any:
    """Return an array of real numbers on the GPU without a copy, or one elsewhere as a NumPy array."""
    if not is_on_gpu(values):
        return as_array(name, values)
    values = without_gradient(values)
    if not hasattr(values, "__cuda_array_interface__"):
        values = _Exported(values)
    array = cuda.as_cuda_array(values)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must hold real numbers; received {array.dtype}")
    if not array.is_c_contiguous():
        raise InputError(
            f"{name} must be contiguous on the GPU; make it so with .contiguous() or cupy.ascontiguousarray"
        )
    return array


class _Exported:
    """What a library that only speaks DLPack has on the GPU; the memory is kept while this is."""

    def __init__(self, values: Any) -> None:
        from cuda.core.utils import StridedMemoryView

        self._view = view = StridedMemoryView.from_dlpack(values, stream_ptr=-1)
        strides = view.strides
        self.__cuda_array_interface__ = {
            "shape": tuple(view.shape),
            "strides": None if strides is None else tuple(stride * view.dtype.itemsize for stride in strides),
            "typestr": np.dtype(view.dtype).str,
            "data": (view.ptr, view.readonly),
            "version": 3,
        }


def upload(array: Array) -> Any:
    """Return a copy of a NumPy array on the GPU."""
    return cuda.to_device(np.ascontiguousarray(array))


def zeros(*shape: int) -> Any:
    """Return an array of float64 zeros on the GPU."""
    array = cuda.device_array(shape, np.float64)
    if array.size:
        _clear[one_each(array.size)](array.reshape(array.size))
    return array


@kernel
def _clear(array: Any) -> None:
    i = cuda.grid(1)
    if i < len(array):
        array[i] = 0.0


def free_bytes() -> int:
    """Return how much of the GPU's memory may be taken."""
    free = cuda.current_context().get_memory_info().free
    return max(RESERVE, int(min(free, 1 << 40)) - RESERVE)  # the simulator's memory is infinite
