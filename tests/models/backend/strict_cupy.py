"""A strict stand-in for CuPy, on NumPy: what would fail on a GPU fails here.

``install`` puts modules named ``cupy`` and ``cupyx`` into ``sys.modules``, so that
``models.backend.arrays`` runs as it would with the real ones. As in
CuPy (and sometimes stricter: where CuPy copies in silence, this raises),

* an array never becomes a NumPy array by itself, and never mixes with one: not in arithmetic, not
  as an index, not as a value assigned;
* what CuPy lacks is not there (``repeat`` by an array, ``ufunc.reduceat``, ``vecdot``, SciPy's
  functions on device arrays), and reductions give arrays of no dimension, not numbers;
* ``fuse`` takes elementwise functions alone;
* a copy on a stream happens when somebody waits for it: what is read too early is NaN, and a
  page-locked buffer that is filled again too early sends the wrong block.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special

NAMES = """
abs absolute add all any arange argmax argmin argsort array_equal atleast_1d bincount bool_
broadcast_to ceil clip concatenate copysign cos cumsum diag diff divide dot einsum
empty_like equal exp expand_dims expm1 eye finfo flatnonzero float32 float64 floor greater
greater_equal inf int32 int64 invert isfinite isnan less less_equal log log1p logaddexp
logical_and logical_not logical_or matmul max maximum mean min minimum moveaxis multiply nan
nan_to_num negative newaxis nonzero not_equal ones_like outer pi power reshape sign sin sqrt
square squeeze stack subtract sum swapaxes take tan tanh tile transpose tril triu
true_divide vdot vstack where zeros_like full_like
"""
MODULES = (
    *("cupy", "cupy.cuda", "cupy.cuda.runtime", "cupy.linalg", "cupyx", "cupyx.scipy"),
    *("cupyx.scipy.special", "cupyx.scipy.linalg"),
)
SPECIAL = ("ndtr", "ndtri", "gammaln", "digamma", "expit", "logit", "log_ndtr", "erfcx", "zeta")


def _down(value: Any) -> Any:
    if isinstance(value, ndarray):
        return value._a
    if isinstance(value, np.ndarray):
        message = "Unsupported type <class 'numpy.ndarray'>"
        raise TypeError(message)
    if isinstance(value, list | tuple):
        return type(value)(_down(each) for each in value)
    return value


def _key(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_key(each) for each in value)
    if isinstance(value, np.ndarray | list):
        message = "an index array of the host: CuPy would copy it each time"
        raise TypeError(message)
    return _down(value)


def _up(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return ndarray(np.asarray(value))
    if isinstance(value, list | tuple):
        return type(value)(_up(each) for each in value)
    return value


def _lifted(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out")
        made = function(*_down(list(args)), **{k: _down(v) for k, v in kwargs.items()})
        return _up(made) if out is None else out

    call.__name__ = getattr(function, "__name__", "call")
    return call


class ndarray:
    """A device array; never a NumPy one."""

    __module__ = "cupy"
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, a: np.ndarray) -> None:
        self._a = a

    shape = property(lambda self: self._a.shape)
    dtype = property(lambda self: self._a.dtype)
    ndim = property(lambda self: self._a.ndim)
    size = property(lambda self: self._a.size)
    nbytes = property(lambda self: self._a.nbytes)
    T = property(lambda self: ndarray(self._a.T))

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        message = "Implicit conversion to a NumPy array is not allowed. Please use `.get()`"
        raise TypeError(message)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        own = sys.modules["cupy"]
        function = getattr(own, ufunc.__name__, None)
        function = function or getattr(own.scipy_special, ufunc.__name__, None)
        if function is None:
            return NotImplemented
        if "out" in kwargs:
            (kwargs["out"],) = kwargs["out"]
        return function(*inputs, **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        path = function.__module__.split(".")[1:]
        module = sys.modules["cupy"]
        for name in path:
            module = getattr(module, name, None)
        twin = getattr(module, function.__name__, None)
        return NotImplemented if twin is None else twin(*args, **kwargs)

    def get(self, out: Any = None) -> np.ndarray:
        return self._a.copy()

    def set(self, host: np.ndarray, stream: Any = None) -> None:
        if type(host) is not np.ndarray or host.dtype != self.dtype or host.shape != self.shape:
            message = "set takes a NumPy array of the same shape and dtype"
            raise TypeError(message)
        target = self._a
        (stream or Stream.null).run(lambda: np.copyto(target, host))

    def __getitem__(self, key: Any) -> Any:
        return _up(self._a[_key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, list | tuple):
            message = "Unsupported type"
            raise TypeError(message)
        self._a[_key(key)] = _down(value)

    def __iter__(self) -> Any:
        return (self[k] for k in range(len(self)))

    def __len__(self) -> int:
        return len(self._a)

    def __float__(self) -> float:
        return float(self._a)

    def __int__(self) -> int:
        return int(self._a)

    def __index__(self) -> int:
        return self._a.__index__()

    def __bool__(self) -> bool:
        return bool(self._a)

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        return ndarray(self._a.astype(dtype, copy=copy))

    def repeat(self, repeats: Any, axis: Any = None) -> Any:
        return _repeat(self, repeats, axis)

    def view(self, dtype: Any) -> Any:
        return ndarray(self._a.view(dtype))

    def item(self) -> Any:
        return self._a.item()

    def tolist(self) -> Any:
        return self._a.tolist()


for _name in (
    *("sum", "max", "min", "mean", "any", "all", "cumsum", "reshape", "ravel", "copy", "std"),
    *("transpose", "argmax", "argmin", "argsort", "take", "clip", "squeeze", "dot", "fill"),
):

    def _method(self: Any, *args: Any, _name: str = _name, **kwargs: Any) -> Any:
        return _lifted(getattr(np.ndarray, _name))(self, *args, **kwargs)

    setattr(ndarray, _name, _method)

for _name, _ufunc in {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide,
    "pow": np.power, "matmul": np.matmul, "and": np.bitwise_and, "or": np.bitwise_or,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal, "mod": np.remainder, "floordiv": np.floor_divide,
}.items():  # fmt: skip

    def _forward(self: Any, other: Any, _u: Any = _ufunc) -> Any:
        return _up(_u(self._a, _down(other)))

    def _backward(self: Any, other: Any, _u: Any = _ufunc) -> Any:
        return _up(_u(_down(other), self._a))

    def _in_place(self: Any, other: Any, _u: Any = _ufunc) -> Any:
        _u(self._a, _down(other), out=self._a, casting="same_kind")
        return self

    setattr(ndarray, f"__{_name}__", _forward)
    if _name not in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(ndarray, f"__r{_name}__", _backward)
        setattr(ndarray, f"__i{_name}__", _in_place)
ndarray.__neg__ = lambda self: _up(-self._a)  # type: ignore[attr-defined]
ndarray.__abs__ = lambda self: _up(abs(self._a))  # type: ignore[attr-defined]
ndarray.__invert__ = lambda self: _up(~self._a)  # type: ignore[attr-defined]


def _repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    if not isinstance(repeats, int | np.integer):
        message = "cupy.ndaray cannot be specified as `repeats` argument."
        raise TypeError(message)
    return _up(np.repeat(a._a, repeats, axis))


def _fill_diagonal(a: Any, value: Any) -> None:
    if isinstance(value, ndarray | np.ndarray):
        message = "fill_diagonal takes a number"
        raise TypeError(message)
    np.fill_diagonal(a._a, value)


def _searchsorted(a: Any, v: Any, side: str = "left") -> Any:
    if not isinstance(a, ndarray) or not isinstance(v, ndarray | int | float):
        message = "Only python scalars or ndarrays are supported for v"
        raise NotImplementedError(message)
    return _up(np.searchsorted(a._a, _down(v), side))


def _asarray(a: Any, dtype: Any = None) -> Any:
    if isinstance(a, ndarray):
        return a if dtype is None else a.astype(dtype, copy=False)
    if isinstance(a, list | tuple) and any(isinstance(each, ndarray) for each in a):
        return _up(np.stack([_down(each) for each in a]).astype(dtype))
    return ndarray(np.array(a, dtype=dtype))  # a copy: the host's array may change meanwhile


def _cholesky(a: Any) -> Any:
    try:
        return _up(np.linalg.cholesky(_down(a)))
    except np.linalg.LinAlgError:  # CuPy does not look, unless told to
        return _up(np.full(a.shape, np.nan))


def _solve_triangular(a: Any, b: Any, trans: int = 0, lower: bool = False) -> Any:
    if not (isinstance(a, ndarray) and isinstance(b, ndarray)):
        message = "Unsupported type"
        raise TypeError(message)
    return _up(scipy.linalg.solve_triangular(a._a, b._a, trans=trans, lower=lower))


class _Traced:
    """What a fused function sees: arithmetic and elementwise functions, nothing else."""

    __array_ufunc__ = None  # NumPy's own functions do not know it

    def __init__(self, a: Any) -> None:
        self.a = a


def _traced(function: Any) -> Any:
    def call(*args: Any) -> Any:
        plain = [each.a if isinstance(each, _Traced) else each for each in args]
        if any(isinstance(each, ndarray | np.ndarray) for each in plain[:0]):
            raise TypeError
        return _Traced(function(*plain))

    return call


for _name, _ufunc in {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide,
    "pow": np.power, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}.items():  # fmt: skip
    setattr(_Traced, f"__{_name}__", lambda self, other, _u=_ufunc: _traced(_u)(self, other))
    setattr(_Traced, f"__r{_name}__", lambda self, other, _u=_ufunc: _traced(_u)(other, self))
_Traced.__neg__ = lambda self: _traced(np.negative)(self)  # type: ignore[attr-defined]


class _Fusion:
    """``cupy.fuse(f)``: arrays of one shape after broadcasting in, as many out as ``f`` returns."""

    made: list[str] = []

    def __init__(self, function: Any) -> None:
        self._function = function
        if not function.__name__.isidentifier():  # it names the kernel
            message = f"{function.__name__} does not compile"
            raise TypeError(message)
        _Fusion.made.append(function.__name__)

    def __call__(self, *args: Any) -> Any:
        if not any(isinstance(each, ndarray) for each in args):
            return self._function(*args)
        for each in args:
            if not isinstance(each, ndarray | int | float | bool | np.generic):
                message = f"Invalid argument type for fusion: {type(each)}"
                raise TypeError(message)
        _Fusion.inside = True
        try:
            out = self._function(
                *(_Traced(each._a) if isinstance(each, ndarray) else each for each in args)
            )
        finally:
            _Fusion.inside = False
        if isinstance(out, tuple):
            return tuple(ndarray(np.asarray(each.a)) for each in out)
        return ndarray(np.asarray(out.a))

    inside = False


class _ReductionKernel:
    """``cupy.ReductionKernel`` for a sum; its C expression is read as Python."""

    def __init__(
        self,
        inputs: str,
        output: str,
        mapped: str,
        reduced: str,
        post: str,
        identity: str,
        name: str,
    ) -> None:
        if (reduced, identity) != ("a + b", "0"):
            message = "only sums are known here"
            raise ValueError(message)
        self._names = [each.split()[1] for each in inputs.split(",")]
        self._dtype, self._mapped = np.dtype(output.split()[0]), mapped

    def __call__(self, *args: Any, axis: Any = None) -> Any:
        values = dict(zip(self._names, map(_down, args), strict=True))
        values["double"] = np.float64
        each = eval(self._mapped, {}, values)
        return _up(each.sum(axis=axis, dtype=self._dtype))


class Event:
    def __init__(self, *, disable_timing: bool = False) -> None:
        self.stream: Any = None
        self.place = 0

    def record(self, stream: Any = None) -> None:
        self.stream = stream or Stream.null
        self.place = self.stream.queued

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.run_until(self.place)

    @property
    def done(self) -> bool:
        return self.stream is None or self.stream.done >= self.place


class Stream:
    """A queue of copies, each made when somebody waits for it; arithmetic is done at once."""

    null: Any

    def __init__(self, *, non_blocking: bool = False) -> None:
        self.queue: list[Any] = []
        self.queued = self.done = 0

    def run(self, task: Any) -> None:
        self.queue.append(task)
        self.queued += 1
        if self is Stream.null:
            self.synchronize()

    def run_until(self, place: int) -> None:
        while self.done < place:
            self.queue.pop(0)()
            self.done += 1

    def synchronize(self) -> None:
        self.run_until(self.queued)

    def record(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        event.synchronize()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


Stream.null = Stream()


class MemoryPool:
    def __init__(self) -> None:
        self.limit = 0

    def set_limit(self, size: int | None = None) -> None:
        self.limit = size

    def free_all_blocks(self) -> None:
        return None


class _Pinned(bytearray):
    """Page-locked memory."""


def install(monkeypatch: Any, *, n_device: int = 1, memory: int = 1 << 30) -> ModuleType:
    """Put the stand-in where ``import cupy`` finds it; undone by ``monkeypatch``."""
    made = {name: ModuleType(name) for name in MODULES}
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(made[parent], last, module)
    cupy: Any = made["cupy"]
    for name in NAMES.split():
        own = getattr(np, name)
        setattr(cupy, name, _fusable(own) if callable(own) and not isinstance(own, type) else own)
    cupy.ndarray = ndarray
    for name in ("empty", "zeros", "ones", "full"):
        setattr(cupy, name, _creating(name))
    cupy.asarray = cupy.array = cupy.ascontiguousarray = _asarray
    cupy.asnumpy = lambda a: a.get() if isinstance(a, ndarray) else np.asarray(a)
    cupy.repeat, cupy.fill_diagonal, cupy.searchsorted = _repeat, _fill_diagonal, _searchsorted
    cupy.fuse, cupy.ReductionKernel = _Fusion, _ReductionKernel
    made["cupy.linalg"].cholesky = _cholesky  # type: ignore[attr-defined]
    made["cupyx.scipy.linalg"].solve_triangular = _solve_triangular  # type: ignore[attr-defined]
    for name in SPECIAL:
        setattr(made["cupyx.scipy.special"], name, _fusable(getattr(scipy.special, name)))
    cupy.scipy_special = made["cupyx.scipy.special"]
    cuda: Any = made["cupy.cuda"]
    cuda.Stream, cuda.Event, cuda.alloc_pinned_memory = Stream, Event, _Pinned
    cuda.runtime.getDeviceCount = lambda: n_device
    cuda.runtime.memGetInfo = lambda: (memory, memory)
    cuda.runtime.getDeviceProperties = lambda _: {"name": b"stand-in"}
    pool = MemoryPool()
    cupy.get_default_memory_pool = lambda: pool
    return cupy


def _creating(name: str) -> Any:
    def create(shape: Any, *args: Any, **kwargs: Any) -> Any:
        a = getattr(np, name)(shape, *_down(list(args)), **kwargs)
        if name == "empty" and a.dtype.kind == "f":
            a.fill(np.nan)  # whatever was there before
        elif name == "empty" and a.dtype == np.uint8:
            a.fill(255)  # NaN again, to whom takes the bytes for numbers
        return ndarray(a)

    return create


def _fusable(function: Any) -> Any:
    plain, traced = _lifted(function), _traced(function)
    elementwise = isinstance(function, np.ufunc) or function in (np.where, np.clip)

    def call(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(each, _Traced) for each in args):
            if not elementwise or kwargs:
                message = f"{function.__name__} cannot be fused"
                raise TypeError(message)
            return traced(*args)
        return plain(*args, **kwargs)

    call.__name__ = function.__name__
    return call
