"""The head of a recorded training: where its function comes from, and its state in each round. Needs torch."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from verfedsv.arrays import Array, Floats
from verfedsv.errors import InputError
from verfedsv.head_layers import digest_of, digest_of_layers, from_layers, to_layers
from verfedsv.heads import Head, HeadMove, HeadState, WidthError, load_program
from verfedsv.losses import Loss
from verfedsv.shapley.head_game import HeadGame
from verfedsv.transcript import Transcript
from verfedsv.transcript.heads import StateReader
from verfedsv.valuation.chunks import State

Key = TypeVar("Key")
Value = TypeVar("Value")

_MOST_NUMBERS = 2**27
"""In the parameters of a head that is built from recorded layers: 1 GB."""

_MOST_STATES = 4
"""States and moves held in memory: threads value the same rounds at about the same time."""


@dataclass(frozen=True, eq=False)
class TrainedHead:
    """A head as a function of the embeddings of all clients and of its recorded state.

    `columns`, (width,), is the client that each column of the concatenated embeddings belongs to, -1 if it has not
    joined yet. It can be sent to another process, which reads states from the files of the transcript.
    """

    function: Head
    read: StateReader
    columns: Array
    n_clients: int
    _states: _Cache[State, HeadState] = field(default_factory=lambda: _Cache(_MOST_STATES), repr=False)
    _moves: _Cache[tuple[State, State], HeadMove] = field(default_factory=lambda: _Cache(_MOST_STATES), repr=False)

    def state(self, hashes: State) -> HeadState:
        """Return the state with these hashes."""
        return self._states.get(hashes, lambda: self.function.read(self.read(hashes)))

    def move(self, before: State, after: State) -> HeadMove:
        """Return the move from one state to another."""

        def find() -> HeadMove:
            first = self.state(before)
            entropy = int.from_bytes(hashlib.sha256("".join(after).encode()).digest())
            return HeadMove(first, first if before == after else self.state(after), (entropy,))

        return self._moves.get((before, after), find)

    def game(self, previous: Floats, current: Floats, labels: Array, loss: Loss, move: HeadMove) -> HeadGame:
        """Return the game of some samples, from tables (clients, samples, width), for the calling thread."""
        before, after = self.joined(previous), self.joined(current)
        return HeadGame(before, after, self.columns, self.n_clients, labels, loss, self.function, move, n_threads=1)

    def joined(self, table: Floats) -> Floats:
        """Return the embeddings of all clients side by side, (samples, width), as the head takes them."""
        result = np.zeros((table.shape[1], len(self.columns)))
        for client in range(self.n_clients):
            own = np.flatnonzero(self.columns == client)  # side by side
            if len(own):
                result[:, own[0] : own[-1] + 1] = table[client, :, : len(own)]
        return result

    def first_scores(self, hashes: State) -> Floats:
        """Return the scores of a sample whose embeddings are all zero, (1, classes)."""
        return self.function.scores(self.state(hashes), np.zeros((1, len(self.columns))))

    def probe(self, hashes: State, n_rows: int) -> Floats:
        """Return the scores, (rows, classes), of fixed embeddings, which differ between heads that differ."""
        return self.function.scores(
            self.state(hashes), np.random.default_rng(0).normal(size=(n_rows, len(self.columns)))
        )


def find_head(transcript: Transcript, module: Any = None, *, trust: bool = False) -> TrainedHead:
    """Return the head of a training: the given module, or what the transcript holds of it.

    Raises InputError if it is another one than was recorded; or if it has only been recorded as a program, which may
    run any code, and `trust` is False.
    """
    about = transcript.description.head
    transcript.description.check_can_be_valued(has_loss=True, has_head=module is not None, trusts_head=trust)
    widths, clients = transcript.widths, transcript.clients
    if module is not None:
        if not isinstance(module, torch.nn.Module):
            raise InputError(
                "head must be the torch module that was recorded, or None to take it from the run; received "
                f"{module if isinstance(module, str) else type(module).__name__!r}"
            )
        layers = to_layers(module)
        if about.architecture not in (digest_of(module), layers and digest_of_layers(layers)):
            raise InputError("this head is not the one that was recorded: its layers differ (repr of the module)")
    elif about.layers is not None:
        module = _build(about.layers, about.parameters)
    else:
        module = load_program(transcript.head_program() or b"")
    function = Head(module, about.parameters)
    function.read(transcript.head_state(about.state))
    try:
        function.check(sum(widths.values()), transcript.description.n_classes)
    except InputError as error:
        silent = [name for name in clients if name not in widths]
        hint = f"; {', '.join(silent)} never uploaded anything, so the width of their embeddings is unknown"
        raise InputError(f"{error}{hint if silent and isinstance(error, WidthError) else ''}") from None
    places = [clients.index(name) if name in clients else -1 for name in widths]
    columns = np.repeat(np.array(places, np.intp), list(widths.values()))
    return TrainedHead(function, transcript.head_reader, columns, len(clients))


def _build(layers: list[Any], parameters: Sequence[str]) -> torch.nn.Module:
    """Return a module of recorded layers; raise InputError if these cannot be built, or not with these parameters."""
    try:
        shapes = {name: value.numel() for name, value in from_layers(layers, device="meta").state_dict().items()}
        if (*shapes,) != (*parameters,) or sum(shapes.values()) > _MOST_NUMBERS:
            raise InputError(
                "the layers of the head do not have the parameters that were recorded, or more than "
                f"{_MOST_NUMBERS:,} numbers in them"
            )
        return from_layers(layers)
    except (KeyError, ValueError, RuntimeError, TypeError) as error:  # names and arguments that torch refuses
        raise InputError(f"the recorded layers of the head cannot be built: {error}") from None


class _Cache(Generic[Key, Value]):
    """The last few values that were asked for; its copy in another process is empty."""

    def __init__(self, most: int) -> None:
        self._most, self._lock, self._found = most, Lock(), OrderedDict[Key, Value]()

    def get(self, key: Key, find: Callable[[], Value]) -> Value:
        """Return the value of a key, found once."""
        with self._lock:
            if key not in self._found:
                self._found[key] = find()
                if len(self._found) > self._most:
                    self._found.popitem(last=False)
            self._found.move_to_end(key)
            return self._found[key]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._most,)
