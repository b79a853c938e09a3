"""The closed form under a head: Shapley values to third order, by derivatives along the changes.

With c half-way, in embeddings and parameters together, d_m the change of player m (zero elsewhere), D their sum and f
the loss of a sample as a function of both,

    phi_m = -{ f'[d_m] + f'''[d_m, D, D] / 24 + sum_k f'''[d_m, d_k, d_k] / 12 - f'''[d_m, d_m, D] / 12 }.

The first three terms are the gradient of one scalar, by reverse over two forward passes; the last takes three forward
passes for each player. Nothing bounds the remainder, so errors are infinite: where the head has kinks (ReLU), third
derivatives say nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

import numpy as np
import torch

from verfedsv.arrays import Array, Floats
from verfedsv.errors import InputError
from verfedsv.heads import one_thread
from verfedsv.losses import Logistic, Loss, Softmax, Squared
from verfedsv.shapley.blocks import compensated_sum
from verfedsv.shapley.head_game import HeadGame

Point = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""Embeddings, (samples, width), and the parameters that move, by name; or a direction from there."""


_FORWARD = Lock()
"""Forward derivatives have levels that all threads of a process share: they take turns."""


def sum_third_order(game: HeadGame) -> Floats:
    """Return the values of all players, means over samples, and at the end the decrease of the loss."""
    losses = _losses_of(game.loss)
    moved, fixed = _split_parameters(game)

    def of_block(samples: Array, _: int) -> Floats:
        before, after = (torch.from_numpy(each[samples]) for each in (game.previous, game.current))
        centre: Point = (before + after) / 2, {name: (a + b) / 2 for name, (a, b) in moved.items()}
        steps = {name: b - a for name, (a, b) in moved.items()}
        labels = torch.from_numpy(np.ascontiguousarray(game.labels[samples]))

        def f(x: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
            return losses(game.head.call({**fixed, **parameters}, x), labels).sum()

        try:
            with _FORWARD, one_thread():
                values = _values(f, centre, (after - before, steps), torch.from_numpy(game.columns), game.n_players)
        except RuntimeError as error:  # NotImplementedError, too, of layers without such derivatives
            if "can't allocate memory" in str(error):
                raise MemoryError("the derivatives of the head need more memory than there is") from None
            why = str(error).partition("\n")[0][:200]
            raise InputError(
                f"torch has no third derivatives of this head ({why}); use method 'auto', 'exact' or 'permutation'"
            ) from None
        first, last = game.ends(samples)
        return np.append(values, (first - last).sum())

    return compensated_sum(game.map_samples(of_block)) / game.n_samples


def _values(f: Callable[..., Any], centre: Point, change: Point, columns: torch.Tensor, n_players: int) -> Floats:
    """Return minus the braces above, for each player, summed over samples."""
    d, steps = change
    still = {name: torch.zeros_like(step) for name, step in steps.items()}
    has_server = bool(steps)
    directions: list[Point] = [(d * (columns == k), still) for k in range(n_players - has_server)]
    if has_server:
        directions.append((torch.zeros_like(d), steps))

    def second(u: Point, v: Point) -> Callable[..., Any]:
        return lambda x, p: torch.func.jvp(lambda x, p: torch.func.jvp(f, (x, p), u)[1], (x, p), v)[1]

    def scalar(x: torch.Tensor, p: dict[str, torch.Tensor]) -> torch.Tensor:
        total: torch.Tensor = f(x, p) + second(change, change)(x, p) / 24
        for own in directions:
            total = total + second(own, own)(x, p) / 12
        return total

    slopes, of_parameters = torch.func.grad(scalar, argnums=(0, 1))(*centre)
    result = np.empty(n_players)
    for k, own in enumerate(directions):
        first = (slopes * own[0]).sum() + sum((of_parameters[name] * step).sum() for name, step in own[1].items())
        last = torch.func.jvp(second(own, own), centre, change)[1]
        result[k] = -float(first - last / 12)
    return result


def _split_parameters(game: HeadGame) -> tuple[dict[str, tuple[torch.Tensor, torch.Tensor]], dict[str, torch.Tensor]]:
    """Return the parameters that move, before and after the round, and the others."""
    before, after = game.move.previous.tensors, game.move.current.tensors
    moved = {name: (a, after[name]) for name, a in before.items() if not torch.equal(a, after[name])}
    for name, (a, _) in moved.items():
        if not game.head.is_parameter(name) or not a.is_floating_point():
            raise InputError(
                f"method 'closed-form' takes derivatives by the parameters of the head, and {name!r}, which changed in "
                "this round, is a buffer; use method 'auto', 'exact' or 'permutation'"
            )
    return moved, {name: a for name, a in before.items() if name not in moved}


def _losses_of(loss: Loss) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a loss of this package as torch computes it, from scores and encoded labels to (samples,)."""
    if type(loss) is Logistic:
        return lambda scores, signs: -torch.nn.functional.logsigmoid(signs * scores.reshape(len(signs)))
    if type(loss) is Softmax:
        return lambda scores, classes: (
            torch.logsumexp(scores, 1) - torch.gather(scores, 1, classes[:, np.newaxis])[:, 0]
        )
    if type(loss) is Squared:
        return lambda scores, targets: ((scores.reshape(targets.shape) - targets) ** 2).sum(1) / 2
    raise InputError(
        f"method 'closed-form' under a head takes the losses of this package; for {loss.name!r}, use 'auto', 'exact' "
        "or 'permutation'"
    )
