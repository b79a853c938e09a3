"""The closed form and completion on a GPU; `python -m benchmarks.gpu FILE.json` only measures."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv.arrays import Array, Floats
from verfedsv.completion import Completion
from verfedsv.completion.observations import Pattern
from verfedsv.gpu.devices import why_no_gpu
from verfedsv.losses import get_loss
from verfedsv.shapley.estimators import get_estimator
from verfedsv.shapley.plan import Plan
from verfedsv.threads import available_threads
from verfedsv.valuation.backends import CompiledLoops, Gpu
from verfedsv.valuation.budget import Budget
from verfedsv.valuation.chunks import Change, Chunk, Round
from verfedsv.valuation.completed import CompletionPlan, CompletionTask, complete_one

N_CLIENTS, N_CLASSES, N_ROUNDS, N_SAMPLES, RANK, BATCH = 14, 7, 500, 581_012, 4, 5_811
"""Covtype: 54 features of 14 clients, so four factors each; a round takes a hundredth of the samples."""

PART = 20
"""The processor values and completes one of so many samples or clients, as the whole would take minutes."""


def measure(path: Path) -> None:
    """Measure everything and write it as JSON after each part."""
    results: dict[str, Any] = {"device": device_name(), "processor": processor(), "parts": {}}
    for name, part in {"arrays": arrays, "factors": factors, "completion": completion}.items():
        results["parts"][name] = part()
        path.write_text(json.dumps(results, indent=1) + "\n")


def device_name() -> str:
    """Return the name of the GPU and the versions that matter."""
    import numba
    import numba_cuda
    from numba import cuda

    name = cuda.get_current_device().name
    name = name.decode() if isinstance(name, bytes) else name
    return f"{name}, numba-cuda {numba_cuda.__version__}, numba {numba.__version__}, NumPy {np.__version__}"


def processor() -> str:
    """Return the number of cores and what the processor is."""
    return f"{available_threads()} cores, {platform.machine()}"


def seconds_of(function: Callable[[], object], repeat: int = 10) -> float:
    """Return the median seconds that the GPU takes for a function, after a call that is not counted."""
    from numba import cuda

    took = []
    for _ in range(repeat + 1):
        begin, end = cuda.event(), cuda.event()
        begin.record()
        function()
        end.record()
        end.synchronize()
        took.append(cuda.event_elapsed_time(begin, end) / 1e3)
    return float(np.median(took[1:]))


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call and its seconds on the clock."""
    begin = time.perf_counter()
    result = function()
    return result, time.perf_counter() - begin


def random_numbers(shape: tuple[int, ...], scale: float, seed: int, dtype: Any = np.float64) -> Any:
    """Return numbers evenly spread over (-scale, scale), made on the GPU."""
    from numba import cuda, uint64

    @cuda.jit  # type: ignore[untyped-decorator]
    def fill(array: Any, scale: float, seed: int) -> None:
        for i in range(cuda.grid(1), len(array), cuda.gridsize(1)):
            z = uint64(i) * uint64(0x9E3779B97F4A7C15) + uint64(seed) * uint64(0xD1B54A32D192ED03)  # splitmix64
            z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
            z ^= z >> uint64(31)
            array[i] = scale * (2.0 * float(z >> uint64(11)) / 9007199254740992.0 - 1.0)

    array = cuda.device_array(shape, dtype)
    fill[4096, 256](array.reshape(array.size), scale, seed)
    return array


def copy_bandwidth(n_bytes: int = 2**33) -> float:
    """Return the bytes a second that a copy within the GPU's memory reads and writes."""
    from numba import cuda

    before, after = cuda.device_array(n_bytes, np.uint8), cuda.device_array(n_bytes, np.uint8)
    return 2 * n_bytes / seconds_of(lambda: after.copy_to_device(before))


def arrays() -> list[dict[str, Any]]:
    """Return the bandwidth of the closed form from arrays on the GPU, and its differences from the processor's."""
    copied = copy_bandwidth()
    return [
        of_arrays(loss, n_clients, n_classes, dtype, copied)
        for loss, n_clients, n_classes, dtype in (
            ("logistic", N_CLIENTS, 1, np.float64),
            ("logistic", N_CLIENTS, 1, np.float32),
            ("logistic", 100, 1, np.float64),
            ("softmax", N_CLIENTS, N_CLASSES, np.float64),
            ("softmax", N_CLIENTS, N_CLASSES, np.float32),
            ("softmax", N_CLIENTS, 3, np.float64),
        )
    ]


def of_arrays(
    loss: str, n_clients: int, n_classes: int, dtype: Any, copied: float, total: int = 2**30
) -> dict[str, Any]:
    """Return the figures for arrays of `total` embeddings before and after the round."""
    from verfedsv import shapley_values
    from verfedsv.gpu.memory import upload
    from verfedsv.shapley.gpu.closed_form import DeviceRound, launch_round

    n_samples = total // (n_clients * n_classes)
    rng = np.random.default_rng(0)

    def round_of(n_samples: int) -> tuple[Any, Any, Array]:
        shape = (n_clients, n_samples) if n_classes == 1 else (n_clients, n_samples, n_classes)
        labels = rng.integers(0, max(2, n_classes), n_samples)
        return random_numbers(shape, 0.3, 1, dtype), random_numbers(shape, 0.32, 2, dtype), labels

    small = round_of(50_000)
    found, first = timed(lambda: shapley_values(*small, loss, "closed-form"))
    on_host = small[0].copy_to_host(), small[1].copy_to_host(), small[2]
    expected = shapley_values(*on_host, loss, "closed-form")
    previous, current, labels = round_of(n_samples)
    own = upload(get_loss(loss).encode(labels, n_classes))
    flat = [array.reshape((n_clients, n_samples * n_classes)) for array in (previous, current)]
    offset = random_numbers((0, 1), 1.0, 1)
    kernel = seconds_of(lambda: launch_round(DeviceRound(flat[0], flat[1], offset, own), get_loss(loss), n_classes))
    _, whole = timed(lambda: shapley_values(previous, current, labels, loss, "closed-form"))
    n_bytes = 2 * previous.nbytes + own.nbytes
    result = {
        "loss": loss,
        "clients": n_clients,
        "classes": n_classes,
        "samples": n_samples,
        "type": np.dtype(dtype).name,
        "copy_bytes_per_second": copied,
        "bytes_per_second": n_bytes / kernel,
        "part_of_copy": n_bytes / kernel / copied,
        "kernel_seconds": kernel,
        "whole_call_seconds": whole,
        "first_call_seconds": first,
        "value_difference": largest_difference(found.values, expected.values),
        "error_difference": largest_difference(found.errors, expected.errors),
    }
    print(json.dumps(result), flush=True)
    return result


def largest_difference(found: Floats, expected: Floats) -> float:
    """Return the largest difference, of the largest expected number."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def covtype_like(n_samples: int, rank: int = RANK) -> Chunk:
    """Return completed rounds of the size of Covtype, of linear models that learn."""
    rng = np.random.default_rng(0)
    n_params = N_CLIENTS * rank
    steps = rng.normal(size=(N_ROUNDS, N_CLASSES, n_params)) / np.arange(4, N_ROUNDS + 4)[:, np.newaxis, np.newaxis]
    weights = 0.1 * np.cumsum(steps, axis=0)
    own = [slice(k * rank, (k + 1) * rank) for k in range(N_CLIENTS)]
    rounds = [Round([Change(k, None, w[:, part].copy()) for k, part in enumerate(own)]) for w in weights]
    factors = {k: rng.standard_normal((n_samples, rank)) for k in range(N_CLIENTS)}
    loss = get_loss("softmax")
    labels = loss.encode(rng.integers(0, N_CLASSES, n_samples), N_CLASSES)
    return Chunk(loss, labels, N_CLIENTS, np.zeros((N_CLIENTS + 1, n_samples, N_CLASSES)), rounds, factors)


def factors() -> list[dict[str, Any]]:
    """Return the time to value all rounds of Covtype from factors, transfer included, by rank."""
    return [of_factors(rank) for rank in (RANK, 10)]


def of_factors(rank: int) -> dict[str, Any]:
    """Return the figures for one rank; the processor values a part of the samples, and the same on the GPU."""
    plan = Plan(get_estimator("closed-form"), N_SAMPLES, n_permutations=1)

    def value(backend: CompiledLoops, chunk: Chunk) -> Floats:
        found = backend.value_rounds(chunk, plan, Budget(1e-3), available_threads())
        return np.stack([found.values, found.errors])

    chunk = covtype_like(N_SAMPLES, rank)
    part = chunk.part(slice(0, N_SAMPLES // PART), 0)
    on_gpu, first = timed(lambda: value(Gpu(), part))
    value(CompiledLoops(), chunk.part(slice(0, 1000), 0))  # compiles
    on_processor, of_part = timed(lambda: value(CompiledLoops(), part))
    took = [timed(lambda: value(Gpu(), chunk))[1] for _ in range(3)]
    result = {
        "rounds": N_ROUNDS,
        "clients": N_CLIENTS,
        "classes": N_CLASSES,
        "samples": N_SAMPLES,
        "rank": rank,
        "seconds": took,
        "first_call_seconds": first,
        "processor_samples": part.n_samples,
        "processor_seconds": of_part,
        "value_difference": largest_difference(on_gpu[0], on_processor[0]),
        "error_difference": largest_difference(on_gpu[1], on_processor[1]),
    }
    print(json.dumps(result), flush=True)
    return result


def completion() -> dict[str, Any]:
    """Return the time to complete the uploads of all clients, and that of one client on the processor."""
    rng = np.random.default_rng(0)
    batches: list[Array] = []
    while len(batches) < N_ROUNDS:
        order = rng.permutation(N_SAMPLES).astype(np.uint32)
        batches += [np.sort(order[first : first + BATCH]) for first in range(0, N_SAMPLES, BATCH)]
    del batches[N_ROUNDS:]
    steps = rng.normal(size=(N_ROUNDS, N_CLIENTS, RANK, N_CLASSES)) / np.arange(4, N_ROUNDS + 4).reshape(-1, 1, 1, 1)
    weights = 0.1 * np.cumsum(steps, axis=0)
    pattern, begin_pattern = timed(lambda: Pattern.from_batches(batches, N_SAMPLES))

    def uploads(k: int) -> list[Array]:
        own = rng.standard_normal((N_SAMPLES, RANK))
        return [(own[batch] @ weights[t, k]).astype(np.float32) for t, batch in enumerate(batches)]

    def complete(uploaded: list[Array], *, on_gpu: bool) -> Completion:
        values = pattern.sort(uploaded, N_CLASSES, available_threads())
        plan = CompletionPlan("auto", "auto", 0, available_threads(), (), on_gpu=on_gpu)
        return complete_one(CompletionTask(pattern, values, None, None), plan)

    first = uploads(0)
    _, first_call = timed(lambda: complete(first, on_gpu=True))
    complete(first, on_gpu=False)  # compiles
    expected, on_processor = timed(lambda: complete(first, on_gpu=False))
    found, again = timed(lambda: complete(first, on_gpu=True))
    took = [again]
    for k in range(1, N_CLIENTS):
        own = uploads(k)
        took.append(timed(lambda own=own: complete(own, on_gpu=True))[1])
    last = N_ROUNDS - 1
    result = {
        "rounds": N_ROUNDS,
        "clients": N_CLIENTS,
        "classes": N_CLASSES,
        "samples": N_SAMPLES,
        "observations": len(pattern.rounds),
        "rank": found.report.rank,
        "sweeps": found.report.n_sweeps,
        "same_choices": found.report.fit_sweeps == expected.report.fit_sweeps,
        "seconds": sum(took) + begin_pattern,
        "seconds_each": took,
        "first_call_seconds": first_call,
        "processor_seconds_one_client": on_processor,
        "embedding_difference": largest_difference(found.embeddings(last), expected.embeddings(last)),
    }
    print(json.dumps(result), flush=True)
    return result


def text(results: dict[str, Any]) -> str:
    """Return the part of the page: tables and sentences."""
    parts = results["parts"]
    rows = [
        [
            f"{each['loss']}, {each['clients']} clients x {each['samples']:,}"
            + (f" x {each['classes']} classes" if each["classes"] > 1 else "")
            + f", {each['type']}",
            f"{each['bytes_per_second'] / 1e12:.2f} TB/s",
            f"{each['part_of_copy']:.2f}",
            f"{each['first_call_seconds']:.1f} s",
            f"{max(each['value_difference'], each['error_difference']):.0e}",
        ]
        for each in parts["arrays"]
    ]
    header = ["arrays on the GPU", "read", "part of copy", "first call, compiling", "difference from the processor"]
    copied = parts["arrays"][0]["copy_bytes_per_second"] / 1e12
    valued = [
        f"rank {each['rank']}: {np.median(each['seconds']):.2f} s (the processor takes {each['processor_seconds']:.2f} "
        f"s for {each['processor_samples']:,} of the samples; largest difference {each['value_difference']:.0e})"
        for each in parts["factors"]
    ]
    done = parts["completion"]
    return (
        f"{results['device']}; beside it {results['processor']}. A copy within the GPU's memory reads and writes "
        f"{copied:.2f} TB/s.\n\n{table(header, rows)}\n\n"
        f"A run of the size of Covtype (500 rounds, 14 clients, 7 classes, 581,012 samples; random features), transfer "
        f"included. All rounds valued from factors, {'; '.join(valued)}. Completed: {done['seconds']:.1f} s for all "
        f"clients, {done['observations']:,} uploads of each, ranks and lambda chosen ({done['sweeps']} sweeps for the "
        f"first; the processor takes {done['processor_seconds_one_client']:.2f} s for that one, with the same choices; "
        f"embeddings differ by {done['embedding_difference']:.0e} of the largest)."
    )


def run() -> str | None:
    """Return the part of the page; None without a GPU."""
    if why_no_gpu() is not None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpu.json"
        measure(path)
        return text(json.loads(path.read_text()))


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    # Imported here: a machine with a GPU need not have what other benchmarks need.
    from benchmarks.measure import table as markdown

    return markdown(header, rows)


if __name__ == "__main__":
    if (reason := why_no_gpu()) is not None:
        sys.exit(f"nothing measured: {reason}")
    measure(Path(sys.argv[1]))
