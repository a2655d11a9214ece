"""Variance of the aggregate of a large bag: all pairs, quadrature nodes, or the FITC split.

    python -m benchmarks.pairs [--pixels 6667] [--inducing 576] [--bags 4] [--results DIR]

The bags hold pixels with skewed exposures on a smooth covariate surface, under the additive kernel
and a posterior with about the contraction of a finished fit. For each method: the error of ``V``
relative to all pairs, and the seconds for ``V`` with all its adjoints (for the split: for its value
alone). Writes ``benchmarks/results/pairs.json`` and prints a table.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, parsed, write_results
from models.backend.blas import one_blas_thread
from models.gp import pixel_pass, sparse_gp
from models.gp.bag_variance import BagVariance, bag_variance
from models.gp.kernel_text import parse_kernel
from models.gp.sparse_gp import Whitened
from models.likelihoods.links import LINKS

NODES = (32, 64, 128, 256, 512, 1024)


def make(n_pix: int, n_ind: int, n_bag: int, seed: int = 0) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return a forward pass over bags of map-like pixels, their weights and offsets."""
    rng = np.random.default_rng(seed)
    kernel = parse_kernel("additive", 18, has_coords=True)
    theta = kernel.start(0.5)
    side = int(np.ceil(np.sqrt(n_pix)))
    row, col = np.divmod(np.arange(n_pix), side)
    z = np.empty((n_bag * n_pix, 20))
    wave = rng.normal(size=(18, 2))
    for bag in range(n_bag):
        # A bag is a square with a fifth of the country's side; covariates vary smoothly inside it.
        place = np.stack([row, col], axis=1) / side * 0.7 + rng.uniform(-1.5, 0.8, 2)
        part = z[bag * n_pix : (bag + 1) * n_pix]
        part[:, 18:] = place
        part[:, :18] = np.sin(place @ wave.T * 1.5 + rng.uniform(0, 6, 18)) * 1.2
        part[:, :18] += 0.2 * rng.normal(size=(n_pix, 18))
    w = z[rng.choice(len(z), n_ind, replace=False)]
    n_ind = w.shape[0]
    white = Whitened(0.5 * rng.normal(size=n_ind), np.diag(np.full(n_ind, np.log(0.6))))
    fac = sparse_gp.factorise(kernel.matrix(theta, w, w), white)
    params = {"theta": theta, "w": w, "mean": np.array([1.0]), "alpha": fac.alpha, "q": fac.q}
    params["lower_inv"], params["spread"] = fac.lower_inv, fac.spread
    p = np.exp(1.5 * rng.normal(size=len(z)))  # a few pixels hold most of the people
    return pixel_pass.forward(kernel, params, z), p, np.arange(n_bag + 1) * n_pix


def fitc_split(fwd: Any, p: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return ``V`` under the square link with ``S ~ diag(r) + K A K'`` (METHODS section 2)."""
    half = fwd.params["lower_inv"]
    inner = np.eye(half.shape[0]) - fwd.params["spread"]  # R R'
    out = []
    for lo, hi in pairwise(offsets):
        k = fwd.k[lo:hi] @ half.T
        explained = np.einsum("ij,jk,ik->i", k, inner, k, optimize=True)
        prior = np.einsum("ij,ij->i", k, k)
        r = fwd.kernel.diag(fwd.params["theta"], fwd.z[lo:hi]) - prior
        weight, m = p[lo:hi], fwd.m[lo:hi]
        kpk = inner @ (k.T @ (weight[:, None] * k))
        trace = (weight**2 * r * (r + 2 * explained)).sum() + np.einsum("ij,ji->", kpk, kpk)
        pm = weight * m
        kpm = k.T @ pm
        out.append(4 * ((pm**2 * r).sum() + kpm @ inner @ kpm) + 2 * trace)
    return np.array(out)


def by_theta(variance: BagVariance) -> np.ndarray:
    """Return the derivative of all bags' variances by the kernel's parameters."""
    return np.asarray(variance.backward(np.ones_like(variance.value))[2].d_theta)


def measure(n_pix: int, n_ind: int, n_bag: int) -> dict[str, Any]:
    """Compare the methods on ``n_bag`` bags of ``n_pix`` pixels."""
    rows: dict[str, Any] = {}
    bag = np.arange(n_bag)
    with one_blas_thread():
        fwd, p, offsets = make(n_pix, n_ind, n_bag)
        for name in ("square", "exp"):
            link = LINKS[name]
            started = time.perf_counter()
            exact = bag_variance(fwd, link, p, offsets, bag, n_pix)
            rows[f"{name} all pairs"] = {"seconds": time.perf_counter() - started, "error": 0.0}
            for n_node in (q for q in NODES if q < n_pix):
                started = time.perf_counter()
                found = bag_variance(fwd, link, p, offsets, bag, n_node)
                seconds = time.perf_counter() - started
                # The error of one bag, and its mean over other draws of nodes.
                error = np.concatenate(
                    [
                        bag_variance(fwd, link, p, offsets, bag + n_bag * k, n_node).value
                        / exact.value
                        - 1.0
                        for k in range(8)
                    ]
                )
                rows[f"{name} {n_node} nodes"] = {
                    "seconds": seconds,
                    "error": float(np.sqrt((error**2).mean())),
                    "bias": float(error.mean()),
                    "gradient_error": float(
                        np.linalg.norm(by_theta(found) - by_theta(exact))
                        / np.linalg.norm(by_theta(exact))
                    ),
                }
            if name == "square":
                started = time.perf_counter()
                split = fitc_split(fwd, p, offsets) / exact.value - 1.0
                rows["square FITC split"] = {
                    "seconds": time.perf_counter() - started,
                    "error": float(np.sqrt((split**2).mean())),
                    "bias": float(split.mean()),
                }
        started = time.perf_counter()
        pixel_pass.forward(fwd.kernel, fwd.params, fwd.z)
        rows["forward pass"] = {"seconds": time.perf_counter() - started}
    return {"n_pix": n_pix, "n_ind": n_ind, "n_bag": n_bag, "ways": rows}


def main() -> None:
    """Measure, write the JSON and print the table."""
    options = parsed(__doc__, pixels=6667, inducing=576, bags=4, results=RESULTS)
    result = measure(options.pixels, options.inducing, options.bags)
    write_results(options.results / "pairs.json", result)
    print(f"{'method':20} {'seconds':>8} {'error':>8} {'bias':>8} {'gradient':>9}")
    for name, row in result["ways"].items():
        figures = [row.get(key, float("nan")) for key in ("error", "bias", "gradient_error")]
        print(f"{name:20} {row['seconds']:8.2f} " + " ".join(f"{100 * f:7.2f}%" for f in figures))


if __name__ == "__main__":
    main()
