"""The one place that knows which array library is in use.

Every array operation of the models goes through the module that :func:`namespace` returns for its
arguments (NumPy, or CuPy when the arrays live on a GPU), or through a function of this file where
the two libraries differ. Nothing else in the tree imports CuPy.
"""

from __future__ import annotations

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


def like(array: np.ndarray, device: Any, dtype: Any = None) -> Any:
    """Bring ``array`` to where ``device`` (an array) lives, as ``dtype``."""
    return namespace(device).asarray(array, dtype=dtype)


def segment_sum(values: Any, offsets: Any) -> Any:
    """Sum each CSR segment, in float64.

    Parameters
    ----------
    values : (n,) or (k, n) array
    offsets : (n_bag + 1,) int array, strictly increasing

    Returns
    -------
    (n_bag,) or (k, n_bag) float64 array
    """
    xp = namespace(values)
    values = values.astype(xp.float64, copy=False)
    if xp is np:
        return np.add.reduceat(values, offsets[:-1], axis=-1)
    total = xp.cumsum(values, axis=-1)
    total = xp.concatenate([xp.zeros_like(total[..., :1]), total], axis=-1)
    return total[..., offsets[1:]] - total[..., offsets[:-1]]


def segment_max(values: Any, offsets: Any) -> Any:
    """Find the largest value of each CSR segment: (n,) -> (n_bag,)."""
    xp = namespace(values)
    if xp is np:
        return np.maximum.reduceat(values, offsets[:-1])
    host = np.maximum.reduceat(to_host(values), to_host(offsets[:-1]))
    return xp.asarray(host)


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


def cholesky(a: Any) -> Any:
    """Return the lower Cholesky factor, or raise ``numpy.linalg.LinAlgError``."""
    return namespace(a).linalg.cholesky(a)


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
    """Return the inner product of each pair of rows: (n, k), (n, k) -> (n,)."""
    return np.vecdot(a, b) if namespace(a) is np else (a * b).sum(axis=1)


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


@cache
def keep_freed_memory() -> None:
    """Keep the memory of dead temporaries, of up to 31 MiB each, in the process.

    The GNU C library gives arrays of over 128 KiB back to the system when they die, and a new one
    faults its pages in again: 1 ms for 576 x 576 float64, a third of the driver's algebra. It
    learns otherwise from the largest array given back so far, if below 32 MiB: here is one, never
    written to. Elsewhere this does nothing.
    """
    np.empty(31 << 20, dtype=np.uint8)


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
