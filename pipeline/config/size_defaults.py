"""What ``auto`` stands for, by the size of the problem.

A pure function of the pixels of each area: the plan calls it with estimates, the fit and the
evaluation with what ingest found. What users set is kept. ``docs/design/affordable.md`` has what
each setting costs in accuracy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.config.input_schema import FoldsFile
from pipeline.config.model_schema import UNSIZED, WARM_KINDS
from pipeline.config.schema import Config

SMALL_PIXELS = 300_000  # up to here nothing follows the size
FIT_PIXELS = 150_000  # of all areas together, in a larger fit
EVALUATE_PIXELS = 150_000  # likewise, in the fits and scores of its evaluation
LEAST_AREA_PIXELS = 25
SIMULATIONS = 2  # refits to simulated data in a small problem: a look
GATE_SIMULATIONS = 10  # where a gate reads them: two have a standard error of 8 points of 90 %
CALIBRATION_PIXELS = 8_000  # of all areas together, in each of these refits
WARM_EPOCHS = 60

SECTIONS = ("model", "fit", "evaluate")
SIZED_KEYS = {
    "model": ("inducing", "precision", "pair_pixels"),
    "fit": ("area_pixels",),
    "evaluate": ("area_pixels", "start", "epochs", "leave_out", "calibration"),
}


def sized(config: Config, area_pixels: np.ndarray) -> Config:
    """Replace each ``auto`` that follows the size by what it stands for.

    Parameters
    ----------
    config : Config
    area_pixels : (n_area,) array
        Pixels of each area.

    Returns
    -------
    Config
        Without such an ``auto``; a classifier of labels keeps its own defaults.
    """
    epochs = config.fit.max_epochs
    unsized = config.response_kind.unsized(epochs)
    if unsized:
        return _settled(config, unsized)
    large = float(np.sum(area_pixels)) > SMALL_PIXELS
    quick = large and config.model.kind in WARM_KINDS
    model = dict(UNSIZED)
    if config.model.kind in WARM_KINDS:
        del model["inducing"]  # auto follows the number of areas
    fitted: int | str = config.fit.area_pixels
    if large:
        model |= {"precision": "float32"}
        fitted = cap_for(area_pixels, FIT_PIXELS) if fitted == "auto" else fitted
        scored: int | str = cap_for(area_pixels, EVALUATE_PIXELS)
        scored = min(scored, fitted) if isinstance(fitted, int) else scored
    else:
        scored = fitted = "all" if fitted == "auto" else fitted
    leave_out = config.evaluate.leave_out
    if leave_out == "auto":
        leave_out = "importance" if config.model.kind in WARM_KINDS else "refit"
    start = config.evaluate.start
    brief = start == "warm" or (quick and start == "auto")
    if start == "auto":
        start = "warm" if quick or leave_out == "importance" else "cold"
    simulations: int | str = "none"
    if config.model.kind in WARM_KINDS and not large:
        simulations = SIMULATIONS if config.gates.pixel_coverage is None else GATE_SIMULATIONS
    return _settled(
        config,
        {
            "model": model,
            "fit": {"area_pixels": fitted},
            "evaluate": {
                "area_pixels": scored,
                "start": start,
                "epochs": min(epochs, WARM_EPOCHS) if brief else epochs,
                "leave_out": leave_out,
                "calibration": simulations,
            },
        },
    )


def cap_for(area_pixels: np.ndarray, total: float) -> int:
    """Return the most pixels an area may keep if all areas keep ``total`` at most, or nearly.

    Two digits, so that an estimate and a count of the same pixels mostly give the same number; at
    least ``LEAST_AREA_PIXELS``.

    Parameters
    ----------
    area_pixels : (n_area,) array
    total : float
    """
    sizes = np.sort(np.asarray(area_pixels, dtype=np.float64))
    n = sizes.size
    # If the k smallest areas keep all, the others share what is left.
    kept = np.concatenate([[0.0], np.cumsum(sizes)[:-1]])
    share = (total - kept) / np.arange(n, 0, -1)
    fits = np.flatnonzero(share <= sizes)
    cap = float(share[fits[0]]) if fits.size else float(sizes[-1])
    digit = 10.0 ** max(0, np.floor(np.log10(max(cap, 1.0))) - 1)
    return max(LEAST_AREA_PIXELS, int(cap // digit * digit))


def settings(config: Config) -> dict[str, dict[str, Any]]:
    """Return the settings that may follow the size, as a configuration names them.

    None for classifiers of labels, which keep their own defaults.
    """
    if config.response_kind.unsized(config.fit.max_epochs):
        return {}
    found: dict[str, dict[str, Any]] = {}
    for name in SECTIONS:
        section = getattr(config, name)
        found[name] = {key: getattr(section, key) for key in SIZED_KEYS[name]}
    found["fit"]["max_epochs"] = config.fit.max_epochs
    if not isinstance(config.evaluate.folds, FoldsFile):
        found["evaluate"]["folds"] = config.evaluate.folds
    found["evaluate"]["schemes"] = list(config.evaluate.schemes)
    found["output"] = {"draws": config.output.draws}
    return found


def _settled(config: Config, values: dict[str, dict[str, Any]]) -> Config:
    update = {}
    for name, given in values.items():
        section = getattr(config, name)
        autos = {key: value for key, value in given.items() if getattr(section, key) == "auto"}
        update[name] = section.model_copy(update=autos)
    return config.model_copy(update=update)
