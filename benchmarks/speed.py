"""A pass over pixels beside its lower limit on this machine, and beside PyTorch.

    python -m benchmarks.speed [--pixels 20000] [--areas 200] [--inducing 576] [--repeats 5]

All cores, 18 covariates and two coordinates. As fits make them (:class:`FitPass`: all defaults but
the priors; float64, on the few pixels of each area that the climb reads; averages of areas):

* *step*: value and gradients by q(u), kernel matrices kept. Most passes of a fit.
* *slopes*: the same with the gradients by the kernel, matrices made anew.

As a fit by mini-batches makes it (:class:`BoundPass`: the paper's bound, ``inducing`` points), and
as predictions are made, in float64 and float32:

* *pass*: value and all gradients, those of inducing points included.
* *predict*: mean, deviation and three quantiles.

Limits count the products and exponentials that the result needs (:func:`needed`), at the rates of a
large product and of exponentials in the same run. If PyTorch is installed (``pip install
torch==2.13.0``; it is no dependency), it differentiates the same values on the same cores; runs
take turns, and the fastest of each counts. Processor time is less disturbed by other users than
clock time. The benchmark ends with an error where value or gradients differ from PyTorch's by more
than ``AGREES``, or where a pass is faster than its limit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.rates import exp_rate, gemm_rate, seconds_of
from benchmarks.report import RESULTS, parsed, write_results
from benchmarks.torch_pass import TorchBound, TorchFit
from models import Bags, VBAgg
from models.backend.blas import one_blas_thread
from models.core.block import BLOCK_BAGS
from models.training.executor import BagsSource, ThreadExecutor
from models.training.few_pixels import ALL_PIXELS, WholeSums
from models.training.loop import start_training

N_FEAT = 18
DTYPES = ("float64", "float32")
QUANTILES = (0.05, 0.5, 0.95)
#: Largest difference from PyTorch, relative to the largest entry of a gradient.
AGREES = {"float64": 1e-8, "float32": 2e-2}


def make_bags(n_pix: int, n_area: int, seed: int = 0) -> Bags:
    """Simulate counts of areas of equal numbers of pixels, each within 20 km."""
    rng = np.random.default_rng(seed)
    each = n_pix // n_area
    n_pix = each * n_area
    x = rng.normal(size=(n_pix, N_FEAT))
    coords = np.repeat(rng.uniform(-300, 300, (n_area, 2)), each, axis=0)
    coords += rng.uniform(-10, 10, (n_pix, 2))
    weight = rng.uniform(0, 50, n_pix)
    offsets = np.arange(0, n_pix + 1, each)
    mean = np.add.reduceat(weight * 0.1 * np.exp(0.5 * x[:, 0]), offsets[:-1])
    return Bags(x, offsets, rng.poisson(mean).astype(float), weight, coords)


class _Pass:
    """A model at a state that is neither its start nor its optimum, and who computes."""

    def __init__(self, model: VBAgg, bags: Bags, n_thread: int, tile: int, n_bag: int) -> None:
        self.model, self.bags, self.tile = model, bags, tile
        self.source = BagsSource(bags, 0, block_pixels=tile, block_bags=n_bag)
        state = start_training(model, self.source, seed=0, learning_rate=0.1, tolerance=1.0).state
        rng = np.random.default_rng(1)
        n_ind = state.params["v_mean"].size
        root = 0.02 * rng.normal(size=(n_ind, n_ind)) + np.diag(np.full(n_ind, np.log(0.3)))
        params = {**state.params, "v_mean": 0.3 * rng.normal(size=n_ind), "root": root}
        self.state = replace(state, params=params)
        self.executor = ThreadExecutor(model, self.source, n_thread)
        self.blocks = list(range(len(self.source.block_bags)))

    def close(self) -> None:
        """Stop the threads."""
        self.executor.__exit__()

    @property
    def n_ind(self) -> int:
        """Inducing variables."""
        return int(self.state.params["v_mean"].size)


class FitPass(_Pass):
    """The pass of a fit, with ``slopes`` by the kernel or for a step of q(u)."""

    def __init__(self, bags: Bags, n_thread: int, *, slopes: bool) -> None:
        super().__init__(VBAgg(priors="none"), bags, n_thread, 4096, BLOCK_BAGS)
        self.slopes = slopes
        self.sums = WholeSums(self.model, self.executor, self.blocks)
        self.cap = int(self.state.fixed["climb_pixels"][0]) or ALL_PIXELS
        self.few = self.sums.bags(self.state, self.cap)

    def run(self) -> Any:
        """Return value and gradients."""
        with one_blas_thread():
            stats = self.sums(self.state, self.cap, self.slopes)
            self.state = replace(self.state, params=dict(self.state.params))  # nothing is reused
            if self.slopes:
                self.model.forget_kernels()
            return self.model.objective(self.state, stats, self.bags.n_bag)

    def close(self) -> None:
        """Stop all threads."""
        self.sums.__exit__()
        super().close()

    def peer(self, dtype: str, n_thread: int) -> TorchFit:
        """Return PyTorch's."""
        del dtype
        return TorchFit(self.few, self.state, n_thread, slopes=self.slopes)


class BoundPass(_Pass):
    """Value and all gradients of the paper's bound, inducing points learnt."""

    def __init__(self, bags: Bags, n_ind: int, dtype: Any, n_thread: int) -> None:
        model = VBAgg(
            link="exp",
            estimator="bound",
            area_effect=False,
            kernel="additive",
            priors="none",
            n_inducing=n_ind,
            dtype=dtype,
            posterior_steps="adam",
            learn_inducing=True,
        )
        # Each thread gets the same number of equal blocks: a store has hundreds, here are few.
        super().__init__(model, bags, n_thread, -(-bags.n_pix // (2 * n_thread)), bags.n_bag)

    def run(self) -> Any:
        """Return value and gradients."""
        with one_blas_thread():
            total = self.executor.sum(self.model.block_params(self.state), self.blocks)
            self.state = replace(self.state, params=dict(self.state.params))  # nothing is reused
            return self.model.objective(self.state, total, self.bags.n_bag)

    def predict(self) -> list[Any]:
        """Return mean, standard deviation and three quantiles of every pixel."""
        params = self.model.block_params(self.state)

        def tile(start: int) -> Any:
            rows = slice(start, start + self.tile)
            predicted = self.model.predict_block(params, self.bags.x[rows], self.bags.coords[rows])
            return predicted.mean, predicted.sd, *(predicted.quantile(q) for q in QUANTILES)

        with one_blas_thread():
            return list(self.executor._pool.map(tile, range(0, self.bags.n_pix, self.tile)))

    def peer(self, dtype: str, n_thread: int) -> TorchBound:
        """Return PyTorch's."""
        return TorchBound(self.bags, self.state, dtype, n_thread)


def needed(name: str, side: Any) -> tuple[float, float]:
    """Return the flops of matrix products and the exponentials that a result needs.

    ``n`` pixels, ``M`` inducing variables, ``P`` pairs of pixels of an area. The variance needs
    ``K`` times a triangle of ``Q`` (``n M^2``), and its adjoint a triangle of ``K' diag(g) K``
    (``n M^2``). Pairs need a triangle of ``K Q K'`` and the product of their adjoint with ``K``,
    ``3 P M``. Slopes by the kernel need ``K Q`` whole (``n M^2`` more) and bring the adjoint of
    ``K`` by the pairs, ``2 n M^2``, and the kernel itself.
    """
    m = float(side.n_ind)
    if name == "predict":
        return side.bags.n_pix * m**2, 2 * side.bags.n_pix * m
    if name == "pass":
        return 4 * side.bags.n_pix * m**2, 2 * side.bags.n_pix * m
    n, pairs = side.few.n_pix, float((np.diff(side.few.offsets) ** 2).sum())
    flops, exps = 2 * n * m**2 + 3 * pairs * m, n + pairs / 2
    if name == "slopes":
        fixed = side.state.fixed
        lines = float(fixed["term_values"][1:-1].sum())
        averaged = float(fixed["term_values"][-1] * fixed["term_nodes"][-1])
        flops += 3 * n * m**2
        exps += n * (lines + 2 * averaged) + pairs / 2 * (N_FEAT + 2)
    return flops, exps


def measure(
    n_pix: int, n_area: int, n_ind: int, repeats: int, n_thread: int | None = None
) -> dict[str, Any]:
    """Time the passes and predictions beside their limits, and beside PyTorch if installed."""
    cores = n_thread or os.cpu_count() or 1
    bags = make_bags(n_pix, n_area)
    result: dict[str, Any] = {"n_pix": bags.n_pix, "n_area": n_area, "threads": cores}
    for dtype in DTYPES:
        with _sides(bags, n_ind, dtype, cores) as sides:
            runs: dict[str, Callable[[], Any]] = {}
            rows: dict[str, dict[str, float]] = {}
            for name, side in sides.items():
                runs[name] = side.predict if name == "predict" else side.run
                flops, exps = needed(name, side)
                rows[name] = {"n_ind": side.n_ind, "flops": flops, "exps": exps}
                peer = None if name == "predict" else _peer(side, dtype, cores)
                if peer is not None:
                    runs[f"{name}, PyTorch"] = peer.objective
                    found, (value, grads) = side.run(), peer.objective()
                    worst = difference(found.bound, found.grad, value, grads)
                    rows[name]["worst_difference"] = refused(
                        f"{dtype}, {name}", worst, AGREES[dtype]
                    )
            gemm, exp, times = _timed(runs, dtype, cores, repeats, min(3000, 4 * n_pix))
            for name, row in rows.items():
                _rate(f"{dtype}, {name}", row, gemm, exp, times[name])
                other = times.get(f"{name}, PyTorch")
                if other is not None:
                    row |= {"torch_seconds": other[0], "torch_cpu_seconds": other[1]}
                    row["times_as_fast_as_torch"] = other[0] / row["seconds"]
        result[dtype] = {"gemm_gflops": gemm / 1e9, "exp_per_ns": exp / 1e9, **rows}
    return result


@contextmanager
def _sides(bags: Bags, n_ind: int, dtype: str, cores: int) -> Iterator[dict[str, Any]]:
    bound = BoundPass(bags, n_ind, dtype, cores)
    sides: dict[str, Any] = {"pass": bound, "predict": bound}
    if dtype == "float64":  # fits to an optimum have no other
        own = {name: FitPass(bags, cores, slopes=name == "slopes") for name in ("step", "slopes")}
        sides = {**own, **sides}
    try:
        yield sides
    finally:
        for side in sides.values():
            side.close()


def _peer(side: Any, dtype: str, cores: int) -> Any:
    try:
        return side.peer(dtype, cores)
    except ImportError:
        return None


def _timed(
    runs: Mapping[str, Callable[[], Any]], dtype: str, cores: int, repeats: int, size: int
) -> tuple[float, float, dict[str, tuple[float, float]]]:
    """Return the rates of products and exponentials; the best clock and processor times."""
    times: dict[str, list[tuple[float, float]]] = {}
    gemm = exp = 0.0
    for _ in range(repeats + 1):  # the first warms up
        gemm, exp = max(gemm, gemm_rate(dtype, size)), max(exp, exp_rate(dtype, cores))
        for name, run in runs.items():
            # In a row: at first threads of the other library spin, and caches hold its data.
            times.setdefault(name, []).extend(_both_seconds(run) for _ in range(3))
    best = {
        name: (min(wall for wall, _ in each[3:]), min(cpu for _, cpu in each[3:]))
        for name, each in times.items()
    }
    return gemm, exp, best


def _rate(
    what: str, row: dict[str, float], gemm: float, exp: float, times: tuple[float, float]
) -> None:
    """Add times and shares of the limit to a row."""
    limit = row["flops"] / gemm + row["exps"] / exp
    row |= {"seconds": times[0], "cpu_seconds": times[1], "limit_seconds": limit}
    row["share_of_gemm"] = row["flops"] / gemm / times[0]
    row["share_of_limit"] = refused(what, limit / times[0], 1.0, "of a lower limit that is none")


def difference(
    bound: float, grad: Mapping[str, Any], value: float, grads: Mapping[str, Any]
) -> float:
    """Return the largest relative difference of value and gradients."""
    worst = abs(bound - value) / abs(value)
    for name, theirs in grads.items():
        theirs = np.tril(theirs) if name == "root" else theirs
        own = np.tril(grad[name]) if name == "root" else grad[name]
        worst = max(worst, float(np.abs(own - theirs).max() / np.abs(theirs).max()))
    return float(worst)


def refused(what: str, found: float, most: float, why: str = "differs from PyTorch's") -> float:
    """Return a figure, or end the benchmark where it is above what it may be."""
    if not found <= most:
        raise SystemExit(f"{what}: {found:.3g} {why}; at most {most:.3g}")
    return found


def _both_seconds(run: Callable[[], Any]) -> tuple[float, float]:
    """Return the clock seconds and the sum of processor seconds."""
    started = time.process_time()
    wall = seconds_of(run)
    return wall, time.process_time() - started


def main() -> None:
    """Measure, write the JSON and print the table."""
    options = parsed(__doc__, pixels=20_000, areas=200, inducing=576, repeats=5, results=RESULTS)
    result = measure(options.pixels, options.areas, options.inducing, options.repeats)
    write_results(options.results / "speed.json", result)
    columns = [(dtype, name) for dtype in DTYPES for name in result[dtype] if name in _NAMES]
    print(f"{'':26}" + "".join(f"{dtype + ' ' + name:>17}" for dtype, name in columns))
    for key in result["float64"]["step"]:
        found = (result[dtype][name].get(key, np.nan) for dtype, name in columns)
        print(f"{key:26}" + "".join(f"{value:17.3g}" for value in found))
    if "torch_seconds" not in result["float64"]["step"]:
        print("PyTorch is not installed: pip install torch==2.13.0 adds its rows")


_NAMES = ("step", "slopes", "pass", "predict")

if __name__ == "__main__":
    main()
