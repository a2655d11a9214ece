"""Time of the evaluation: areas left out by weights and by fits, simulations, the truth."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from geo.core.errors import InputError
from geo.tables.registry import read_table
from models.aggregate.area_refit import N_EVALUATION
from models.aggregate.refinement import EVIDENCE_PIXELS
from pipeline.config.model_factory import new_model
from pipeline.config.schema import Config
from pipeline.config.size_defaults import CALIBRATION_PIXELS, cap_for
from pipeline.evaluation.fold_fits import FILLS, fits_begin_warm, may_regress
from pipeline.evaluation.forecasts import ORIGINS, PARTS
from pipeline.plan.fit_time import AVERAGED_S, TABLES, fit_seconds, reading, speed
from pipeline.plan.passes import GRID, fit_passes, n_explored
from pipeline.plan.probe import Probe
from pipeline.plan.sizes import Passage, Sizes
from pipeline.training.warm import lighten

# Seconds of one core, measured on the simulated countries (docs/plan.md).
STAGE_S = 0.3  # files opened and closed, tables, the report's text
HASH_BYTES_S = 6e8
THIN_S = 3e-7  # to choose those of an area that represent it: a pixel of it and column
WEIGH_S = 4e-6  # of importance weights: a draw and area
SCHEME_S, FOLD_S = 0.15, 0.03  # whatever their size: scores, processes, files
SIMULATED = 0.2  # of what joint draws of all areas take, to simulate counts of them
GUESSED_FOLDS = 5  # of a table that cannot be read
UPDATED = 2.0  # passes over a period of a series that takes in another one
PART_S = 0.03  # to draw the areas of a period in one of some parts, whatever their size


def thinning_seconds(sizes: Sizes, kept: Passage) -> float:
    """Return the seconds to choose the pixels that represent large areas, and to write them."""
    if kept.n_pixels == sizes.n_pixels:
        return 0.0
    return sizes.n_pixels * THIN_S * (sizes.n_covariates + 2) + kept.store_bytes / HASH_BYTES_S


def evaluate_seconds(config: Config, sizes: Sizes, read: Passage, measured: Probe, n: int) -> float:
    """Return the seconds at most: as many refits as may be, and of every region.

    Parameters
    ----------
    config : Config
        Sized.
    sizes : Sizes
    read : Passage
        Over the pixels that are scored.
    measured : Probe
    n : int
        Workers.
    """
    draw = read.n_pixels * (measured.draw or 0.0) + reading(read, 1)
    truth = sizes.n_pixels * (measured.predict or 0.0) if config.truth is not None else 0.0
    held = sizes.bytes["bags.zarr"] + sizes.bytes["grid.zarr"]
    seconds = STAGE_S + held / HASH_BYTES_S + truth / speed(n) + thinning_seconds(sizes, read)
    if config.series is not None:
        return seconds + _of_series(config, sizes, read, measured) + draw / speed(n)
    # What predict has drawn is read.
    drawn = read.n_pixels == sizes.n_pixels and config.response_kind.drawn
    seconds += measured.functions + (0.0 if drawn else draw / speed(n))
    return (
        seconds
        + _held_out(config, sizes, read, measured, n)
        + _simulated(config, sizes, measured, n)
    )


def _of_series(config: Config, sizes: Sizes, read: Passage, measured: Probe) -> float:
    """Seconds of the folds of one period, and of past forecasts."""
    # Areas are left out of one period, with the sites of the others as they are: a few passes at
    # the optimum and at each draw of the hyperparameters.
    model: Any = new_model(config)
    one = read.n_pixels * (measured.pixel or 0.0) + (measured.update or 0.0)
    refits = n_folds(config) * len(config.evaluate.schemes) * (1 + model.n_member) * UPDATED * one
    later = sizes.n_pixels * (measured.draw or 0.0) + measured.path + PARTS * PART_S
    before = sizes.periods.fitted * measured.path  # the filter, and the posterior of one period
    return refits + sizes.periods.scored * later + (1 + ORIGINS) * before


def _held_out(config: Config, sizes: Sizes, read: Passage, measured: Probe, n: int) -> float:
    """Seconds of all schemes."""
    schemes, k = config.evaluate.schemes, n_folds(config)
    if not schemes:
        return 0.0
    seconds = 0.0
    weights = config.evaluate.leave_out == "importance"
    at_once = _at_once(config, read, n)
    rounds = np.ceil(k / at_once)
    if may_regress(config, sizes.n_areas) and measured.evidence:
        # Around one evidence of all areas; a third of a chain makes the matrices.
        seconds += AVERAGED_S * min(read.n_pixels, EVIDENCE_PIXELS)
        seconds += (GRID + n_explored(2)) * measured.evidence + TABLES * measured.averages
        fold = N_EVALUATION * measured.evidence
        folds = dict.fromkeys(schemes, fold)
    else:
        cap, each = config.evaluate.area_pixels, max(1, n // at_once)
        drawn = measured.functions + read.n_pixels / k * (measured.draw or 0.0)
        folds = {
            scheme: fit_seconds(config, _again(config, sizes, cap, scheme), measured, each)
            * (1 - 1 / k)
            + drawn
            for scheme in schemes
        }
    for scheme in schemes:
        seconds += SCHEME_S + rounds * (folds[scheme] + FOLD_S)
        if weights and scheme == "area" and isinstance(config.evaluate.folds, int):
            seconds += config.output.draws * sizes.n_areas * WEIGH_S
    return seconds


def _simulated(config: Config, sizes: Sizes, measured: Probe, n: int) -> float:
    """Seconds of refits to simulated counts."""
    simulations = config.evaluate.calibration
    if not isinstance(simulations, int) or config.point_sources:
        return 0.0
    cap = cap_for(sizes.area_pixels, CALIBRATION_PIXELS)
    again = _again(config, sizes, cap, "simulated")
    at_once = min(_at_once(config, again.whole, n), simulations)
    one = fit_seconds(config, again, measured, max(1, n // at_once)) + FOLD_S
    one += again.whole.n_pixels * (measured.draw or 0.0) * (1 + SIMULATED) + measured.functions
    return thinning_seconds(sizes, again.whole) + np.ceil(simulations / at_once) * one


def _again(config: Config, sizes: Sizes, cap: int | str, what: str) -> Any:
    """Return the passes of a fit that only scores."""
    model: Any = new_model(config)
    epochs = config.evaluate.epochs
    most = getattr(model, "max_epochs", 1) if epochs == "auto" else epochs
    warm = fits_begin_warm(config)
    if warm:
        lighten(model)
    return fit_passes(config, sizes, model, cap, most, what if warm else None)


def _at_once(config: Config, read: Passage, n: int) -> int:
    """Return how many fits run at the same time, each in a process."""
    large = read.n_pixels > FILLS[0]
    return n if config.compute.scheduler == "local" and not large else 1


def n_folds(config: Config) -> int:
    """Return the number of folds."""
    folds = config.evaluate.folds
    if isinstance(folds, int):
        return folds
    with contextlib.suppress(InputError, KeyError):  # what is wrong with it is told elsewhere
        table, _ = read_table(folds.path, Path(folds.path).name)
        return max(1, int(table[folds.fold].nunique()))
    return GUESSED_FOLDS
