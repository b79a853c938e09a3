"""`shapley_values`: the value of each client in one round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from verfedsv.arguments import as_positive, as_progress, as_whole
from verfedsv.arrays import Floats
from verfedsv.errors import InputError, ToleranceWarning, warn
from verfedsv.gpu.devices import Device, is_on_gpu, takes_gpu, why_no_gpu
from verfedsv.losses import Loss
from verfedsv.shapley.estimate import ErrorKind, Estimate, is_confidence, keeps
from verfedsv.shapley.estimators import Method, estimate_game, estimate_rounds, get_estimator
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.head_game import HeadGame
from verfedsv.shapley.permutation import default_permutations
from verfedsv.shapley.plan import Allowance, Plan, Progress
from verfedsv.shapley.result import ShapleyResult
from verfedsv.shapley.semivalues import Semivalue, get_semivalue


def shapley_values(
    previous: ArrayLike | Sequence[ArrayLike],
    current: ArrayLike | Sequence[ArrayLike],
    labels: ArrayLike,
    loss: str | Loss = "logistic",
    method: Method = "auto",
    *,
    offset: ArrayLike | None = None,
    previous_offset: ArrayLike | None = None,
    head: Any = "sum",
    previous_head: Any = None,
    semivalue: str | Semivalue = "shapley",
    tolerance: float = 1e-3,
    n_permutations: int | None = None,
    antithetic: bool = False,
    standard_error: float | None = None,
    seed: int = 0,
    n_threads: int | None = None,
    progress: Progress | None = None,
    device: Device | None = None,
) -> ShapleyResult:
    """Return how much of one round's decrease of the loss each client is credited with, with error bounds.

    Args:
        previous: embeddings before the round, (clients, samples) or (clients, samples, classes). Any float type; read
            block by block, not copied as a whole.
            With a `head`, a list with an array (samples, width) of each client.
        current: embeddings after the round, shaped as `previous`.
        labels: one per sample: -1/+1 or 0/1 for the loss "logistic", 0..C-1 for "softmax", any numbers for "squared".
        loss: "logistic", "softmax", "squared" (half the squared distance), or a `Loss` of your own.
        method: "auto": the closed form, and if its proven error is above the tolerance, enumeration or sampling on
            the samples that cause it. "closed-form": linear in clients and samples, with a proven error for each
            client. "exact": all 2^players coalitions, up to 25 players: 24 clients if the server is a player too, see
            `previous_offset`. "permutation": the paper's Monte Carlo.
        offset: the server's own part of the summed embedding, such as an intercept, (samples,) or (samples, classes).
        previous_offset: the offset before the round, if the server changed it. The server is then one more player,
            whose value is `server_value`.
        head: how embeddings become what the loss takes: "sum", or a torch module, as it was after the round, that takes
            the embeddings of all clients concatenated, (samples, width), and gives (samples, classes) or (samples,). It
            is evaluated on a copy in float64, in evaluation mode. The closed form then states no error, and "auto"
            enumerates or samples. Errors of draws are proven for heads of common layers (torch.nn.Linear, ReLU, Tanh,
            GELU, ...), and for others rest on an assumption, which `error_kind` says.
        previous_head: the module before the round, or its `state_dict`, if the server changed its parameters. The
            server is then one more player, as with `previous_offset`.
        semivalue: "shapley", "banzhaf", "leave-one-out", "beta(a, b)" or `Beta(a, b)`. Only Shapley's has a
            closed form.
        tolerance: for "auto", the largest error allowed, relative to the largest value.
        n_permutations: for "permutation", the number of permutations; for "auto", the most permutations per sample, on
            average. By default ceil(100 M ln M) as in the paper, with M the number of players, and at least 2.
        antithetic: for "permutation", draw pairs of opposite order, which need fewer draws for the same error.
        standard_error: for "permutation", stop early once every standard error is at most this.
        seed: the same seed gives the same result.
        n_threads: by default all cores. The result does not depend on it.
        progress: called with the number of steps done and the total number of steps.
        device: "cuda" for the closed form on a GPU, with the extra `gpu`, "cpu", or "auto": a GPU if there is one. By
            default a GPU if the embeddings are in its memory, as tensors of PyTorch or arrays of CuPy are; they are not
            copied. Losses other than "logistic", "softmax" and scalar "squared", other methods, and samples whose error
            is too large are valued by the processor.

    Returns:
        A `ShapleyResult`: `values`, `errors`, `shares`, and how they were obtained.

    Raises:
        InputError: an argument is invalid.
        TooManyClientsError: "exact" was asked for with more than 25 players.

    Warns with ToleranceWarning if "auto" could not keep the tolerance. The first call with a loss or a float type
    compiles for a few seconds; the compiled code is kept on disk.

    Example:
        >>> import numpy as np
        >>> previous = np.zeros((2, 3))
        >>> current = np.array([[1.0, -1.0, 2.0], [0.0, 0.5, 0.5]])
        >>> result = shapley_values(previous, current, labels=[1, 0, 1])
        >>> result.values.round(4)
        array([ 0.4335, -0.0291])
    """
    game: RoundGame | HeadGame
    if isinstance(head, str) and head == "sum":
        if previous_head is not None:
            raise InputError("previous_head is the head before the round; also pass head, the one after it")
        game = _round_game(device, previous, current).from_arrays(
            _as_one(previous),
            _as_one(current),
            labels,
            loss,
            offset=offset,
            previous_offset=previous_offset,
            n_threads=n_threads,
        )
    else:
        if offset is not None or previous_offset is not None:
            raise InputError("a head has no offset: make the server's own part a layer of the head, or a client")
        game = HeadGame.from_arrays(previous, current, labels, loss, head, previous_head, n_threads=n_threads)  # type: ignore[arg-type]  # which it checks
    estimator = get_estimator(method, has_head=isinstance(game, HeadGame))
    tolerance = as_positive("tolerance", tolerance)
    n_permutations = default_permutations(game.n_players) if n_permutations is None else n_permutations
    plan = Plan(
        estimator,
        game.n_samples,
        as_whole("n_permutations", n_permutations, at_least=1),
        get_semivalue(semivalue),
        as_whole("seed", seed, at_least=0),
        antithetic,
        None if standard_error is None else as_positive("standard_error", standard_error),
        tolerance if estimator.adapts else None,
        progress=as_progress(progress),
    )
    estimator.check(plan.semivalue, game.n_players)
    result = _value(game, plan, tolerance)
    if result.tolerance_met is False:
        remains = describe_remaining_error(
            result.values, result.errors, result.error_kind, tolerance, plan.n_permutations
        )
        warn(remains, ToleranceWarning)
    return result


@dataclass
class _Tolerance:
    """Allows a single round errors of `tolerance` times the largest value."""

    tolerance: float
    n_attempts = 3
    n_asked = 0
    asked = np.inf

    def needed(self, values: Floats, errors: Floats) -> dict[int, Allowance]:
        """Return what the round is allowed; nothing if its errors are small enough, or more than twice what was asked.

        Refining may take several attempts: the largest value is known only roughly, and the number of draws is a guess.
        """
        wanted, worst = float(self.tolerance * np.abs(values).max()), errors.max()
        if worst <= wanted or worst > 2 * self.asked:
            return {}
        self.n_asked, self.asked = self.n_asked + 1, wanted
        return {0: Allowance.of_round(wanted * 0.8 ** (self.n_asked - 1), sampled=0.0)}


def _round_game(device: Device | None, previous: Any, current: Any) -> type[RoundGame]:
    """Return the game of a round that is valued on that device."""
    if device is None:
        takes = (is_on_gpu(previous) or is_on_gpu(current)) and why_no_gpu() is None
    else:
        takes = takes_gpu(device)
    if not takes:
        return RoundGame
    from verfedsv.shapley.gpu.game import RoundOnGpu

    return RoundOnGpu


def _as_one(embeddings: Any) -> Any:
    """Return embeddings unchanged; raise InputError if they are arrays of different widths."""
    if isinstance(embeddings, list | tuple):
        widths = {np.shape(own)[1:] for own in embeddings if np.ndim(own) > 0}
        if len(widths) > 1:
            raise InputError(
                "embeddings of different widths cannot be summed; pass head=, the torch module that takes them, "
                f"or arrays of one width; received widths {sorted(widths)}"
            )
    return embeddings


def _value(game: RoundGame | HeadGame, plan: Plan, tolerance: float) -> ShapleyResult:
    """Value a game as a training of one round."""

    def ask(plan: Plan) -> Estimate:
        return estimate_game(game, plan, plan.first_round, plan.refined.get(0)).as_round()

    found, (errors,) = estimate_rounds(ask, plan, game.n_clients, _Tolerance(tolerance), first_look=0)
    clients, has_server = slice(game.n_clients), game.n_players > game.n_clients
    values, errors_of_clients = found.values[0, clients], errors[clients]
    return ShapleyResult(
        values,
        errors_of_clients,
        found.kind,
        "+".join(sorted(found.methods)),
        str(plan.semivalue),
        -(-found.n_evaluations // game.n_samples),
        np.sqrt(found.variance[0, clients]) if is_confidence(found.kind) else None,
        None
        if plan.tolerance is None
        else keeps(plan.tolerance, values, errors_of_clients)
        or keeps(plan.tolerance, values, errors_of_clients, _mean_loss(game)),
        float(found.values[0, -1]) if has_server else 0.0,
        float(errors[-1]) if has_server else 0.0,
    )


def _mean_loss(game: RoundGame | HeadGame) -> float:
    """Return the mean loss before the round."""
    if isinstance(game, HeadGame):
        return game.mean_loss()
    sums = game.map_blocks(lambda block: float(game.loss.value(block.base(), block.labels).sum()))
    return sum(sums) / game.n_samples


def describe_remaining_error(
    values: Floats, errors: Floats, error_kind: ErrorKind, tolerance: float, n_permutations: int
) -> str:
    """Return the text of a ToleranceWarning."""
    more = f"more than n_permutations={n_permutations:,} or " if is_confidence(error_kind) else ""
    return (
        f"errors are up to {errors.max():.2g} and the largest value is {np.abs(values).max():.2g}, "
        f"which does not keep the tolerance of {tolerance:g}; allow {more}a larger tolerance"
    )
