"""Recording a round against writing the same bytes to a plain file with SHA-256 over them."""

from __future__ import annotations

import hashlib
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.measure import table
from verfedsv.transcript import Recorder

N_SAMPLES, N_CLIENTS, N_ROUNDS = 48_842, 8, 300


def run() -> str:
    """Measure, and return the table in Markdown: rounds of both kinds in turn, medians."""
    rows = []
    for batch in (500, 2_837, 6_173, 20_000):
        for dtype in (np.float32, np.float64):
            size, recorder, plain = measure(batch, dtype)
            print(f"  {batch:,} samples, {np.dtype(dtype)}: {plain / recorder:.2f} of the throughput of a plain file")
            rows.append(
                [
                    f"{batch:,}, {np.dtype(dtype)}",
                    f"{size / 1e3:.0f} kB",
                    f"{recorder * 1e6:.0f} µs",
                    f"{plain * 1e6:.0f} µs",
                    f"{plain / recorder:.2f}",
                ]
            )
    return table(["samples of a batch", "a round", "recorder", "plain file", "throughput, of the plain file's"], rows)


def measure(n_batch: int, dtype: type) -> tuple[int, float, float]:
    """Return the bytes of a round, and the median seconds to record it and to write and hash as many bytes."""
    rng = np.random.default_rng(0)
    clients = [f"client {i}" for i in range(N_CLIENTS)]
    batches = [rng.permutation(N_SAMPLES)[:n_batch] for _ in range(5)]
    embeddings = {client: rng.normal(size=n_batch).astype(dtype) for client in clients}
    times: tuple[list[float], list[float]] = [], []
    with tempfile.TemporaryDirectory() as folder:
        stream = Path(folder) / "run" / "uploads-00001.arrows"
        with (
            Recorder(stream.parent, rng.integers(0, 2, N_SAMPLES), clients) as recorder,
            (Path(folder) / "plain").open("wb", buffering=0) as file,
        ):
            recorder.log(batches[0], embeddings)
            before = stream.stat().st_size
            recorder.log(batches[0], embeddings)
            content = rng.bytes(stream.stat().st_size - before)
            digest = hashlib.sha256()
            for number in range(N_ROUNDS):
                begin = time.perf_counter()
                recorder.log(batches[number % 5], embeddings)
                between = time.perf_counter()
                digest.update(content)
                file.write(content)
                times[0].append(between - begin)
                times[1].append(time.perf_counter() - between)
    return len(content), float(np.median(times[0])), float(np.median(times[1]))
