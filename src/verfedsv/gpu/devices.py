"""Which device computes: the processor, or a GPU through numba-cuda, which is imported when asked for."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any, Literal, get_args

from verfedsv.errors import DeviceWarning, InputError, how_to_install, warn

Device = Literal["cpu", "cuda", "auto"]
"""The processor, a GPU, or a GPU if there is one."""

_ON_CUDA = (2, 13)
"""DLPack's numbers for memory of a GPU, and memory managed by CUDA."""


def takes_gpu(device: str) -> bool:
    """Return whether a GPU is to be used; raise InputError if it is asked for and cannot be used.

    With "auto", a warning says once in a process why there is none.
    """
    if device not in get_args(Device):
        raise InputError(f"unknown device {device!r}; allowed are {', '.join(map(repr, get_args(Device)))}")
    why_not = None if device == "cpu" else why_no_gpu()
    if device == "cuda" and why_not is not None:
        raise InputError(f"device 'cuda' cannot be used: {why_not}; device='auto' uses the processor then")
    if device == "auto" and why_not is not None:
        _say_once(why_not)
    return device != "cpu" and why_not is None


@cache
def why_no_gpu() -> str | None:
    """Return why no GPU can be used, or None if one can."""
    if importlib.util.find_spec("numba_cuda") is None:
        return f"numba-cuda is not installed ({how_to_install('gpu')})"
    try:
        from numba import cuda

        cuda.current_context()
    except Exception as error:  # whatever a driver that does not work raises
        return f"numba-cuda finds no usable GPU ({' '.join(str(error).split())[:200]})"
    return None


@cache
def _say_once(why_not: str) -> None:
    warn(f"computing on the processor: {why_not}", DeviceWarning)


def without_gradient(values: Any) -> Any:
    """Return a tensor of PyTorch detached, and in float32 if no other library knows its type; all else as it is."""
    values = values.detach() if hasattr(values, "detach") else values
    is_only_torchs = str(getattr(values, "dtype", "")).startswith(("torch.bfloat16", "torch.float8"))
    return values.float() if is_only_torchs else values


def is_on_gpu(values: Any) -> bool:
    """Return whether an array or tensor is in the memory of a GPU."""
    values = without_gradient(values)
    if (is_there := getattr(values, "is_cuda", None)) is not None:  # of PyTorch; sparse ones fail if asked for more
        return bool(is_there)
    if hasattr(values, "__cuda_array_interface__"):
        return True
    if not hasattr(values, "__dlpack_device__"):
        return False
    return values.__dlpack_device__()[0] in _ON_CUDA
