"""Estimate what a run will need: pixels, bytes, memory, arithmetic and time.

The estimate uses the configuration, headers and borders (:mod:`pipeline.plan.sizes`), a second's
measurement of this machine (:mod:`pipeline.plan.probe`) and constants that ``python -m
benchmarks.plan`` compares with real runs (``docs/plan.md``). It reads no pixel.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dask.utils import parse_bytes

from models.core.block import BLOCK_PIXELS
from pipeline.config.model_factory import new_model, resolved
from pipeline.config.schema import Config
from pipeline.config.size_defaults import settings, sized
from pipeline.plan.evaluation_time import HASH_BYTES_S, PART_S, evaluate_seconds, thinning_seconds
from pipeline.plan.fit_time import CLUSTER_STEP_S, epoch_seconds, fit_seconds, reading, speed
from pipeline.plan.memory import GIB, fit_bytes, n_values, peaks, series_file_bytes
from pipeline.plan.page import page_seconds
from pipeline.plan.passes import FitPasses, fit_passes
from pipeline.plan.probe import Probe, probe
from pipeline.plan.sizes import Passage, Sizes, measure_inputs, passage
from pipeline.prediction.period_table import BATCHES
from pipeline.products.periods import TOGETHER

# Seconds of one core, measured on the simulated countries (docs/plan.md). An alignment's is for a
# pixel of the grid, by its way; the others for a pixel and what stands beside them.
ALIGN_S = {
    "copy": 8e-9, "nearest": 8e-8, "bilinear": 1.2e-7, "cubic": 4e-7, "average": 5e-8,
    "sum": 5e-8, "warp": 2.3e-7, "points": 3.2e-6,
}  # fmt: skip
MEMBER_S, MEMBER_AREA_S = 3e-7, 1e-4  # a pixel in an area, an area
CUBE_S = 3.5e-8  # compressed and written: a pixel and raster
GATHER_S = 5.6e-8  # out of the aligned grid and into the store: a pixel in an area and column
MAP_S = 1.5e-7  # written, compressed, overviews: a pixel and map
MAP_FILES_S = 0.8  # of a further map: its styles, areas, levels, whatever its size
FETCH_BYTES_S = 2e7  # of a store or server; a guess that no machine's network tells
CUBED = 0.5  # of the bytes of maps: those of rates.zarr
START_S = 1.9  # of a command: imports; in the first stage of a run, whichever it is
#: Of the cost of all draws at a pixel, what one of few shares costs: random features and kernels.
SHARE = 0.58
STAGE_S, PREDICT_S = 0.3, 0.5  # of a stage: files opened and closed; of maps, tables, levels
CLUSTER_S = 3.0  # to start one


@dataclass(frozen=True)
class Stage:
    """One stage of a run.

    Attributes
    ----------
    name : str
    seconds : dict of int to float
        By number of workers; empty where the model does not let it be foreseen.
    peak_bytes : int
        Memory of the process that runs the stage, at most.
    """

    name: str
    seconds: dict[int, float]
    peak_bytes: int


@dataclass(frozen=True)
class RunPlan:
    """What a run will need.

    Attributes
    ----------
    sizes : Sizes
    probe : Probe
    workers : int
        That the estimates are for.
    stages : tuple of Stage
    epoch_seconds : dict of int to float
        Of one pass over all areas, by number of workers.
    max_epochs : int
    settings : dict
        What ``auto`` stands for, and what else a time to keep may change.
    fitted : Passage
        What an epoch of the fit reads.
    passes : FitPasses
        Of the fit.
    step_flops, epoch_flops, fit_flops : float or None
        ``4 n M^2`` for the pixels of a step, of a pass over all, of the fit.
    worker_bytes : int
        Memory of one worker process on a cluster.
    disk_bytes : int
        In ``output.dir`` at the worst moment.
    disk_free, memory : int
        Of this machine, bytes.
    pays : int
        Workers beyond which an epoch is quicker by less than a tenth for twice as many.
    warnings : tuple of str
    """

    sizes: Sizes
    probe: Probe
    workers: int
    stages: tuple[Stage, ...]
    epoch_seconds: dict[int, float]
    max_epochs: int
    settings: dict[str, dict[str, Any]]
    fitted: Passage
    passes: FitPasses
    step_flops: float | None
    epoch_flops: float | None
    fit_flops: float | None
    worker_bytes: int
    disk_bytes: int
    disk_free: int
    memory: int
    pays: int
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        sizes = self.sizes
        figures = {k: v for k, v in asdict(self).items() if k not in ("sizes", "stages")}
        return {
            "grid": {"shape": list(sizes.grid.shape), "pixels": sizes.grid.n_pix},
            "areas": sizes.n_areas,
            "pixels_in_areas": sizes.n_pixels,
            "largest_area_pixels": round(float(sizes.area_pixels.max())),
            "covariates": sizes.n_covariates,
            "blocks": sizes.n_blocks,
            "steps_an_epoch": self.fitted.n_steps,
            "bytes": dict(sizes.bytes),
            "stages": {stage.name: asdict(stage) for stage in self.stages},
            **figures,
        }


def plan_run(config: Config, workers: int | None = None) -> RunPlan:
    """Estimate what a run needs.

    Parameters
    ----------
    config : Config
    workers : int, optional
        Workers of one core each; as configured where not given.

    Returns
    -------
    RunPlan

    Raises
    ------
    geo.core.errors.InputError
        With everything that headers and tables show to be wrong.
    """
    sizes = measure_inputs(config)
    config = settled(config, sizes)
    whole = sizes.n_pixels / max(sizes.n_areas, 1)
    measured = probe(config, mean_pixels(config, sizes), sizes.n_bags, whole)
    return foresee(config, sizes, measured, workers)


def settled(config: Config, sizes: Sizes) -> Config:
    """Settle what follows the size, as the stages do."""
    if config.series is not None and config.evaluate.calibration == "auto":
        evaluate = config.evaluate.model_copy(update={"calibration": "none"})
        config = config.model_copy(update={"evaluate": evaluate})
    return sized(config, sizes.bag_pixels)


def foresee(config: Config, sizes: Sizes, measured: Probe, workers: int | None = None) -> RunPlan:
    """Estimate what a run needs from its sizes and a measurement: no input is read.

    Parameters
    ----------
    config : Config
        What follows the size is settled (:func:`pipeline.config.size_defaults.sized`).
    sizes : Sizes
    measured : Probe
        Of this configuration.
    workers : int, optional
    """
    cores = len(os.sched_getaffinity(0))
    given = config.compute.workers
    n = workers or (cores if given == "auto" else int(given))
    tried = sorted({1, 2, 4, cores, n})
    model: Any = new_model(config)
    epochs = getattr(model, "max_epochs", 1)
    passes = fit_passes(config, sizes, model, config.fit.area_pixels, epochs)
    fitted = passes.whole
    scored = passage(config, sizes, config.evaluate.area_pixels)
    epoch = {k: s for k in tried if (s := epoch_seconds(config, fitted, measured, k)) is not None}
    begun = _start(config, fitted) + thinning_seconds(sizes, fitted)
    seconds = {
        "ingest": {k: _ingest(sizes, k) for k in tried},
        "fit": {k: begun + fit_seconds(config, passes, measured, k) for k in epoch},
    }
    if measured.predict is not None or measured.draw is not None:
        seconds["predict"] = {k: _predict(config, sizes, measured, k) for k in tried}
        seconds["evaluate"] = {
            k: evaluate_seconds(config, sizes, scored, measured, k) for k in epoch
        }
    seconds["report"] = dict.fromkeys(tried, page_seconds(sizes))
    peak_of = peaks(config, sizes, model, n, measured)
    stages = tuple(
        Stage(name, {k: round(s, 2) for k, s in seconds.get(name, {}).items()}, peak_of[name])
        for name in ("ingest", "fit", "predict", "evaluate", "report")
    )
    n_inducing = measured.n_inducing or resolved(config, "inducing")
    flops = 4.0 * n_inducing**2 if measured.pixel is not None else None
    epoch_flops = None if flops is None else flops * fitted.n_pixels
    found = RunPlan(
        sizes=sizes,
        probe=measured,
        workers=n,
        stages=stages,
        epoch_seconds={k: round(s, 3) for k, s in epoch.items()},
        max_epochs=epochs,
        step_flops=None if epoch_flops is None else epoch_flops / fitted.n_steps,
        epoch_flops=epoch_flops,
        fit_flops=None if flops is None else flops * passes.n_pixels,
        passes=passes,
        settings=settings(config),
        fitted=fitted,
        worker_bytes=fit_bytes(
            config, sizes, model, 1, n_values(config, sizes, measured), driver=False
        ),
        disk_bytes=_disk(sizes)
        + (0 if config.series is None else series_file_bytes(sizes, model, measured)),
        disk_free=shutil.disk_usage(_standing(config.output.dir)).free,
        memory=_memory(config),
        pays=_pays(config, fitted, measured),
        warnings=(),
    )
    return RunPlan(**{**vars(found), "warnings": tuple(_warnings(config, found, cores, model))})


def _ingest(sizes: Sizes, n: int) -> float:
    held = sizes.bytes["bags.zarr"] + sizes.bytes["grid.zarr"]
    alone = START_S + STAGE_S + (2 * sizes.bytes["inputs"] + held) / HASH_BYTES_S
    alone += sizes.bytes["fetched"] / FETCH_BYTES_S
    alone += MEMBER_S * sizes.n_pixels + MEMBER_AREA_S * sizes.n_areas
    aligned = sum(ALIGN_S[way] * count for way, count in sizes.ways.items())
    shared = sizes.n_tile_pixels * (aligned + CUBE_S * sizes.n_layers)
    shared += sizes.n_pixels * GATHER_S * (sizes.n_layers + 3)
    # What moves is read again for every further period.
    again = (sizes.periods.fitted - 1) * sizes.periods.moving
    each = aligned / max(sum(sizes.ways.values()), 1)
    shared += again * (sizes.n_tile_pixels * (each + CUBE_S) + sizes.n_pixels * GATHER_S)
    return alone + shared / speed(n)


def mean_pixels(config: Config, sizes: Sizes) -> float:
    """Return the pixels of an area in most passes of the fit, on average."""
    model: Any = new_model(config)
    found = fit_passes(config, sizes, model, config.fit.area_pixels, 1)
    return found.few.n_pixels / found.few.n_areas


def _start(config: Config, read: Passage) -> float:
    """Seconds before the first step: the store's fingerprint, and landmarks clustered."""
    cluster = 0.0 if config.compute.scheduler == "local" else CLUSTER_S
    return STAGE_S + read.store_bytes / HASH_BYTES_S + cluster


def _predict(config: Config, sizes: Sizes, measured: Probe, n: int) -> float:
    mapped = min(sizes.n_pixels, sizes.n_tile_pixels)
    held = sizes.bytes["bags.zarr"] + sizes.bytes["grid.zarr"]
    alone = PREDICT_S + (held + 2 * sizes.bytes["maps"]) / HASH_BYTES_S
    periods = sizes.periods
    n_map = periods.mapped + periods.windows
    alone += n_map * sizes.n_maps * MAP_S * sizes.n_tile_pixels + (n_map - 1) * MAP_FILES_S
    alone += periods.drawn * BATCHES * PART_S
    alone += (periods.drawn + periods.mapped + periods.in_windows) * measured.path
    whole = passage(config, sizes, "all")
    read = sizes.n_tile_pixels * CUBE_S * sizes.n_covariates
    # The tables of levels, and reconciled maps, each draw all pixels once more.
    passes = 1 + (config.output.reconcile is not None) if config.response_kind.drawn else 0
    alone += measured.functions
    shared = 0.0
    for n_period in _groups(periods.mapped):
        draws, maps = measured.drawn(n_period), measured.predicted(n_period)
        rates = draws if measured.rate is None else measured.rate
        shared += n_period * (read + reading(whole, 1))
        shared += mapped * (maps + passes * rates) + sizes.n_pixels * draws
        # A forecast whose covariates are not known is mapped with those of several past periods.
        ahead = periods.ahead / periods.mapped
        shared += ahead * (periods.guesses - 1) * mapped * maps
        again = ahead * (_of_shares(periods.guesses) - 1)
        shared += again * (mapped * passes * rates + sizes.n_pixels * draws)
    if periods.drawn:
        shared += sizes.n_pixels * measured.drawn(periods.drawn)
        shared += periods.drawn * reading(whole, 1)
    if periods.windows:  # a pass each, over their periods together
        long = periods.in_windows / periods.windows
        ahead = periods.ahead_in_windows / periods.in_windows
        drawn = (1 + ahead * (_of_shares(periods.guesses) - 1)) * measured.drawn(long)
        maps = (1 + ahead * (periods.guesses - 1)) * measured.predicted(long)
        shared += periods.windows * mapped * (drawn + maps)
    return alone + shared / speed(n)


def _of_shares(n: int) -> float:
    """Return what shares of the draws cost, each with covariates of its own, beside all at once."""
    return 1.0 if n == 1 else SHARE * n


def _groups(n_map: int) -> list[int]:
    """Return how many periods share each pass over the tiles."""
    full, rest = divmod(n_map, TOGETHER)
    return [TOGETHER] * full + [rest] * (rest > 0)


def _pays(config: Config, read: Passage, measured: Probe) -> int:
    n = 1
    while n < 1024:
        now, twice = (epoch_seconds(config, read, measured, k) for k in (n, 2 * n))
        if now is None or twice is None or twice > 0.9 * now:
            break
        n *= 2
    return n


def _disk(sizes: Sizes) -> int:
    b = sizes.bytes
    stored = b["bags.zarr"] + b["grid.zarr"]
    # Drafts of all maps of a pass; a series has its maps in a cube as well.
    drafts = b["drafts"] * min(TOGETHER, sizes.periods.mapped)
    cube = b["maps"] * CUBED if sizes.periods.mapped > 1 else 0
    return stored + max(b["scratch"], b["maps"] + round(cube) + drafts)


def _standing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    while not path.exists():
        path = path.parent
    return path


def _memory(config: Config) -> int:
    if config.compute.memory != "auto":
        found: int = parse_bytes(config.compute.memory)
        return found
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _warnings(config: Config, plan: RunPlan, cores: int, model: Any) -> list[str]:
    sizes, warnings = plan.sizes, []
    limit = "compute.memory" if config.compute.memory != "auto" else "this machine"
    for stage in plan.stages:
        if stage.peak_bytes > plan.memory:
            remedy = _less_memory(config, stage.name)
            warnings.append(
                f"{stage.name} needs {_gib(stage.peak_bytes)}, and {limit} has "
                f"{_gib(plan.memory)}: {remedy}"
            )
    local = config.compute.scheduler in ("local", "processes")
    together = plan.workers * plan.worker_bytes
    if config.compute.scheduler == "processes" and together > plan.memory:
        warnings.append(
            f"{plan.workers} worker processes need {_gib(together)}, and this machine has "
            f"{_gib(plan.memory)}: give compute.workers: {max(1, plan.memory // plan.worker_bytes)}"
        )
    if plan.disk_bytes > plan.disk_free:
        warnings.append(
            f"{plan.disk_bytes / 1e9:.1f} GB of disk are needed in {config.output.dir}, and "
            f"{plan.disk_free / 1e9:.1f} GB are free: free some, or give another output.dir"
        )
    cache = _standing(config.storage.open().scratch_dir)
    if sizes.bytes["fetched"] > (free := shutil.disk_usage(cache).free):
        warnings.append(
            f"copies of inputs need {sizes.bytes['fetched'] / 1e9:.1f} GB more in {cache}, and "
            f"{free / 1e9:.1f} GB are free: free some, or give another storage.scratch"
        )
    if local and plan.workers > cores:
        warnings.append(
            f"{plan.workers} workers on the {cores} cores of this machine: more than {cores} are "
            "no faster"
        )
    if plan.epoch_seconds and plan.workers > plan.pays:
        warnings.append(
            f"{plan.workers} workers: more than {plan.pays} do not pay, for a step has only "
            f"{plan.fitted.n_blocks / plan.fitted.n_steps:.1f} blocks to share out and a part that "
            "the driver does alone; larger fit.batch_areas give a step more"
        )
    step = plan.epoch_seconds.get(plan.workers, 0.0) / plan.fitted.n_steps
    if config.compute.scheduler != "local" and 0 < step < 5 * CLUSTER_STEP_S:
        warnings.append(
            f"a step takes {1000 * step:.0f} ms, of which some {1000 * CLUSTER_STEP_S:.0f} are "
            "messages: compute.scheduler: local is as fast on one machine, or give larger "
            "fit.batch_areas"
        )
    biggest = float(sizes.area_pixels.max())
    if biggest > 20 * BLOCK_PIXELS:
        warnings.append(
            f"the largest area has {biggest:,.0f} pixels, which one worker computes alone in one "
            "piece: others wait for it"
        )
    if sizes.n_small:
        warnings.append(f"{sizes.n_small:,} areas are smaller than a pixel: give a finer grid")
    if model.sweep == "single":
        warnings.append(
            f"model.kind: {config.model.kind} holds all pixels in memory and its time cannot be "
            "foreseen; kinds that go block by block have no such limit"
        )
    if config.compute.device == "gpu":
        warnings.append("times are those of processors: a GPU's are not foreseen")
    return warnings


def _less_memory(config: Config, stage: str) -> str:
    if stage in ("predict", "evaluate") and config.response_kind.drawn:
        return f"give fewer than output.draws: {config.output.draws}, or a larger machine"
    if stage == "fit":
        return "give model.precision: float32, a smaller model.inducing, or fewer workers"
    return "give a coarser grid, or a larger machine"


def _gib(n: float) -> str:
    return f"{n / GIB:.1f} GiB"
