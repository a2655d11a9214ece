"""A pass over pixels on a GPU beside its own matrix product, and an epoch over 100 million pixels.

    python -m benchmarks.gpu [--pixels 1000000] [--inducing 576] [--epoch-pixels 100000000]
                             [--repeats 5] [--results DIR]

* The pass: value and all gradients of the Lemma-1 bound (Poisson, exponential link, additive
  kernel, 18 covariates, float32 with float64 sums). Its blocks are already on the card. Its lower
  limit is ``4 n M^2`` flops at the rate of a large float32 product on the same card, TF32 off.
* The epoch: one epoch of the training loop, with the driver's algebra, over pixels in host memory.
  No block stays on the card: every block goes through page-locked memory.
* Agreement: value and every gradient of the pass in float32 beside float64 on the processor; a
  difference that is too large ends the benchmark with an error.

It needs a GPU, ``pip install 'disagg[gpu]'``, and about 13 GiB of memory at the default size. Runs
are repeated, and the fastest counts. Without a GPU it prints one line and ends with exit status 2.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.rates import seconds_of
from benchmarks.report import RESULTS, parsed, write_results
from benchmarks.speed import AGREES, refused
from models import VBAgg
from models.backend.arrays import Device, namespace
from models.backend.blas import one_blas_thread
from models.core.block import BagBlock, Bags
from models.core.errors import ParameterError
from models.core.protocol import Summary
from models.training.device import (
    DEVICE_PIXELS,
    DeviceSource,
    OnDevice,
    block_executor,
    find_device,
)
from models.training.executor import BagsSource, ThreadExecutor
from models.training.loop import start_training, train

N_FEAT, BAG_PIXELS = 18, 500
GEMM = 8192  # rows of the matrices of the reference product
STEP_BAGS = 4096  # bags of a step of the epoch
DRAWN = 1 << 20  # pixels simulated at a time


def make_bags(n_pix: int, seed: int = 0) -> Bags:
    """Simulate counts of bags of some 500 pixels."""
    rng = np.random.default_rng(seed)
    x, coords = rng.normal(size=(n_pix, N_FEAT)), rng.uniform(-300, 300, (n_pix, 2))
    weight = rng.uniform(0, 50, n_pix)
    offsets = np.unique(np.append(np.arange(0, n_pix, BAG_PIXELS), n_pix))
    mean = np.add.reduceat(weight * 0.1 * np.exp(0.5 * x[:, 0]), offsets[:-1])
    return Bags(x, offsets, rng.poisson(mean).astype(float), weight, coords)


class HostSource:
    """Many pixels in host memory; the blocks are views of them.

    Parameters
    ----------
    n_pix : int
        A multiple of the number of pixels of a bag.
    block_pixels : int
    """

    def __init__(self, n_pix: int, block_pixels: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.x = np.empty((n_pix, N_FEAT), np.float32)
        for start in range(0, n_pix, DRAWN):
            part = self.x[start : start + DRAWN]
            part[...] = rng.standard_normal(part.shape, dtype=np.float32)
        self.coords = rng.uniform(-300, 300, (n_pix, 2))
        self.weight = rng.uniform(0, 50, n_pix)
        n_bag = n_pix // BAG_PIXELS
        each = self.weight * np.exp(0.5 * self.x[:, 0])
        self.y = rng.poisson(0.1 * each.reshape(n_bag, -1).sum(axis=1)).astype(float)
        per_block = max(1, block_pixels // BAG_PIXELS)
        self._edges = np.append(np.arange(0, n_bag, per_block), n_bag)
        self.block_bags = np.diff(self._edges)

    def summary(self, rng: np.random.Generator) -> Summary:
        """See :class:`models.training.executor.BlockSource`."""
        rows = np.sort(rng.integers(0, self.x.shape[0], 20_000))
        x = self.x[rows].astype(np.float64)
        by_bag = self.weight.reshape(-1, BAG_PIXELS).sum(axis=1)
        return Summary(
            x, self.coords[rows], x.mean(axis=0), x.std(axis=0), self.y, by_bag, self.x.shape[0]
        )

    def read(self, number: int) -> BagBlock:
        """See :class:`models.training.executor.BlockSource`."""
        first, last = int(self._edges[number]), int(self._edges[number + 1])
        rows = slice(first * BAG_PIXELS, last * BAG_PIXELS)
        return BagBlock(
            self.x[rows],
            self.weight[rows],
            self.coords[rows],
            np.arange(last - first + 1) * BAG_PIXELS,
            self.y[first:last],
            np.arange(first, last),
        )

    def read_ahead(self, numbers: Any) -> None:
        """See :class:`models.training.executor.BlockSource`; the blocks are already in memory."""


def gemm_rate(device: Device, repeats: int, size: int = GEMM) -> float:
    """Return the flops a second of one large float32 matrix product on the card."""
    rng = np.random.default_rng(0)
    with device:
        a, b = (device.put(rng.normal(size=(size, size)).astype(np.float32)) for _ in range(2))
        out = namespace(a).empty((size, size), dtype=np.float32)

        def run() -> None:
            namespace(a).matmul(a, b, out=out)
            device.finish()

        return 2.0 * size**3 / min(seconds_of(run) for _ in range(repeats + 2))


def measure_pass(device: Device, n_pix: int, n_ind: int, repeats: int) -> dict[str, float]:
    """Time value and all gradients of blocks that are already on the card."""
    model, source, state, n_bag = _problem(n_pix, n_ind, "float32", DEVICE_PIXELS)
    n_ind = state.params["w"].shape[0]
    numbers = range(len(source.block_bags))
    params = model.block_params(state)
    with block_executor(model, source, 1, device) as executor:
        executor.sum(params, numbers)  # copies the blocks to the card, compiles the kernels
        seconds = min(seconds_of(lambda: executor.sum(params, numbers)) for _ in range(repeats))

        def with_driver() -> None:
            # A new dictionary, so that the pass cannot reuse results of the last call.
            at = replace(state, params=dict(state.params))
            model.objective(at, executor.sum(model.block_params(at), numbers), n_bag)

        with one_blas_thread():  # as fits do
            whole = min(seconds_of(with_driver) for _ in range(repeats))
    rate = gemm_rate(device, repeats, min(GEMM, max(64, n_pix)))
    floor = 4.0 * n_pix * n_ind**2 / rate
    return {
        "n_pix": n_pix,
        "n_ind": n_ind,
        "gemm_tflops": rate / 1e12,
        "pass_seconds": seconds,
        "pass_share_of_gemm": floor / seconds,
        "pass_with_driver_seconds": whole,
        "pass_with_driver_share_of_gemm": floor / whole,
    }


def measure_epoch(device: Device, n_pix: int, n_ind: int) -> dict[str, float]:
    """Time the second of two training epochs over pixels in host memory."""
    source = HostSource(n_pix - n_pix % BAG_PIXELS, DEVICE_PIXELS)
    model = VBAgg(
        link="exp",
        estimator="bound",
        area_effect=False,
        kernel="additive",
        priors="none",
        n_inducing=n_ind,
        dtype="float32",
        batch_bags=STEP_BAGS,
        posterior_steps="adam",  # an epoch is of mini-batches
    )
    training = start_training(model, source, **model.loop_params("start"))
    streamed: Any = DeviceSource(source, device, budget=0)
    there: Any = OnDevice(model, device)
    how = {**model.loop_params("train"), "max_epochs": 2}
    with ThreadExecutor(there, streamed, 3) as executor:
        train(model, source, executor, training, **how)
    n_byte = sum(a.nbytes for a in (source.x, source.coords, source.weight, source.y))
    return {
        "n_pix": source.x.shape[0],
        "n_ind": training.state.params["w"].shape[0],
        "host_gib": n_byte / 2**30,
        "first_epoch_seconds": training.history[0]["seconds"],
        "epoch_seconds": training.history[1]["seconds"],
        "steps": training.state.step // 2,
    }


def agreement(device: Device, n_pix: int, n_ind: int) -> float:
    """Return the largest relative difference of value and gradients from float64 on the host."""
    found = []
    for dtype, where in (("float64", None), ("float32", device)):
        model, source, state, n_bag = _problem(n_pix, n_ind, dtype, n_pix)
        with block_executor(model, source, 2, where) as executor:
            sums = executor.sum(model.block_params(state), range(len(source.block_bags)))
        found.append(model.objective(state, sums, n_bag))
    exact, low = found
    worst = abs(low.bound - exact.bound) / abs(exact.bound)
    for name, grad in exact.grad.items():
        worst = max(worst, float(np.abs(low.grad[name] - grad).max() / np.abs(grad).max()))
    return float(worst)


def _problem(n_pix: int, n_ind: int, dtype: Any, block_pixels: int) -> tuple[Any, Any, Any, int]:
    bags = make_bags(n_pix)
    model = VBAgg(
        link="exp",
        estimator="bound",
        area_effect=False,
        kernel="additive",
        priors="none",
        n_inducing=n_ind,
        dtype=dtype,
        posterior_steps="adam",  # natural steps are of float64
        learn_inducing=True,
    )
    source = BagsSource(bags, 0, block_pixels=block_pixels, block_bags=bags.n_bag)
    state = start_training(model, source, seed=0, learning_rate=0.1, tolerance=1.0).state
    rng = np.random.default_rng(1)
    n_ind = state.params["v_mean"].size
    root = 0.02 * rng.normal(size=(n_ind, n_ind)) + state.params["root"]
    params = {**state.params, "v_mean": 0.3 * rng.normal(size=n_ind), "root": root}
    return model, source, replace(state, params=params), bags.n_bag


def main() -> None:
    """Measure, write the JSON and print it."""
    options = parsed(
        __doc__, pixels=10**6, inducing=576, epoch_pixels=10**8, repeats=5, results=RESULTS
    )
    try:
        device = find_device("gpu")
    except ParameterError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    result: dict[str, Any] = {"device": device.name if device else ""}
    worst = agreement(device, min(20_000, options.pixels), options.inducing)
    result["worst_difference_from_float64"] = refused(
        "float32 on the device", worst, AGREES["float32"], "differs from float64 on the host"
    )
    result["pass"] = measure_pass(device, options.pixels, options.inducing, options.repeats)
    device.free()
    result["epoch"] = measure_epoch(device, options.epoch_pixels, options.inducing)
    write_results(options.results / "gpu.json", result)
    print(f"{device.name}: differs from float64 by {result['worst_difference_from_float64']:.1e}")
    for part in ("pass", "epoch"):
        for name, value in result[part].items():
            print(f"{part:6} {name:32} {value:12.5g}")


if __name__ == "__main__":
    main()
