"""What a map of rates says, and its scores against a grid whose truth is known.

A map is a mean of each pixel, with a distribution where the method has one. All are scored the same
way: in units of the country's mean rate, and in logarithms.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import logsumexp, ndtr

from benchmarks.grids import Grid
from pipeline.evaluation.scores import crps, pearson, rmse

N_DRAWS = 400  # of each pixel, for the CRPS
LEVEL = 0.9
FLOOR = 0.01  # of the country's mean rate: what a map of zero or less stands for in logarithms
SAME = 1e-9  # of logarithms
UNITS = 0.5  # by which share a map's total may be off the counts; beyond it, units were mixed up


@dataclass(frozen=True)
class Answer:
    """A map of rates.

    Attributes
    ----------
    mean : (n_pix,) float64
        Cases per person.
    law : {"log_normal", "normal", "none"}
        Of the rate: a mixture of log-normal parts, one normal part, or a number alone.
    weights : (n_part,) float64
    centre, spread : (n_part, n_pix) float64
        Mean and deviation of each part, of the logarithm under ``log_normal``.
    cases : (n_pix,) float64, optional
        Expected cases of the pixels, where they are not people times ``mean``.
    """

    mean: np.ndarray
    law: Literal["log_normal", "normal", "none"] = "none"
    weights: np.ndarray | None = None
    centre: np.ndarray | None = None
    spread: np.ndarray | None = None
    cases: np.ndarray | None = None


def log_normal(centre: np.ndarray, spread: np.ndarray, weights: Any = (1.0,)) -> Answer:
    """Return a map of log-normal parts, each of the same pixels."""
    centre, spread = np.atleast_2d(centre), np.atleast_2d(spread)
    weights = np.asarray(weights, dtype=np.float64)
    mean = weights @ np.exp(centre + 0.5 * spread**2)
    return Answer(mean, "log_normal", weights, centre, spread)


def normal(mean: np.ndarray, sd: np.ndarray) -> Answer:
    """Return a map of normal rates."""
    return Answer(mean, "normal", np.ones(1), mean[None], sd[None])


def log_density(answer: Answer, rate: np.ndarray) -> np.ndarray:
    """Return the log density of each pixel's log rate, in nats: (n_pix,)."""
    at = np.log(rate) if answer.law == "log_normal" else rate
    z = (at - answer.centre) / answer.spread
    parts = -0.5 * z**2 - np.log(answer.spread) - 0.5 * np.log(2.0 * np.pi)
    density = logsumexp(parts + np.log(answer.weights)[:, None], axis=0)
    return density if answer.law == "log_normal" else density + np.log(rate)


def distribution(answer: Answer, rate: np.ndarray) -> np.ndarray:
    """Return the probability that each pixel's rate is at most ``rate``: (n_pix,)."""
    at = np.log(rate) if answer.law == "log_normal" else rate
    return np.asarray(answer.weights @ ndtr((at - answer.centre) / answer.spread))


def sample(answer: Answer, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw each pixel's rate by itself: (n, n_pix)."""
    n_pix = answer.mean.size
    part = rng.choice(answer.weights.size, (n, n_pix), p=answer.weights / answer.weights.sum())
    pixel = np.arange(n_pix)
    drawn = answer.centre[part, pixel]
    drawn = drawn + answer.spread[part, pixel] * rng.standard_normal(drawn.shape)
    return np.exp(drawn) if answer.law == "log_normal" else drawn


def scores(answer: Answer, grid: Grid, rng: np.random.Generator) -> dict[str, Any]:
    """Score a map against the truth.

    Returns
    -------
    dict
        ``correlation`` and ``rmse_log`` of the log of the mean rate. ``rmse`` and ``crps`` of
        rates, in units of the country's mean rate; the CRPS of a number is its absolute error.
        ``rmse_cases``: of the pixels' cases, in units of their mean. ``log_density``: mean over
        pixels, of the log rate. ``coverage`` of 90 % intervals and ``width``, their mean width in
        the logarithm. ``total``: cases of the map over those counted. Where a map has no
        distribution, ``log_density``, ``coverage`` and ``width`` are None.

    Raises
    ------
    SystemExit
        If the map's cases are so far from those counted that it is of other inputs or units.
    """
    country = float(grid.expected.sum() / grid.people.sum())
    total = float(answer.mean @ grid.people / grid.cases.sum())
    if not abs(total - 1.0) < UNITS:
        raise SystemExit(
            f"error: a map of {total:.3g} times the counted cases: not the same inputs"
        )
    seen = np.log(np.maximum(answer.mean, FLOOR * country))
    cases = answer.mean * grid.people if answer.cases is None else answer.cases
    true_cases = grid.rate * grid.people
    found = {
        # Of one number there is none, but for rounding.
        "correlation": pearson(seen, np.log(grid.rate)) if np.ptp(seen) > SAME else None,
        "rmse_log": rmse(seen, np.log(grid.rate)),
        "rmse": rmse(answer.mean, grid.rate) / country,
        "rmse_cases": rmse(cases, true_cases) / float(true_cases.mean()),
        "total": total,
        "crps": float(np.abs(answer.mean - grid.rate).mean() / country),
        "log_density": None,
        "coverage": None,
        "width": None,
    }
    if answer.law == "none":
        return found
    drawn = sample(answer, N_DRAWS, rng)
    low, high = np.quantile(np.maximum(drawn, FLOOR * country), [0.05, 0.95], axis=0)
    u = distribution(answer, grid.rate)
    return found | {
        "crps": float(crps(drawn / country, grid.rate / country).mean()),
        "log_density": float(log_density(answer, grid.rate).mean()),
        "coverage": float((np.abs(u - 0.5) <= LEVEL / 2).mean()),
        "width": float(np.log(high / low).mean()),
    }


def inputs(grid: Grid) -> str:
    """Return a hash of everything that a contestant is given."""
    held = hashlib.blake2b(digest_size=8)
    for each in (grid.x, grid.coords, grid.people, grid.offsets, grid.cases):
        held.update(np.ascontiguousarray(each).tobytes())
    return held.hexdigest()
