"""How soon an outbreak is seen at one rate of false alarms: by the model, and by counts alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import nbinom, poisson
from sklearn.linear_model import PoissonRegressor

from pipeline.prediction.seasons import against_season

FIRST = 12  # the first month that has one of its season a year before it
AHEAD = 3  # months from a forecast to its month
UPPER = 0.75  # quantile of what was foreseen that an outbreak exceeds
FALSE, QUIET, ONSET = 0.05, 0.02, np.log(1.25)


def alarm_scores(model: Any, world: Any, n_draws: int = 200) -> dict[str, dict[str, float]]:
    """Return delay and share of the outbreaks that are seen, by way of looking.

    Every way looks at what was known in that month. Its threshold is the one that 5 % of the
    (area, month)s without an outbreak (less than 2 % of the rate) exceed. An outbreak begins where
    it adds a quarter to an area's rate; one that is never seen was seen after the last month.

    Parameters
    ----------
    model : SpaceTime
        Of the first months, at least those of the first forecast. Its hyperparameters may be those
        of all.
    world : benchmarks.months.World
    n_draws : int
        Functions from which the model's probabilities are taken.

    Returns
    -------
    dict of str to dict
        ``delay`` in months, ``seen``, and ``outbreaks``, the number of areas that have one.
    """
    n_month, n_area = world.missing.shape
    ways = ("model_season", "model_forecast", *COUNTED)
    scores = {name: np.full((n_month, n_area), np.nan) for name in ways}
    rng, expected = np.random.default_rng(0), {}
    for t in range(FIRST - AHEAD, n_month):
        new = world.periods[: t + 1] if not expected else [world.periods[t]]
        model = model.with_periods(*new, n_thread=1)
        rates = _rates(model, world, [*_same_season(t), t, t + AHEAD], n_draws, rng)
        expected[t + AHEAD] = rates[:, -1:]
        if t < FIRST:
            continue
        scores["model_season"][t] = against_season(rates[:, -2], rates[:, :-2])[0]
        scores["model_forecast"][t] = _above(rates[:, -2], expected[t])
        for name, score in COUNTED.items():
            scores[name][t] = score(world, t)
    return {name: _seen(score, world, rng) for name, score in scores.items()}


def _same_season(t: int) -> list[int]:
    return [k for k in (t - 13, t - 12, t - 11) if k >= 0]


def _rates(
    model: Any, world: Any, months: list[int], n_draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw the areas' rates jointly: (n_draws, n_month, n_area)."""
    draws = model.sample_functions(n_draws, rng, [float(k) for k in months])
    found = [model.predict_bags(world.whole[k], period=k, draws=draws).draws for k in months]
    return np.stack(found, axis=1)


def _above(own: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the probability of more than the upper quartile of the draws of others."""
    limit = np.quantile(others.reshape(-1, own.shape[1]), UPPER, axis=0)
    return (own > limit).mean(axis=0)


def _counts(world: Any) -> np.ndarray:
    counts = np.stack([each.y for each in world.whole[: world.missing.shape[0]]])
    return np.where(world.missing, np.nan, counts)


def _season_score(world: Any, t: int) -> np.ndarray:
    """Return how far up a count is in the Poisson law of its season's mean."""
    counts = _counts(world)
    with np.errstate(invalid="ignore"):
        mean = np.nanmean(np.vstack([counts[_same_season(t)], np.nanmean(counts[:t], 0)]), axis=0)
    own = counts[t]
    return np.asarray(poisson.cdf(own - 1, mean) + 0.5 * poisson.pmf(own, mean))


def _regression_score(world: Any, t: int) -> np.ndarray:
    """Return how far up a count is in a regression of the months before it (as Farrington's).

    Areas, harmonics of the year and covariates; the law is negative binomial, with the excess
    variance of its residuals.
    """
    counts, n_area = _counts(world), world.missing.shape[1]
    waves = [f(2 * np.pi * np.arange(t + 1) / 12) for f in (np.cos, np.sin)]
    bags = world.whole

    def design(k: int) -> np.ndarray:
        each = bags[k]
        total = np.add.reduceat(each.weight[:, None] * each.x, each.offsets[:-1])
        mean = total / np.add.reduceat(each.weight, each.offsets[:-1])[:, None]
        return np.column_stack([np.eye(n_area), np.tile([w[k] for w in waves], (n_area, 1)), mean])

    known = np.isfinite(counts[:t])
    rows = np.concatenate([design(k)[known[k]] for k in range(t)])
    y = counts[:t][known]
    fit = PoissonRegressor(alpha=1e-3, max_iter=1000).fit(rows, y)
    fitted = fit.predict(rows)
    over = max(float(((y - fitted) ** 2 - fitted).sum() / (fitted**2).sum()), 1e-3)
    mean, own = fit.predict(design(t)), counts[t]
    law = nbinom(1 / over, 1 / (1 + over * mean))
    return np.asarray(law.cdf(own - 1) + 0.5 * law.pmf(own))


COUNTED = {"same_season": _season_score, "regression": _regression_score}


def _seen(score: np.ndarray, world: Any, rng: np.random.Generator) -> dict[str, float]:
    n_month = score.shape[0]
    score = score + 1e-9 * rng.random(score.shape)  # ties at 0 and 1 are broken by lot
    score = np.where(world.missing, np.nan, score)  # who has no count of the month sees nothing
    excess = world.excess[:n_month]
    quiet = (excess < QUIET) & np.isfinite(score)
    limit = np.quantile(score[quiet], 1 - FALSE)
    delays, seen = [], 0
    for area in range(score.shape[1]):
        high = np.flatnonzero(excess[:, area] > ONSET)
        if high.size == 0 or high[0] < FIRST:
            continue
        alarms = np.flatnonzero(score[high[0] :, area] > limit)
        seen += alarms.size > 0
        delays.append(alarms[0] if alarms.size else n_month - high[0])
    return {
        "delay": float(np.mean(delays)) if delays else np.nan,
        "seen": seen / max(len(delays), 1),
        "outbreaks": float(len(delays)),
    }
