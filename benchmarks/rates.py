"""What this machine does at best: the lower limits that benchmarks measure against.

Each rate is the fastest of some repetitions, on as many threads as are given.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

EXPS = 512 * 256  # values of one call: an array that stays in the cache
BLOCK = 1 << 24  # bytes written at once


def seconds_of(run: Callable[[], object]) -> float:
    """Return the clock time of a call, s."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def gemm_rate(dtype: str, size: int = 3000) -> float:
    """Return the flops a second of one large matrix product, on the threads that BLAS has."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(size, size)).astype(dtype) for _ in range(2))
    return 2.0 * size**3 / seconds_of(lambda: a @ b)


def exp_rate(dtype: str, n_thread: int, repeats: int = 20) -> float:
    """Return the exponentials a second of arrays in the cache, on some threads."""
    values = np.random.default_rng(0).uniform(-20, 0, EXPS).astype(dtype)

    def work(_: int) -> None:
        out = np.empty_like(values)
        for _ in range(repeats):
            np.exp(values, out=out)

    with ThreadPoolExecutor(n_thread) as pool:
        seconds = min(seconds_of(lambda: list(pool.map(work, range(n_thread)))) for _ in range(3))
    return n_thread * repeats * EXPS / seconds


def write_rate(directory: Path, n_block: int = 8) -> float:
    """Return the bytes a second of one file, written and brought to the disk."""
    data = np.random.default_rng(0).bytes(BLOCK)
    path = directory / ".rate"

    def work() -> None:
        with path.open("wb") as file:
            for _ in range(n_block):
                file.write(data)
            os.fsync(file.fileno())

    try:
        return n_block * BLOCK / min(seconds_of(work) for _ in range(2))
    finally:
        path.unlink(missing_ok=True)


def zlib_rate(level: int = 6) -> float:
    """Return the bytes a second that zlib compresses of a smooth float32 map, on one thread."""
    y, x = np.mgrid[0:1024, 0:1024] / 200
    noise = np.random.default_rng(0).normal(size=x.shape)
    data = (np.sin(x) * np.cos(y) + 1e-3 * noise).astype(np.float32).tobytes()
    return len(data) / min(seconds_of(lambda: zlib.compress(data, level)) for _ in range(2))


def machine_rates(directory: Path, n_thread: int) -> dict[str, float]:
    """Measure all of them.

    Returns
    -------
    dict of str to float
        ``gemm_float64`` and ``gemm_float32``, flops a second; ``exp_float64`` and
        ``exp_float32``, values a second; ``write`` and ``zlib``, bytes a second, the latter of one
        thread; ``threads``.
    """
    both = ("float64", "float32")
    return {
        **{f"gemm_{dtype}": max(gemm_rate(dtype) for _ in range(2)) for dtype in both},
        **{f"exp_{dtype}": exp_rate(dtype, n_thread) for dtype in both},
        "write": write_rate(directory),
        "zlib": zlib_rate(),
        "threads": n_thread,
    }
