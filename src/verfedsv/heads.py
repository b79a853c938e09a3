"""Heads: how the server turns the embeddings of all clients into what the loss takes. Needs the extra `torch`.

A head is a torch module on the embeddings of all clients, concatenated in their order, (samples, width), that returns
(samples, classes), or (samples,) for a scalar. Everything is computed in float64 on the CPU, on a copy of the module in
evaluation mode. (A head that only sums needs none of this: its game is `RoundGame`.)
"""

from __future__ import annotations

import copy
import io
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from verfedsv.arguments import as_numpy
from verfedsv.arrays import Array, Floats
from verfedsv.errors import InputError
from verfedsv.head_layers import from_layers, to_layers
from verfedsv.head_loops import HeadLoops

_ROWS_TO_TRY = 4
_SAME = 1e-9
"""A row's scores may depend on the other rows, and on how a module is run, by this fraction of the largest score, as
products round differently."""


RECORDED = "the recorded parameters are not those of this head (pass the module that was recorded)"


class WidthError(InputError):
    """The head cannot take embeddings of so many numbers."""


@dataclass(frozen=True, eq=False)
class HeadState:
    """The parameters and buffers of a head at some time, by name; floating-point ones in float64."""

    tensors: Mapping[str, torch.Tensor]

    def between(self, other: HeadState) -> HeadState:
        """Return the state half-way to another; what is not a real number stays."""
        ours, theirs = self.tensors, other.tensors
        return HeadState({n: (a + theirs[n]) / 2 if a.is_floating_point() else a for n, a in ours.items()})

    def scaled(self, factors: Callable[[tuple[int, ...]], Floats]) -> HeadState:
        """Return the state with all real numbers multiplied by factors, which are asked for by the shape of each."""
        ours = self.tensors
        return HeadState(
            {n: a * torch.from_numpy(factors(tuple(a.shape))) if a.is_floating_point() else a for n, a in ours.items()}
        )

    def equals(self, other: HeadState) -> bool:
        """Return whether both states have exactly the same numbers."""
        return self is other or all(torch.equal(a, other.tensors[name]) for name, a in self.tensors.items())


@dataclass(frozen=True, eq=False)
class HeadMove:
    """The states of a head before and after a round; the same object if it did not change.

    `entropy` seeds draws: numbers that clients do not know before they upload, as they depend on the head after the
    round. Otherwise they could choose embeddings for the samples that are not drawn. Of a frozen head, they are known.
    """

    previous: HeadState
    current: HeadState
    entropy: tuple[int, ...] = ()

    @classmethod
    def of(cls, previous: HeadState, current: HeadState) -> HeadMove:
        """Return the move from one state to another."""
        return cls(previous, previous if previous.equals(current) else current)

    @property
    def is_move(self) -> bool:
        """Whether the head changed."""
        return self.previous is not self.current

    @cached_property
    def middle(self) -> HeadState:
        """The state half-way."""
        return self.previous.between(self.current) if self.is_move else self.previous


class Head:
    """A function of the embeddings of all clients, with parameters that are passed to each call.

    It may be called by several threads, and sent to another process if its module can be. `names` are those of the
    parameters and buffers that change, if they are not all: an exported program also has constants. A tensor that the
    module has under several names is in each state under all of them. `layers` are those of the module as plain data,
    known once it was checked; None if these do not describe it. `loops` compute their scores without torch, None if
    there are none for these layers.
    """

    def __init__(self, module: Any, names: Sequence[str] | None = None) -> None:
        if not isinstance(module, torch.nn.Module):
            raise InputError(f"head must be 'sum' or a torch.nn.Module; received {type(module).__name__}")
        try:
            self._module = _copied(module).cpu().double()
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise InputError(f"the head cannot be copied and converted to float64: {error}") from None
        self._own = threading.local()
        _to_evaluation_mode(self._module)
        for parameter in self._module.parameters():
            parameter.requires_grad_(False)
        own = self._module.state_dict()
        self._names = (*own,) if names is None else (*(name for name in names if name in own),)
        self._first_names = _first_names(self._module)
        self.layers: list[Any] | None = None
        self.loops: HeadLoops | None = None
        # Without copies of what is passed to each call, apart from the names and shapes.
        self.state = self.read({name: as_numpy(name, own[name]) for name in self._names})

    def is_parameter(self, name: str) -> bool:
        """Return whether a part of the state is a parameter, and not a buffer."""
        return name in dict(self._module.named_parameters(remove_duplicate=False))

    def read(self, arrays: Mapping[str, Array], whose: str = RECORDED) -> HeadState:
        """Return a state from arrays by name; raise InputError unless they are those of the module.

        `whose` says whose parameters they are, and which are wanted.
        """
        own = self._module.state_dict()
        if (*arrays,) != self._names:
            odd = sorted({*arrays} ^ {*self._names}) or ["their order"]
            raise InputError(f"{whose}: {odd[0]!r} differs")
        tensors = {}
        for name, array in arrays.items():
            if array.shape != tuple(own[name].shape):
                raise InputError(f"{whose}: {name!r} has shape {array.shape} instead of {tuple(own[name].shape)}")
            if array.dtype.kind not in "biuf":
                raise InputError(f"parameter {name!r} of the head must hold real numbers; received {array.dtype}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise InputError(f"parameter {name!r} of the head has numbers that are not finite: training diverged")
            kind = np.float64 if own[name].is_floating_point() else own[name].numpy().dtype
            tensors[name] = torch.from_numpy(np.array(array, kind, order="C"))
        for name, first in self._first_names.items():
            if name in tensors and first in tensors and not torch.equal(tensors[name], tensors[first]):
                raise InputError(f"{whose}: {name!r} and {first!r} are one tensor of the head, and differ there")
        return HeadState(tensors)

    def check(self, width: int, n_classes: int | None = None) -> int:
        """Return how many numbers per sample the head gives, for embeddings of that width, all clients together.

        Raises WidthError if the head cannot take them, and another InputError if its numbers are not `n_classes`, or
        not a function of the sample's embeddings alone.
        """
        rows = np.random.default_rng(0).standard_normal((_ROWS_TO_TRY, width))
        try:
            with one_thread():
                scores, again, alone = (self._call(self.state, part) for part in (rows, rows, rows[:1]))
        except InputError:
            raise
        except Exception as error:  # whatever the user's module raises
            raise WidthError(
                f"the head cannot take embeddings of {width} numbers per sample, all clients together: {error}"
            ) from None
        found = 1 if scores.ndim == 1 else scores.shape[-1] if scores.ndim else 0
        for n_rows, given in ((len(rows), scores), (len(rows), again), (1, alone)):
            if given.ndim not in (1, 2) or len(given) != n_rows or n_classes not in (None, found):
                raise InputError(
                    f"the head must give an array ({n_rows}, {n_classes or 'classes'}) for {n_rows} "
                    f"{'sample' if n_rows == 1 else 'samples'}; received shape {tuple(given.shape)}"
                )
        if not torch.isfinite(scores).all():
            raise InputError("the head gives NaN or infinity for ordinary embeddings; check its layers")
        if not torch.equal(scores, again):
            raise InputError(
                "the head gives other scores each time: it must not draw random numbers in evaluation mode"
            )
        if float((scores[:1] - alone).abs().max()) > _SAME * float(scores.abs().max()):
            raise InputError("what the head gives for a sample depends on the other samples; that cannot be valued")
        layers = to_layers(self._module)
        # Somebody may have changed what a layer does.
        self.layers = layers if layers is not None and self.agrees_with(from_layers(layers), width) else None
        self.loops = None if self.layers is None else HeadLoops.of(self.layers, self.state.tensors)
        return int(found)

    def agrees_with(self, module: torch.nn.Module, width: int) -> bool:
        """Return whether another module with this one's parameters gives the same scores."""
        rows = np.random.default_rng(0).standard_normal((_ROWS_TO_TRY, width))
        ours, theirs = (head.scores(self.state, rows) for head in (self, Head(module, self._names)))
        return ours.shape == theirs.shape and bool(np.abs(ours - theirs).max() <= _SAME * np.abs(ours).max())

    def scores(self, state: HeadState, embeddings: Floats) -> Floats:
        """Return what the loss takes, (rows, classes), of concatenated embeddings, (rows, width)."""
        with one_thread(), torch.no_grad():
            result: Floats = self._call(state, embeddings).numpy()
        return result.reshape(len(embeddings), -1)

    def differentiate(
        self, state: HeadState, embeddings: Floats, slope: Callable[[Floats], Floats]
    ) -> tuple[Floats, Floats]:
        """Return the scores, (rows, classes), and the gradient by the embeddings, (rows, width).

        `slope` returns the gradient by the scores, (rows, classes), given these.
        """
        with one_thread(), torch.enable_grad():
            x = torch.from_numpy(embeddings).requires_grad_()
            result = self.call(state.tensors, x)
            scores: Floats = result.detach().numpy().reshape(len(embeddings), -1)
            if not result.requires_grad:  # it does not depend on the embeddings
                return scores, np.zeros_like(embeddings)
            by_scores = torch.from_numpy(np.ascontiguousarray(slope(scores), np.float64)).reshape(result.shape)
            (gradient,) = torch.autograd.grad(result, x, by_scores, allow_unused=True)
        return scores, np.zeros_like(embeddings) if gradient is None else np.asarray(gradient.numpy())

    def call(self, tensors: Mapping[str, torch.Tensor], embeddings: torch.Tensor) -> torch.Tensor:
        """Return the scores as torch computes and differentiates them, by parameters and embeddings."""
        # It puts the tensors into the module for the time of the call, so that each thread needs a module of its own.
        if not hasattr(self._own, "module"):
            self._own.module = _copied(self._module)
        # Torch takes a tensor that has several names under one of them. A module may change its input in place.
        given = {name: tensor for name, tensor in tensors.items() if name not in self._first_names}
        result: torch.Tensor = torch.func.functional_call(self._own.module, given, (embeddings.clone(),))
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_own"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _own=threading.local())

    def _call(self, state: HeadState, embeddings: Floats) -> torch.Tensor:
        try:
            with torch.no_grad():
                result = self.call(state.tensors, torch.from_numpy(np.ascontiguousarray(embeddings)))
        except RuntimeError as error:
            if "can't allocate memory" in str(error):
                raise MemoryError("the head needs more memory than there is") from None
            raise
        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            is_tensor = isinstance(result, torch.Tensor)
            what = f"a tensor of {result.dtype}".replace("torch.", "") if is_tensor else type(result).__name__
            raise InputError(f"the head must return a tensor of floating-point numbers; received {what}")
        return result


def _first_names(module: torch.nn.Module) -> dict[str, str]:
    """Return the further names of tensors that a module has under several, with the first name of each."""
    first, result = dict[int, str](), dict[str, str]()
    for name, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        if first.setdefault(id(tensor), name) != name:
            result[name] = first[id(tensor)]
    return result


def export(module: torch.nn.Module, width: int) -> bytes:
    """Return a module as a program that takes any number of rows of that width; raise InputError if torch cannot.

    What torch prints meanwhile, such as the graph of a module that it cannot trace, is left out.
    """
    samples = torch.export.Dim("samples", min=1)
    try:
        copied = _copied(module).cpu().double().eval()
        with redirect_stderr(io.StringIO()):
            program = torch.export.export(
                copied, (torch.zeros(3, width, dtype=torch.float64),), dynamic_shapes=({0: samples},)
            )
            buffer = io.BytesIO()
            torch.export.save(program, buffer)
    except Exception as error:  # what torch raises for modules that it cannot trace is not documented
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        raise InputError(f"torch cannot export the head ({why})") from None
    if not Head(module).agrees_with(load_program(buffer.getvalue()), width):
        raise InputError("the program that torch exported of the head gives other scores")
    return buffer.getvalue()


def load_program(content: bytes) -> torch.nn.Module:
    """Return the module of an exported program. It may run any code: call it only for a program that is trusted."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return torch.export.load(io.BytesIO(content)).module()
    except Exception as error:  # of a damaged file, or one of another version of torch
        raise InputError(f"the program of the head cannot be loaded ({type(error).__name__})") from None


def _copied(module: torch.nn.Module) -> torch.nn.Module:
    with warnings.catch_warnings(action="ignore"):  # torch's, about its own code
        return copy.deepcopy(module)


def _to_evaluation_mode(module: torch.nn.Module) -> None:
    """Call `eval`, unless the module is an exported program, which was exported in evaluation mode and refuses it."""
    with suppress(NotImplementedError):
        module.eval()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on the calling thread alone: blocks already go to a thread each, and sums then round the same way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
