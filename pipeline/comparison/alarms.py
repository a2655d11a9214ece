"""Which areas changed by more than chance? A test of the counts themselves, without the models.

A map's rate follows a single area's count only in part: under noise between areas, a count that
tripled is mostly noise to the model. Whoever watches areas asks of the counts. Each pair is tested
against no change, given the noise that all areas have between the two runs, and the areas told are
those that keep the false discovery rate (Benjamini and Hochberg 1995).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats
from scipy.spatial.distance import pdist
from scipy.special import expit

RATE = 0.1  # of false discoveries among the areas that are told
FEW_AREAS = 8  # below this number the areas do not tell their noise
MOST_AREAS = 4000  # whose pairs are compared
QN, EFFICIENCY = 2.2219, 0.82  # of Qn under a normal law
Kind = Literal["counts", "trials", "values"]


def find_changes(a: pd.DataFrame, b: pd.DataFrame, kind: Kind) -> tuple[pd.DataFrame, float]:
    """Test each area for a change.

    Parameters
    ----------
    a, b : DataFrame
        Indexed alike: ``observed``, ``exposure`` (people, or the number tested) and, of values,
        ``rate`` with its deviation ``sd``.
    kind : {"counts", "trials", "values"}
        Counts are compared by the binomial law of one given their sum, with noise
        on its log odds; positives among the tested by their log odds; values by the rates of the
        tables.

    Returns
    -------
    table : DataFrame
        ``p_value``: two-sided, NaN where one side has no response; ``told``: ``rose``, ``fell`` or
        ``no``; None without a p value.
    noise : float
        Deviation of the change between areas that the counts' own chance does not explain: of
        logarithms (log odds), or in units of rates. 0 if there is none, or too few areas.
    """
    move, variance = _moves(a, b, kind)
    known = np.isfinite(move) & np.isfinite(variance)
    noise, df = _noise(move[known], variance[known])
    p = np.full(move.shape, np.nan)
    if kind == "counts":
        p[known] = _conditional(a[known], b[known], noise, df)
    else:
        p[known] = 2.0 * stats.t.sf(np.abs(move[known]) / np.sqrt(variance[known] + noise**2), df)
    told = np.full(move.shape, None, dtype=object)
    told[known] = "no"
    chosen = np.flatnonzero(known)[_discoveries(p[known])]
    told[chosen] = np.where(move[chosen] > 0, "rose", "fell")
    return pd.DataFrame({"p_value": p, "told": told}, index=a.index), noise


def _moves(a: pd.DataFrame, b: pd.DataFrame, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """Return the change of each area, and its variance by chance alone."""
    if kind == "values":
        move = b["rate"] - a["rate"]
        return move.to_numpy(np.float64), (a["sd"] ** 2 + b["sd"] ** 2).to_numpy(np.float64)
    level, variance = [], np.zeros(len(a))
    for side in (a, b):
        y, exposure = (side[name].to_numpy(np.float64) for name in ("observed", "exposure"))
        rest = exposure - y + 0.5 if kind == "trials" else exposure
        with np.errstate(divide="ignore", invalid="ignore"):
            level.append(np.log(y + 0.5) - np.log(rest))
            variance = variance + 1.0 / (y + 0.5)
            if kind == "trials":
                variance = variance + 1.0 / rest
    return level[1] - level[0], variance


def _noise(move: np.ndarray, variance: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the noise between areas, and the degrees of freedom that each area's test has.

    The scale of the changes is Qn, a quantile of the distances of all pairs: areas that changed
    move it little, and it is 82 % as efficient as the standard deviation (Rousseeuw and Croux
    1993, with the factor of small samples of Croux and Rousseeuw 1992). The degrees
    of freedom are those of Satterthwaite, as the noise is known from so many areas.
    """
    never = np.full(move.shape, np.inf)
    n = move.size
    if n < FEW_AREAS:
        return 0.0, never
    some = move if n <= MOST_AREAS else move[np.linspace(0, n - 1, MOST_AREAS).astype(int)]
    apart = pdist(some[:, None], "cityblock")
    half = some.size // 2 + 1
    rank = half * (half - 1) // 2 - 1
    small = some.size / (some.size + (1.4 if some.size % 2 else 3.8))
    scale = QN * small * float(np.partition(apart, rank)[rank])
    usual = float(np.median(variance))
    noise2 = max(0.0, scale**2 - usual)
    if noise2 == 0:
        return 0.0, never
    df = EFFICIENCY * some.size * ((variance + noise2) / (usual + noise2)) ** 2
    return float(np.sqrt(noise2)), df


def _conditional(a: pd.DataFrame, b: pd.DataFrame, noise: float, df: np.ndarray) -> np.ndarray:
    """Return mid-p values of B's count given the sum of both."""
    one, other = (side["observed"].to_numpy(np.float64) for side in (a, b))
    of_a, of_b = (side["exposure"].to_numpy(np.float64) for side in (a, b))
    n, level = np.rint(one + other), np.log(of_b / of_a)
    z = np.linspace(-12.0, 12.0, 193) if noise > 0 else np.zeros(1)
    weight = stats.t.pdf(z, df[:, None])  # trapezoids
    weight /= weight.sum(axis=1, keepdims=True)
    law = stats.binom(n[:, None], expit(level[:, None] + noise * z))
    at = np.rint(other)[:, None]
    half = 0.5 * law.pmf(at)
    below, above = (
        ((end + sign * half) * weight).sum(axis=1)
        for end, sign in ((law.cdf(at), -1), (law.sf(at), 1))
    )
    return np.asarray(np.minimum(1.0, 2.0 * np.minimum(below, above)))


def _discoveries(p: np.ndarray) -> np.ndarray:
    """Return which p values keep the false discovery rate: (n,) bool."""
    if not p.size:
        return np.zeros(0, bool)
    return np.asarray(stats.false_discovery_control(np.clip(p, 0.0, 1.0)) <= RATE)
