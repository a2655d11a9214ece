"""Scores of a fitted model against the truth of a simulated grid."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from benchmarks.grids import Grid
from pipeline.evaluation.scores import LEVELS, crps, pearson, pit_bounds, pit_coverage

N_SAMPLE = 200  # draws of each pixel, for its CRPS
N_DRAWS = 500  # joint draws, for areas
THRESHOLDS = (1.0, 2.0)  # times the country's mean rate


def score(model: Any, grid: Grid, rng: np.random.Generator) -> dict[str, Any]:
    """Score pixels, people, areas and coefficients of a fitted model.

    Parameters
    ----------
    model : fitted model
        With ``predict_pixels`` and ``sample_functions``.
    grid : Grid
    rng : numpy.random.Generator
        Of the draws.

    Returns
    -------
    dict
        ``pixels`` (see :func:`pixel_scores`), ``areas`` (see :func:`area_scores`), ``slopes``
        (covariate, true, mean, sd, z), ``hyperparameters``, ``range_km``.
    """
    functions = model.sample_functions(N_DRAWS, rng)
    draws = model.predict_bags(grid.bags(), draws=functions, observed=True).draws
    learnt = dict(model.named_hyperparameters())
    return {
        "pixels": pixel_scores(model.predict_pixels(grid.x, grid.coords), grid, rng),
        "areas": area_scores(draws, grid.expected),
        "slopes": slope_scores(model, grid),
        "hyperparameters": learnt,
        "range_km": spatial_range(learnt),
    }


def pixel_scores(prediction: Any, grid: Grid, rng: np.random.Generator) -> dict[str, Any]:
    """Score the predicted rates of pixels.

    Parameters
    ----------
    prediction : Prediction
        With ``mean``, ``exceed``, ``quantile`` and ``sample``.
    grid : Grid
    rng : numpy.random.Generator

    Returns
    -------
    dict
        ``coverage`` and ``coverage_people`` by level: shares of pixels and of people whose rate
        lies in the central interval. ``correlation`` and ``rmse`` of the log of the mean rate,
        ``rmse_median`` of the log of the median. ``crps`` in units of the country's mean rate.
        ``brier`` of exceedance, by the multiple of the country's mean rate that is exceeded.
        ``width``: mean of the log of the ratio of the ends of the 90 % interval.
    """
    country = float(grid.expected.sum() / grid.people.sum())
    truth = grid.rate
    # The transform of a continuous rate: where the truth lies in its predictive distribution.
    u = 1.0 - np.asarray(prediction.exceed(truth))
    share = grid.people / grid.people.sum()
    inside = {level: np.abs(u - 0.5) <= level / 2 for level in LEVELS}
    mean, median = np.log(prediction.mean), np.log(prediction.quantile(0.5))
    drawn = prediction.sample(N_SAMPLE, rng) / country
    width = np.log(prediction.quantile(0.95) / np.maximum(prediction.quantile(0.05), 1e-300))
    return {
        "coverage": {f"{level:g}": float(each.mean()) for level, each in inside.items()},
        "coverage_people": {f"{level:g}": float(share @ each) for level, each in inside.items()},
        "correlation": pearson(mean, np.log(truth)),
        "rmse": _rms(mean - np.log(truth)),
        "rmse_median": _rms(median - np.log(truth)),
        "crps": float(crps(drawn, truth / country).mean()),
        "brier": {
            f"{times:g}": float(
                np.mean((prediction.exceed(times * country) - (truth > times * country)) ** 2)
            )
            for times in THRESHOLDS
        },
        "width": float(width.mean()),
    }


def area_scores(draws: np.ndarray, expected: np.ndarray) -> dict[str, Any]:
    """Score joint draws of the areas' expected counts, (n_draws, n_area), against the true ones.

    Returns
    -------
    dict
        ``coverage`` by level; ``correlation`` and ``rmse`` of the log of the mean; ``total``: share
        of the draws whose country total is below the true one.
    """
    lower, upper = pit_bounds(draws, expected)
    error = np.log(draws.mean(axis=0)) - np.log(expected)
    return {
        "coverage": {f"{q:g}": float(pit_coverage(lower, upper, q).mean()) for q in LEVELS},
        "correlation": pearson(np.log(draws.mean(axis=0)), np.log(expected)),
        "rmse": _rms(error),
        "total": float((draws.sum(axis=1) < expected.sum()).mean()),
    }


def slope_scores(model: Any, grid: Grid) -> list[dict[str, float]]:
    """Return each slope of the kernel's linear part beside its truth; none where either lacks.

    Slopes are by the deviation of a covariate over the pixels of the grid.
    """
    if np.isnan(grid.slopes).any() or getattr(model, "link_name", "exp") != "exp":
        return []
    unit = model.state_.fixed["x_sd"]
    found = []
    for each in getattr(model, "coefficients_", []):
        if each.column >= grid.slopes.size:
            continue
        true = float(grid.slopes[each.column] * unit[each.column])
        found.append(
            {
                "covariate": each.column,
                "true": true,
                "mean": each.mean,
                "sd": each.sd,
                "z": (each.mean - true) / each.sd if each.sd > 0 else float("nan"),
            }
        )
    return found


def spatial_range(learnt: dict[str, float]) -> float | None:
    """Return the first length-scale of space among named hyperparameters, km."""
    names = (name for name in learnt if "space" in name and "lengthscale" in name)
    return next((float(learnt[name]) for name in names), None)


def convergence(model: Any) -> dict[str, Any]:
    """Return what a model says of its own convergence."""
    told = getattr(model, "convergence_", None)
    if is_dataclass(told) and not isinstance(told, type):
        told = asdict(told)
    return {
        "converged": bool(model.converged_),
        "epochs": len(model.history_),
        "bound": float(model.bound_),
        **({"report": told} if isinstance(told, dict) else {}),
    }


def _rms(error: np.ndarray) -> float:
    return float(np.sqrt(np.mean(error**2)))
