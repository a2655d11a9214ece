"""Memory that the stages of a run will need, of sizes and the configuration alone."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from models.core.block import BLOCK_PIXELS
from models.gp.average_covariance import RECENT, TABLE_BYTES
from models.gp.kept_kernels import BUDGET, WITH_BY_PRODUCTS
from models.training.few_pixels import BLOCK
from pipeline.config.model_factory import resolved
from pipeline.config.schema import Config
from pipeline.evaluation.fold_fits import most_at_once
from pipeline.plan.page import page_bytes
from pipeline.plan.passes import chained, climbs, explores, fit_passes, n_nodes
from pipeline.plan.probe import Probe
from pipeline.plan.sizes import PIXEL_BYTES, Sizes, passage
from pipeline.products.periods import TOGETHER
from pipeline.products.tile_pass import CHUNK_PIXELS, DRAWN_PIXELS, FEW_PIXELS, FEW_TILES
from pipeline.store.aligned_grid import TILE

GIB = 2**30
CACHE_BYTES = 256e6  # of decoded pixels that a store keeps, and of raster blocks that GDAL keeps
# Bytes, measured on the simulated countries (docs/plan.md).
BASE = {"ingest": 0.42, "fit": 0.5, "predict": 0.55}  # GiB of libraries
COPIES = 1  # of the sites of a series, besides: for past forecasts, or areas left out
FORK = 100e6  # of a process beside the stage's own: its heap
MEMBER_BYTES = 20  # of ingest: a pixel in an area
ARENA = 6  # arrays of a block's pixels by inducing values
BY_PRODUCTS, BARE = 6, 1.3  # of a pass that are kept for the next: of a pixel and inducing value
TABLES = 40  # of a term, between all areas, that a chain meets
HEAP = 1.3  # of what a fit holds, with what the heap keeps that was freed
ALGEBRA = 24  # matrices of inducing values by inducing values
SMOOTHED = 6  # of a period of a series: sites, covariances of two smoothers
MEMBER = 6  # matrices of inducing values by inducing values of a draw of the hyperparameters
AHEAD = 4  # arrays of predicted pixels by inducing values


def peaks(
    config: Config, sizes: Sizes, model: Any, n: int, measured: Probe | None = None
) -> dict[str, int]:
    """Return the memory of each stage's processes, bytes; a cluster's workers are besides.

    Parameters
    ----------
    config : Config
    sizes : Sizes
    model : Estimator
        As configured.
    n : int
        Workers.
    measured : Probe, optional
        It knows the number of inducing values, and what the smoother of a series keeps.
    """
    m = n_values(config, sizes, measured)
    threads = n if config.compute.scheduler == "local" else 1
    local = min(n, len(os.sched_getaffinity(0)))
    tile = min(TILE**2, sizes.grid.n_pix)
    ingest = BASE["ingest"] * GIB + MEMBER_BYTES * sizes.n_pixels
    ingest += local * tile * (16 * sizes.n_covariates + 64)
    ingest += min(CACHE_BYTES, sizes.bytes["inputs"])
    width = np.dtype(resolved(config, "precision")).itemsize
    fit = fit_bytes(config, sizes, model, threads, m)
    paths = 0
    if config.series is not None and measured is not None:
        paths = _series_bytes(sizes, model, measured)
        # The sites of the draws once more, while those of the last ones join them.
        joined = 8 * sizes.periods.fitted * model.n_member * _site_size(measured)
        fit += round(HEAP * (paths + joined))
    draws, maps = 0, min(TOGETHER, sizes.periods.mapped)
    if config.response_kind.drawn:  # of all areas, and of the pixels of the blocks in hand
        areas = sizes.n_areas * max(1, sizes.periods.drawn)
        draws = 8 * config.output.draws * (5 * areas + 4 * maps * local * DRAWN_PIXELS)
    predict = BASE["predict"] * GIB + draws + paths + min(CACHE_BYTES, sizes.bytes["bags.zarr"])
    most = FEW_PIXELS if len(list(sizes.grid.tiles(TILE))) < FEW_TILES else CHUNK_PIXELS
    predict += getattr(model, "n_member", 0) * 8 * MEMBER * m**2
    chunk = min(most, tile) * m * width * AHEAD
    tiles = maps if maps > 1 else local  # one of each map, or of one map as many as threads
    predict += local * chunk + tiles * tile * 4 * (sizes.n_covariates + 2 * sizes.n_maps)
    at_once = 1  # its fits, each a process beside the stage's own
    if config.compute.scheduler == "local":
        scored = passage(config, sizes, config.evaluate.area_pixels).n_pixels
        folds = config.evaluate.folds if isinstance(config.evaluate.folds, int) else local
        at_once = min(local, folds, most_at_once(round(scored), sizes.n_covariates))
    evaluate = predict
    if config.series is not None:
        evaluate += COPIES * paths
    elif config.evaluate.schemes:
        one = fit_bytes(config, sizes, model, 1, m, scores_alone=True)
        evaluate += at_once * (one - BASE["fit"] * GIB + FORK)
    found = {"ingest": ingest, "fit": fit, "predict": predict, "evaluate": evaluate}
    found["report"] = page_bytes(sizes)
    return {name: round(value) for name, value in found.items()}


def n_values(config: Config, sizes: Sizes, measured: Probe | None = None) -> int:
    """Return the inducing values that matrices of pixels have a column for.

    The effects of areas in a series have none.
    """
    known = 0 if measured is None else measured.n_shared or measured.n_inducing
    return known or n_nodes(config, sizes)


def _series_bytes(sizes: Sizes, model: Any, measured: Probe) -> int:
    """Return the memory of the sites and the smoother of all periods, bytes."""
    n_period = max(sizes.periods.fitted, sizes.periods.drawn)
    numbers = n_period * (SMOOTHED + model.n_member) * _site_size(measured)
    return round(8 * (measured.kept + numbers))


def series_file_bytes(sizes: Sizes, model: Any, measured: Probe) -> int:
    """Return the bytes of the model of a series on disk: the sites of each of its draws."""
    # Roots between shared values have half as many rows; loads have a column an area.
    site = measured.n_shared * (measured.n_inducing - measured.n_shared // 2)
    return 8 * sizes.periods.fitted * (1 + model.n_member) * site


def _site_size(measured: Probe) -> int:
    """Return the numbers of a site, or of the moments, of one period."""
    return measured.n_shared * measured.n_inducing  # none between the effects of two areas


def fit_bytes(
    config: Config,
    sizes: Sizes,
    model: Any,
    n_thread: int,
    m: int,
    *,
    scores_alone: bool = False,
    driver: bool = True,
) -> int:
    """Return the memory of a process that fits on some threads, bytes.

    Parameters
    ----------
    config : Config
    sizes : Sizes
    model : Estimator
    n_thread : int
    m : int
        Inducing values.
    scores_alone : bool, optional
        Whether the fit only scores areas: it ends on the pixels of the climb.
    driver : bool, optional
        Whether it is the driver's, which explores the evidence of the areas.
    """
    f = sizes.n_covariates
    found = BASE["fit"] * GIB + sizes.n_bags * (16 * f + 200)
    if model.sweep == "single":
        kept = passage(config, sizes, config.fit.area_pixels).n_pixels
        return round(found + 3 * kept * (4 * f + PIXEL_BYTES))
    cap = config.evaluate.area_pixels if scores_alone else config.fit.area_pixels
    found += min(CACHE_BYTES, sizes.bytes["bags.zarr"]) + 8 * ALGEBRA * m**2
    if not climbs(model):
        largest = float(sizes.area_pixels.max())
        block = max(BLOCK_PIXELS, largest if isinstance(cap, str) else min(cap, largest))
        width = np.dtype(resolved(config, "precision")).itemsize
        return round(found + n_thread * block * (m * width * ARENA + 8 * f))
    # A fit to an optimum has float64 whatever its maps have.
    passes = fit_passes(config, sizes, model, cap, 1)
    last, blocks = passes.few, [(BLOCK, passes.few.n_pixels)]
    if not scores_alone and passes.whole.n_pixels > passes.few.n_pixels:
        last = passes.whole
        blocks.append((BLOCK_PIXELS, last.n_pixels))
    arenas = 0.0
    for size, n_pix in blocks:
        busy = min(n_thread, np.ceil(n_pix / size))
        arenas += busy * 8 * min(size, n_pix) * m * ARENA
    n_count, evidence = passes.whole.n_areas, 0.0
    explored = explores(model, n_count) if config.series is None else chained(config, n_count)
    if driver and explored:
        evidence = (f + 2) * min(TABLE_BYTES, TABLES * 8.0 * n_count**2)
        if config.series is not None:
            evidence += (f + 2) * RECENT * 8.0 * n_count**2
    return round(found + HEAP * (max(_kept(last.n_pixels, m), evidence) + arenas))


def _kept(n_pixels: float, m: int) -> float:
    """Return the bytes of kernel matrices that are kept from pass to pass."""
    whole, bare, room = 8.0 * BY_PRODUCTS * m, 8.0 * BARE * m, WITH_BY_PRODUCTS * BUDGET
    with_all = min(n_pixels, room / whole)
    return min(BUDGET, with_all * whole + (n_pixels - with_all) * bare)
