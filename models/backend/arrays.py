"""Array operations for NumPy and CuPy: the only module that depends on the library.

Every array operation of the models goes through the module that :func:`namespace` returns for its
arguments (NumPy, or CuPy when the arrays live on a GPU), or through a function of this file where
the two libraries differ. Nothing else in the tree imports CuPy.

Pixels, and what has one number a pixel or a bag, live on the device; parameters and CSR offsets are
NumPy arrays always, and :func:`like` takes the former there. ``docs/gpu.md`` has the whole picture.
"""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special


def namespace(*arrays: Any) -> ModuleType:
    """Return ``cupy`` if any argument lives on a GPU, else ``numpy``."""
    for array in arrays:
        if type(array).__module__.partition(".")[0] == "cupy":
            import cupy

            return cupy
    return np


def count_devices() -> int:
    """Return the number of GPUs that CuPy sees; 0 without CuPy, a driver or a card."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # CuPy without a driver raises errors of its own
        return 0


def _special(array: Any) -> ModuleType:
    if namespace(array) is np:
        return scipy.special
    import cupyx.scipy.special

    return cupyx.scipy.special


def to_host(array: Any) -> np.ndarray:
    """Copy to a NumPy array (no copy where it is one)."""
    xp = namespace(array)
    return np.asarray(array) if xp is np else xp.asnumpy(array)


def as_array(values: Any) -> Any:
    """Make an array of what users give; one of a device stays there."""
    return np.asarray(values) if namespace(values) is np else values


def like(array: np.ndarray, device: Any, dtype: Any = None) -> Any:
    """Bring ``array`` to where ``device`` (an array) lives, as ``dtype``."""
    return namespace(device).asarray(array, dtype=dtype)


# -- sums over bags --------------------------------------------------------------------------------

CHUNK = 256  # values that one row of a device's segmented sum adds up


@dataclass(frozen=True)
class _Layout:
    """CSR offsets as a device needs them.

    Attributes
    ----------
    bag : (n_pix,) int64 device array
        Bag of each pixel.
    rounds : list of (n_chunk, CHUNK) int64 device arrays
        Where the values of each chunk of a bag are; one beyond the last stands for none. Each
        round has the sums of the one before; after the last, a chunk is a bag.
    """

    bag: Any
    rounds: list[Any]


_layouts: dict[int, tuple[weakref.ref[np.ndarray], _Layout]] = {}


def _layout(offsets: np.ndarray, xp: ModuleType) -> _Layout:
    """Return the layout of a block's offsets, made once in the block's life."""
    key = id(offsets)
    kept = _layouts.get(key)
    if kept is not None and kept[0]() is offsets:
        return kept[1]
    sizes = np.diff(offsets)
    bag = np.repeat(np.arange(sizes.shape[0]), sizes)
    rounds, edges = [], offsets
    while True:
        counts = -(-np.diff(edges) // CHUNK)
        of = np.repeat(np.arange(counts.shape[0]), counts)
        within = np.arange(of.shape[0]) - np.repeat(np.cumsum(counts) - counts, counts)
        start = edges[:-1][of] + CHUNK * within
        stop = np.minimum(start + CHUNK, edges[1:][of])
        at = start[:, None] + np.arange(min(CHUNK, int(np.diff(edges).max())))
        rounds.append(xp.asarray(np.where(at < stop[:, None], at, edges[-1])))
        if counts.max() == 1:
            break
        edges = np.concatenate([[0], np.cumsum(counts)])
    made = _Layout(xp.asarray(bag), rounds)
    _layouts[key] = (weakref.ref(offsets, lambda _: _layouts.pop(key, None)), made)
    return made


def _by_chunks(values: Any, offsets: np.ndarray, reduce: str, nothing: float) -> Any:
    """Reduce each segment in rounds of a fixed order: the same bits every time.

    A running sum and its differences would lose what a bag's sum is small beside, and a device
    makes it in any order.
    """
    xp = namespace(values)
    for at in _layout(offsets, xp).rounds:
        none = xp.full((*values.shape[:-1], 1), nothing, dtype=values.dtype)
        values = getattr(xp.concatenate([values, none], axis=-1)[..., at], reduce)(axis=-1)
    return values


def segment_sum(values: Any, offsets: np.ndarray) -> Any:
    """Sum each CSR segment, in float64.

    Parameters
    ----------
    values : (n,) or (k, n) array
    offsets : (n_bag + 1,) NumPy int array, strictly increasing

    Returns
    -------
    (n_bag,) or (k, n_bag) float64 array
    """
    xp = namespace(values)
    values = values.astype(xp.float64, copy=False)
    if xp is np:
        return np.add.reduceat(values, offsets[:-1], axis=-1)
    return _by_chunks(values, offsets, "sum", 0.0)


def segment_max(values: Any, offsets: np.ndarray) -> Any:
    """Find the largest value of each CSR segment: (n,) -> (n_bag,)."""
    if namespace(values) is np:
        return np.maximum.reduceat(values, offsets[:-1])
    return _by_chunks(values, offsets, "max", -np.inf)


def add_at(total: Any, places: Any, values: Any) -> None:
    """Add ``values`` (n,) to ``total`` at ``places`` (n,), which may repeat; in place."""
    xp = namespace(total)
    total += xp.bincount(places, weights=values, minlength=total.shape[0])


def spread(values: Any, offsets: np.ndarray) -> Any:
    """Repeat the number of each bag, (n_bag,), for each of its pixels: (n_pix,)."""
    xp = namespace(values)
    if xp is np:
        return np.repeat(values, np.diff(offsets))
    return values[_layout(offsets, xp).bag]


# -- what the libraries do differently -------------------------------------------------------------


def ndtr(x: Any) -> Any:
    """Evaluate the standard normal distribution function."""
    return _special(x).ndtr(x)


def ndtri(x: Any) -> Any:
    """Evaluate the standard normal quantile function."""
    return _special(x).ndtri(x)


def gammaln(x: Any) -> Any:
    """Evaluate the log of the gamma function."""
    return _special(x).gammaln(x)


def digamma(x: Any) -> Any:
    """Evaluate the derivative of the log of the gamma function."""
    return _special(x).digamma(x)


def polygamma(order: int, x: Any) -> Any:
    """Evaluate the derivative of the digamma function of an order of 1 or more, for x > 0."""
    # By Hurwitz's zeta function, which is a ufunc in both libraries.
    return (-1.0) ** (order + 1) * math.factorial(order) * _special(x).zeta(order + 1.0, x)


def cholesky(a: Any) -> Any:
    """Return the lower Cholesky factor, or raise ``numpy.linalg.LinAlgError``."""
    xp = namespace(a)
    factor = xp.linalg.cholesky(a)
    if xp is not np and not bool(xp.isfinite(factor).all()):  # CuPy does not look
        msg = "the matrix is not positive definite"
        raise np.linalg.LinAlgError(msg)
    return factor


def is_positive_definite(a: Any) -> bool:
    """Return whether a symmetric matrix has a Cholesky factor."""
    try:
        cholesky(a)
    except np.linalg.LinAlgError:
        return False
    return True


def solve_lower(factor: Any, b: Any, *, transposed: bool = False) -> Any:
    """Solve ``L x = b`` (or ``L' x = b``) for a lower triangular ``L``."""
    trans = 1 if transposed else 0
    if namespace(factor) is np:
        return scipy.linalg.solve_triangular(factor, b, lower=True, trans=trans, check_finite=False)
    import cupyx.scipy.linalg

    return cupyx.scipy.linalg.solve_triangular(factor, b, lower=True, trans=trans)


def owens_t(h: Any, a: Any) -> Any:
    """Evaluate Owen's T function."""
    if namespace(h) is np:
        return scipy.special.owens_t(h, a)
    return like(scipy.special.owens_t(to_host(h), to_host(a)), h)


def row_dot(a: Any, b: Any) -> Any:
    """Return the inner product of each pair of rows: (n, k), (n, k) -> (n,).

    A device adds up in float64: it costs nothing beside reading the rows.
    """
    return np.vecdot(a, b) if namespace(a) is np else _row_dot()(a, b, axis=1)


@cache
def _row_dot() -> Any:
    import cupy

    return cupy.ReductionKernel(
        "T x, T y", "float64 z", "double(x) * double(y)", "a + b", "z = a", "0", "row_dot"
    )


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make an elementwise function one kernel on a device.

    Parameters
    ----------
    function : callable
        Of the namespace and of arrays and numbers: arithmetic and elementwise functions alone, no
        ``out=``, no shapes. On the host it is called as it is.

    Returns
    -------
    callable
        Of the arrays and numbers. Where the first array is of single precision, so is the result:
        numbers do not widen it.
    """
    twins: dict[int, Any] = {}

    def call(*args: Any) -> Any:
        xp = namespace(*args)
        if xp is np:
            return function(np, *args)
        if id(xp) not in twins:

            def own(*arrays: Any) -> Any:
                return function(xp, *arrays)

            name = function.__name__  # the kernel's: "<lambda>" does not compile
            own.__name__ = name if name.isidentifier() else "fused"
            twins[id(xp)] = xp.fuse(own)
        dtype = args[0].dtype
        narrow = [dtype.type(each) if isinstance(each, float) else each for each in args]
        made = twins[id(xp)](*narrow)
        if isinstance(made, tuple):
            return tuple(each.astype(dtype, copy=False) for each in made)
        return made.astype(dtype, copy=False)

    call.__name__, call.__doc__ = function.__name__, function.__doc__
    return call


def add_outer(a: Any, column: Any, row: Any, work: Any) -> None:
    """Add ``column row'`` to the matrix ``a`` (n, k) in place; ``work`` is of its shape."""
    # BLAS has a routine for this, but SciPy's call to it keeps other threads waiting.
    namespace(a).multiply(column[:, None], row[None, :], out=work)
    a += work


def square(a: Any) -> Any:
    """Return ``a' a`` for ``a`` (n, k).

    NumPy sees that both factors are one matrix and does half of the work (BLAS's rank-k update);
    unlike SciPy's call to the same routine it lets other threads run meanwhile.
    """
    return a.T @ a


_M_ARENA_MAX = -8  # of malloc.h


@cache
def keep_freed_memory() -> None:
    """Keep the memory of dead temporaries, of up to 31 MiB each, in the process; in few heaps.

    The GNU C library gives arrays of over 128 KiB back to the system when they die, and a new one
    faults its pages in again: 1 ms for 576 x 576 float64, a third of the driver's algebra. It
    learns otherwise from the largest array given back so far, if below 32 MiB: here is one, never
    written to. What a thread freed is kept for the threads of its heap, of which there would be
    eight a core, and which grew from fit to fit: now there is one, before the threads begin.
    Elsewhere this does nothing.
    """
    np.empty(31 << 20, dtype=np.uint8)
    adjust = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if adjust is not None:
        adjust(_M_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Give what :func:`keep_freed_memory` keeps back to the system, once a long piece is done.

    Temporaries of many sizes leave gaps: of a million pixels by twelve months, a third of what the
    process held. Elsewhere than under the GNU C library this does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def inverse_lower(factor: np.ndarray) -> np.ndarray:
    """Invert a lower triangular matrix of the driver: (k, k) float64."""
    inverse, info = scipy.linalg.lapack.dtrtri(factor.T, lower=0)
    if info:
        msg = "a triangular factor is singular"
        raise np.linalg.LinAlgError(msg)
    return np.ascontiguousarray(inverse.T)


def times_lower(factor: np.ndarray, b: np.ndarray, *, transposed: bool = False) -> np.ndarray:
    """Return ``L b`` (or ``L' b``) for a lower triangular ``L``, at half of a product's work."""
    # In Fortran's order everything is transposed: (L b)' = b' L', with L' upper there.
    out = scipy.linalg.blas.dtrmm(1.0, factor.T, b.T, side=1, lower=0, trans_a=int(transposed))
    return np.asarray(out.T)


def gram(a: np.ndarray) -> np.ndarray:
    """Return ``a' a`` of the driver's ``a`` (n, k) float64; see :func:`square`."""
    return np.asarray(square(a))


# -- the device of this process --------------------------------------------------------------------

ALIGNED = 256  # bytes
POOL_SHARE = 0.9  # of the device's free memory, that we may take


class Device:
    """The GPU of this process: a stream for arithmetic, one for copies, and its memory.

    Everything is allocated on the stream for arithmetic, and copies wait for what that had to do
    before: memory that is given back while kernels still read it, and handed out again, is then
    written to only when they have finished.

    Parameters
    ----------
    memory : int, optional
        Bytes that the pool may hold; nine tenths of what is free where not given.

    Attributes
    ----------
    name : str
        What its maker calls it.
    memory : int
        Bytes that the pool may hold.
    """

    def __init__(self, memory: int | None = None) -> None:
        os.environ["CUPY_TF32"] = "0"  # products of single precision, not of ten bits
        import cupy

        self._xp = cupy
        self._compute = cupy.cuda.Stream(non_blocking=True)
        self._copies = cupy.cuda.Stream(non_blocking=True)
        self.name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        free = int(cupy.cuda.runtime.memGetInfo()[0])
        self.memory = int(POOL_SHARE * free) if memory is None else memory
        cupy.get_default_memory_pool().set_limit(size=self.memory)

    def __enter__(self) -> Device:
        """Do what follows in this thread on the stream for arithmetic."""
        self._compute.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        """Return to the stream that was used before."""
        self._compute.__exit__(*exc)

    def put(self, array: np.ndarray) -> Any:
        """Bring an array to the device, on the current stream."""
        return self._xp.asarray(array)

    def buffer(self, n_byte: int) -> np.ndarray:
        """Return page-locked memory of the host, which copies need not wait for: uint8."""
        memory = self._xp.cuda.alloc_pinned_memory(max(n_byte, 1))
        return np.frombuffer(memory, np.uint8, max(n_byte, 1))

    def send(self, staged: np.ndarray) -> tuple[Any, Any]:
        """Start to copy page-locked bytes to the device; do not touch them until it is done.

        Returns
        -------
        array
            Of the device, uint8: to be read after :meth:`arrived`.
        event
            Of the copy.
        """
        with self._compute:
            target = self._xp.empty(staged.shape, dtype=np.uint8)
            before = self._compute.record()
        self._copies.wait_event(before)
        target.set(staged, stream=self._copies)
        return target, self._copies.record()

    def arrived(self, event: Any) -> None:
        """Have the arithmetic that comes next wait for a copy; the host does not."""
        self._compute.wait_event(event)

    def sent(self, event: Any) -> None:
        """Wait until a copy has been made: its buffer may be filled again."""
        event.synchronize()

    def finish(self) -> None:
        """Wait for all work."""
        self._copies.synchronize()
        self._compute.synchronize()

    def free(self) -> None:
        """Wait for all work, and give unused memory back to the device."""
        self.finish()
        self._xp.get_default_memory_pool().free_all_blocks()
