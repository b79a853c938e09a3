"""Sums over the samples of all threads.

The samples of a tile, one for each thread of a block, are added plainly, at most 64 terms, and all else with
compensation. Sums are in the order value, error, value, error, ... of the players, and then the decrease of the loss.
"""

from __future__ import annotations

from typing import Any

from numba import cuda

from verfedsv.compiled import add
from verfedsv.gpu.lanes import device, kernel, lane

compensated = lane(add)


@device
def add_tile(space: Any, n_samples: int, n_threads: int, strides: Any, sums: Any, lost: Any) -> None:
    """Add a tile of samples to `sums`, (2 players + 1,).

    `space`, shared by the threads, has so many numbers for each sample, and for each player of it, as `strides` say:
    first value and error of a player; and then the decrease. The sums are compensated by `lost`.
    """
    stride, width = strides
    n_rows = len(sums)
    cuda.syncthreads()
    for row in range(cuda.threadIdx.x, n_rows, n_threads):
        before, cut_off = sums[row], lost[row]
        at = row // 2 * width + row % 2
        total = 0.0
        for i in range(n_samples):
            total += space[i * stride + at]
        sums[row], lost[row] = compensated(before, cut_off, total)
    cuda.syncthreads()


@kernel
def add_blocks(sums: Any, result: Any) -> None:
    """Write the sums, (blocks, rows), over blocks, compensated; one thread for each row."""
    row = cuda.grid(1)
    if row < len(result):
        total, lost = 0.0, 0.0
        for block in range(len(sums)):
            total, lost = compensated(total, lost, sums[block, row])
        result[row] = total
