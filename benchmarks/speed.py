"""A pass over pixels at the speed of the machine's matrix product, beside PyTorch.

    python -m benchmarks.speed [--pixels 20000] [--inducing 576] [--repeats 5] [--results DIR]

The Lemma-1 bound (Poisson, exponential link, additive ARD + Matern-3/2 kernel, 18 covariates, two
coordinates) on all cores, blocks of bags on threads:

* *fit*: the pass as a fit makes it most often, for a natural step of q(u): float64, kernel
  matrices kept. Its lower limit is ``3 n M^2`` flops: ``K Q``, and a triangle of ``K' diag(g) K``.
* *pass*: value and all gradients, those of inducing points included, in float64 and float32:
  ``4 n M^2``.
* *predict*: mean, deviation, three quantiles: ``n M^2``, by one triangle of ``Q``.

Limits are at the rate of a large matrix product in the same run. If PyTorch is installed (``pip
install torch==2.13.0``; it is no dependency), it differentiates the usual whitened Cholesky form on
the same cores. Runs are interleaved, and the fastest of each counts. Beside the clock time is the
processor time, which other users of the machine disturb less. The benchmark ends with an error
where the two sides differ, or where a figure is above its own limit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, parsed, write_results
from models import Bags, VBAgg
from models.backend.blas import one_blas_thread
from models.gp.sparse_gp import JITTER
from models.training.executor import BagsSource, ThreadExecutor
from models.training.few_pixels import asked
from models.training.loop import start_training

N_FEAT, BAG_PIXELS = 18, 500
DTYPES = ("float64", "float32")
QUANTILES = (0.05, 0.5, 0.95)
AGREES = {"float64": 1e-8, "float32": 2e-2}  # relative to the largest entry of a gradient


def make_bags(n_pix: int, seed: int = 0) -> Bags:
    """Simulate counts of bags of some 500 pixels."""
    rng = np.random.default_rng(seed)
    x, coords = rng.normal(size=(n_pix, N_FEAT)), rng.uniform(-300, 300, (n_pix, 2))
    weight = rng.uniform(0, 50, n_pix)
    offsets = np.unique(np.append(np.arange(0, n_pix, BAG_PIXELS), n_pix))
    mean = np.add.reduceat(weight * 0.1 * np.exp(0.5 * x[:, 0]), offsets[:-1])
    return Bags(x, offsets, rng.poisson(mean).astype(float), weight, coords)


class Ours:
    """A pass: blocks on threads, sums on the driver, the M x M chain rule.

    ``natural`` for a natural step, as most passes of a fit are; else with all gradients.
    """

    def __init__(
        self, bags: Bags, n_ind: int, dtype: Any, n_thread: int, *, natural: bool = False
    ) -> None:
        self.bags, self.natural = bags, natural
        self.model = VBAgg(
            link="exp",
            estimator="bound",
            area_effect=False,
            kernel="additive",
            priors="none",
            n_inducing=n_ind,
            dtype=dtype,
            posterior_steps="natural" if natural else "adam",
            learn_inducing=not natural,
        )
        # Each thread gets the same number of equal blocks: a store has hundreds, here are few.
        self.tile = -(-bags.n_pix // (2 * n_thread))
        self.source = BagsSource(bags, 0, block_pixels=self.tile, block_bags=bags.n_bag)
        state = start_training(
            self.model,
            self.source,
            seed=0,
            learning_rate=0.1,
            tolerance=1.0,
        ).state
        rng = np.random.default_rng(1)
        n_ind = state.params["w"].shape[0]
        root = 0.02 * rng.normal(size=(n_ind, n_ind)) + state.params["root"]
        params = {**state.params, "v_mean": 0.3 * rng.normal(size=n_ind), "root": root}
        self.state = replace(state, params=params)
        self.executor = ThreadExecutor(self.model, self.source, n_thread)

    def objective(self) -> Any:
        """Return value and gradients."""
        with one_blas_thread():
            params = self.model.block_params(self.state)
            if self.natural:
                params = asked(self.model, self.state, slopes=False)
            total = self.executor.sum(params, range(len(self.source.block_bags)))
            # A new dictionary, so that the pass cannot reuse results of the last call.
            self.state = replace(self.state, params=dict(self.state.params))
            return self.model.objective(self.state, total, self.bags.n_bag)

    def predict(self) -> list[Any]:
        """Return mean, standard deviation and three quantiles of every pixel."""
        params = self.model.block_params(self.state)
        edges = range(0, self.bags.n_pix, self.tile)

        def tile(start: int) -> Any:
            rows = slice(start, start + self.tile)
            predicted = self.model.predict_block(params, self.bags.x[rows], self.bags.coords[rows])
            return predicted.mean, predicted.sd, *(predicted.quantile(q) for q in QUANTILES)

        with one_blas_thread():
            return list(self.executor._pool.map(tile, edges))


class Torch:
    """The usual whitened Cholesky form, differentiated automatically."""

    def __init__(self, ours: Ours, dtype: str, n_thread: int) -> None:
        import torch

        torch.set_num_threads(n_thread)
        self.torch = torch
        kind = {"float64": torch.float64, "float32": torch.float32}[dtype]
        bags, state = ours.bags, ours.state
        fixed = state.fixed
        z = np.concatenate(
            [
                (bags.x - fixed["x_mean"]) / fixed["x_sd"],
                (bags.coords - fixed["coord_mean"]) / fixed["coord_scale"],
            ],
            axis=1,
        )
        self.z = torch.tensor(z, dtype=kind)
        self.y = torch.tensor(bags.y, dtype=kind)
        self.p = torch.tensor(bags.weight * float(fixed["base_rate"][0]), dtype=kind)
        self.bag = torch.tensor(np.repeat(np.arange(bags.n_bag), np.diff(bags.offsets)))
        self.leaves = {
            name: torch.tensor(value, dtype=kind, requires_grad=True)
            for name, value in state.params.items()
        }

    def objective(self) -> tuple[float, dict[str, Any]]:
        """Return value and gradients."""
        torch, at = self.torch, self.leaves
        for leaf in at.values():
            leaf.grad = None
        n_ind = at["w"].shape[0]
        k_ww = self._kernel(at["w"], at["w"])
        lift = JITTER * torch.trace(k_ww) / n_ind
        lower = torch.linalg.cholesky(k_ww + lift * torch.eye(n_ind, dtype=k_ww.dtype))
        root = torch.tril(at["root"], -1) + torch.diag(torch.exp(torch.diagonal(at["root"])))
        a = torch.linalg.solve_triangular(lower, self._kernel(at["w"], self.z), upper=False)
        m = at["mean"] + a.T @ at["v_mean"]
        variance = torch.exp(at["theta"][0]) + torch.exp(at["theta"][N_FEAT + 1])
        s = variance - (a * a).sum(0) + ((root.T @ a) ** 2).sum(0)
        n_bag = self.y.shape[0]
        zero = torch.zeros(n_bag, dtype=m.dtype)
        low = zero.index_add(0, self.bag, self.p * torch.exp(m))
        mean = zero.index_add(0, self.bag, self.p * torch.exp(m + 0.5 * s))
        bound = (self.y * torch.log(low) - mean - torch.lgamma(self.y + 1)).sum()
        kl = 0.5 * (
            (root**2).sum()
            + at["v_mean"] @ at["v_mean"]
            - n_ind
            - 2 * torch.diagonal(at["root"]).sum()
        )
        value = bound - kl
        value.backward()
        return float(value.detach()), {name: leaf.grad.numpy() for name, leaf in at.items()}

    def _kernel(self, a: Any, b: Any) -> Any:
        torch, theta = self.torch, self.leaves["theta"]
        scale = torch.exp(-theta[1 : N_FEAT + 1])
        ard = torch.exp(theta[0] - 0.5 * _squares(a[:, :N_FEAT] * scale, b[:, :N_FEAT] * scale))
        near = torch.exp(-theta[N_FEAT + 2])
        d2 = _squares(a[:, N_FEAT:] * near, b[:, N_FEAT:] * near)
        r = torch.sqrt(3 * d2.clamp_min(1e-12))
        return ard + torch.exp(theta[N_FEAT + 1]) * (1 + r) * torch.exp(-r)


def _squares(a: Any, b: Any) -> Any:
    return (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2 * a @ b.T


def gemm_rate(dtype: str, size: int = 3000) -> float:
    """Return the flops a second of one large matrix product on all cores."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(size, size)).astype(dtype) for _ in range(2))
    return 2.0 * size**3 / seconds_of(lambda: a @ b)


def measure(n_pix: int, n_ind: int, repeats: int, n_thread: int | None = None) -> dict[str, Any]:
    """Time the pass and predictions beside the lower limits, and beside PyTorch if installed."""
    cores = n_thread or os.cpu_count() or 1
    bags = make_bags(n_pix)
    result: dict[str, Any] = {"n_pix": n_pix, "n_ind": n_ind, "threads": cores}
    natural = Ours(bags, n_ind, "float64", cores, natural=True)
    for dtype in DTYPES:
        ours = Ours(bags, n_ind, dtype, cores)
        try:
            peer: Torch | None = Torch(ours, dtype, cores)
        except ImportError:
            peer = None
        worst = None if peer is None else agreement(ours, peer)
        if worst is not None and not worst < AGREES[dtype]:
            raise SystemExit(f"{dtype}: value or gradients differ from PyTorch's by {worst:.2g}")
        sides = {"pass": (ours, 4), "predict": (ours, 1)}
        if dtype == "float64":
            sides["fit"] = natural, 3
        times: dict[str, list[tuple[float, float]]] = {}
        rates = []
        for _ in range(repeats + 1):  # the first warms up
            rates.append(gemm_rate(dtype, min(3000, 4 * n_pix)))
            for name, run in _runs(ours, peer, natural if "fit" in sides else None).items():
                # In a row: at first threads of the other library spin, and caches hold its data.
                times.setdefault(name, []).extend(_both_seconds(run) for _ in range(3))
        best = {name: min(wall for wall, _ in each[3:]) for name, each in times.items()}
        busy = {name: min(cpu for _, cpu in each[3:]) for name, each in times.items()}
        row = {"gemm_gflops": max(rates) / 1e9}
        for name, (side, n_product) in sides.items():
            flops = n_product * n_pix * float(side.state.params["w"].shape[0]) ** 2
            share = flops / max(rates) / best[name]
            if share > 1.0:
                raise SystemExit(f"{dtype}, {name}: {share:.0%} of a lower limit that is none")
            row |= {f"{name}_seconds": best[name], f"{name}_cpu_seconds": busy[name]}
            row |= {f"{name}_share_of_gemm": share}
        if peer is not None:
            row["torch_seconds"] = best["torch"]
            row["torch_cpu_seconds"] = busy["torch"]
            row["times_faster_than_torch"] = best["torch"] / best["pass"]
            row["worst_difference_from_torch"] = worst
        result[dtype] = row
        ours.executor.__exit__()
    natural.executor.__exit__()
    return result


def agreement(ours: Ours, peer: Torch) -> float:
    """Return the largest relative difference of value and gradients."""
    found, (value, grads) = ours.objective(), peer.objective()
    worst = abs(found.bound - value) / abs(value)
    for name, grad in grads.items():
        grad = np.tril(grad) if name == "root" else grad
        own = np.tril(found.grad[name]) if name == "root" else found.grad[name]
        worst = max(worst, float(np.abs(own - grad).max() / np.abs(grad).max()))
    return float(worst)


def _runs(ours: Ours, peer: Torch | None, natural: Ours | None) -> dict[str, Callable[[], Any]]:
    runs: dict[str, Callable[[], Any]] = {"pass": ours.objective, "predict": ours.predict}
    if natural is not None:
        runs["fit"] = natural.objective
    if peer is not None:
        runs["torch"] = peer.objective
    return runs


def seconds_of(run: Callable[[], Any]) -> float:
    """Return the wall time of a call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _both_seconds(run: Callable[[], Any]) -> tuple[float, float]:
    """Return the clock seconds and the sum of processor seconds."""
    started = time.process_time()
    wall = seconds_of(run)
    return wall, time.process_time() - started


def main() -> None:
    """Measure, write the JSON and print the table."""
    options = parsed(__doc__, pixels=20_000, inducing=576, repeats=5, results=RESULTS)
    result = measure(options.pixels, options.inducing, options.repeats)
    write_results(options.results / "speed.json", result)
    names = [*result["float64"]]
    print(f"{'':28} {'float64':>10} {'float32':>10}")
    for name in names:
        print(f"{name:28} " + " ".join(f"{result[d].get(name, np.nan):10.3g}" for d in DTYPES))
    if "torch_seconds" not in names:
        print("PyTorch is not installed: pip install torch==2.13.0 adds its columns")


if __name__ == "__main__":
    main()
