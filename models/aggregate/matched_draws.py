"""Choose few of many draws so that their moments are those of all.

A mixture over ``n`` draws at random has ``1 - 1/n`` of the variance between all, and its mean is
off by ``n^-1/2`` of its deviation. Draws that are chosen for their moments have neither error; what
all draws lack, as a short chain does, they lack too (docs/design/noise.md).
"""

from __future__ import annotations

import numpy as np

STARTS = 3  # subsets at random that exchanges begin with; the best is taken
MOST_ROUNDS = 50
TAIL = 0.005  # share of the draws at either end that count as if they were less far out
CORRELATION = 0.3  # weight of a product of two dimensions beside means and variances


def matched_draws(draws: np.ndarray, by: np.ndarray, n: int, seed: int = 0) -> np.ndarray:
    """Choose rows, one of each stratum, whose means, variances and correlations are those of all.

    One row after the other is exchanged for that of its stratum which leaves the least squared
    difference, until no exchange helps.

    Parameters
    ----------
    draws : (n_draw, n_dim) float64
        Logarithms, or what else has a variance; the units do not matter.
    by : (n_draw,) float64
        What the strata, of as many rows each, are quantiles of.
    n : int
        At most ``n_draw``.
    seed : int

    Returns
    -------
    (n,) int64
        Rows, in ascending order.
    """
    low, high = np.quantile(draws, [TAIL, 1.0 - TAIL], axis=0)
    x = np.clip(draws, low, high)
    sd = x.std(axis=0)
    moving = sd > 0
    x = (x - x.mean(axis=0))[:, moving] / sd[moving]
    first, second = np.triu_indices(x.shape[1])
    weight = np.where(first == second, 1.0, CORRELATION)
    moments = np.column_stack([x, weight * x[:, first] * x[:, second]])
    moments -= moments.mean(axis=0)
    strata = np.array_split(np.argsort(by, kind="stable"), n)
    rng = np.random.default_rng([seed, 13])
    least, best = np.inf, np.arange(n)
    for _ in range(STARTS):
        left, chosen = _exchanged(moments, strata, np.array([rng.choice(own) for own in strata]))
        if left < least:
            least, best = left, chosen
    return np.sort(best)


def _exchanged(
    moments: np.ndarray, strata: list[np.ndarray], chosen: np.ndarray
) -> tuple[float, np.ndarray]:
    """Exchange rows as long as the sum of their moments comes nearer to zero."""
    for _ in range(MOST_ROUNDS):
        before = chosen.copy()
        for k, own in enumerate(strata):
            rest = np.delete(moments[chosen], k, axis=0).sum(axis=0)
            chosen[k] = own[((moments[own] + rest) ** 2).sum(axis=1).argmin()]
        if np.array_equal(chosen, before):
            break
    total = moments[chosen].sum(axis=0)
    return float(total @ total), chosen
