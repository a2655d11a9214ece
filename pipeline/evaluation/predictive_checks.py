r"""Posterior predictive checks: whether the model could have made these data.

A discrepancy ``T`` of the responses is compared with that of responses which the model makes anew
from its posterior (Gelman, Meng & Stern 1996). Those of single responses, the share of zeros and
the largest, compare ``T(y)`` with ``T(y_rep)``. Those of residuals compare ``T(y, f_s)`` with
``T(y_rep_s, f_s)`` draw by draw: around the draws' mean, data that the fit has followed would
always look too even.

    dispersion:  (1/n) sum_a r_a^2,                              r_a = (y_a - E[y_a | f]) / d_a,
    Moran's I:   (n / sum_ab w_ab) sum_ab w_ab (r_a - r)(r_b - r) / sum_a (r_a - r)^2,

with ``d_a^2`` the mean over draws of ``Var[y_a | f_s]``. Because the data are used twice, p-values
are nearer to one half than uniform ones: a small one speaks against the model, a middling one
proves nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from pipeline.evaluation.posterior import PosteriorDraws

LEVEL = 0.9  # of the predictive intervals
SMALL_P = 0.05
NEIGHBOURS = 6  # areas around an area, as in a hexagonal lattice
LEAST_AREAS = 10  # for Moran's I

Check = dict[str, Any]


def predictive_checks(
    areas: PosteriorDraws, *, counts: bool = True, freer: str | None = None
) -> dict[str, Any]:
    """Check zeros, dispersion, the largest response and the residuals' correlation in space.

    Parameters
    ----------
    areas : PosteriorDraws
        Of the areas that the model was fitted to.
    counts : bool
        Whether responses are counts; other values have no share of zeros.
    freer : str, optional
        Likelihood that learns how much responses vary, where the model's does not.

    Returns
    -------
    dict
        Of each check ``observed``, ``interval`` (central 90 % of replicated data), ``p``
        (two-sided) and, where p < .05, ``sentence``; ``sentences``: all of them.
    """
    y, made = imputed(areas), areas.counts
    noise = made - areas.expected
    scale = np.sqrt((noise**2).mean(axis=0))
    known = scale > 0  # without people there is nothing to predict
    seen = (y - areas.expected)[:, known] / scale[known]  # of each draw
    again = noise[:, known] / scale[known]
    found: dict[str, Check] = {}
    if counts:
        found["zeros"] = compare((y == 0).mean(axis=-1), (made == 0).mean(axis=1))
    found["dispersion"] = compare((seen**2).mean(axis=1), (again**2).mean(axis=1))
    found["largest"] = compare(y.max(axis=-1), made.max(axis=1))
    centres = areas.centre.T[known]
    if centres.shape[1] and centres.shape[0] >= LEAST_AREAS:
        near = neighbours(centres)
        found["moran"] = compare(moran(seen, near), moran(again, near))
    for name, check in found.items():
        if check["p"] < SMALL_P:
            check["sentence"] = _sentence(name, check)
            if name == "dispersion" and freer is not None:
                check["sentence"] += f"; likelihood: {freer} learns how much they vary"
    said = [check["sentence"] for check in found.values() if "sentence" in check]
    return {**found, "sentences": said}


def imputed(areas: PosteriorDraws) -> np.ndarray:
    """Return the responses (n_bag,), or (n_draws, n_bag) where some are suppressed.

    A suppressed count is each time one of those that the model makes inside its interval: left out,
    it would leave the areas whose counts happen to be large.
    """
    hidden = areas.suppressed
    if not hidden.any():
        return areas.y
    n_draws, rng = areas.counts.shape[0], np.random.default_rng([0, 8])
    y = np.tile(areas.y, (n_draws, 1))
    for k in np.flatnonzero(hidden):
        made, low, high = areas.counts[:, k], areas.least[k], areas.most[k]
        inside = made[(made >= low) & (made <= high)]
        y[:, k] = rng.choice(inside, n_draws) if inside.size else 0.5 * (low + high)
    return y


def compare(observed: Any, replicated: np.ndarray) -> Check:
    """Place an observed discrepancy among those of replicated data.

    Parameters
    ----------
    observed : float or (n_draws,) array
        ``T(y)``, or ``T(y, f_s)`` of each draw.
    replicated : (n_draws,) array
        ``T(y_rep)`` of each draw.

    Returns
    -------
    dict
        ``observed`` (mean over draws), ``interval``, ``p``: twice the smaller of the shares of
        draws below and above, ties counting half. If the observed one is a further draw, ``p`` is
        uniform up to ties and the number of draws.
    """
    n = replicated.shape[0]
    below = (replicated < observed).sum() + 0.5 * (replicated == observed).sum()
    share = (below + 0.5) / (n + 1)
    low, high = np.quantile(replicated, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {
        "observed": float(np.mean(observed)),
        "interval": [float(low), float(high)],
        "p": float(2 * min(share, 1 - share)),
    }


def neighbours(centres: np.ndarray, k: int = NEIGHBOURS) -> np.ndarray:
    """Return the nearest other areas of each area, by their centres: (n_bag, k) int.

    Parameters
    ----------
    centres : (n_bag, n_axis) array, km
        At least ``k + 1``; fewer neighbours are returned of fewer areas.
    k : int
    """
    n = centres.shape[0]
    k = min(k, n - 1)
    found = cKDTree(centres).query(centres, k=k + 1)[1]
    # Areas of one centre may find each other first: take the area itself out wherever it is.
    own = found == np.arange(n)[:, None]
    own[~own.any(axis=1), -1] = True
    return np.asarray(found[~own].reshape(n, k))


def moran(values: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Moran's I of each row of values, with equal weights of each area's neighbours.

    Parameters
    ----------
    values : (..., n_bag) array
    near : (n_bag, k) int array
        Neighbours of each area. Rows of weights add up to one, so that ``sum w = n``.

    Returns
    -------
    (...) float64 array
        0 where all values are alike.
    """
    off = values - values.mean(axis=-1, keepdims=True)
    around = sum(off[..., near[:, j]] for j in range(near.shape[1])) / near.shape[1]
    total = (off**2).sum(axis=-1)
    cross = (off * around).sum(axis=-1)
    return np.asarray(np.divide(cross, total, out=np.zeros_like(total), where=total > 0))


_WORDS = {
    # Where the observed value is above the middle of the predicted ones, and where it is below.
    "zeros": (
        "more areas without a case than the model expects",
        "fewer areas without a case than the model expects",
    ),
    "dispersion": (
        "areas vary more around the fit than the likelihood allows: intervals are too short",
        "areas vary less around the fit than the likelihood says: intervals are too wide",
    ),
    "largest": (
        "the largest response is larger than the model expects",
        "the largest response is smaller than the model expects",
    ),
    "moran": (
        "residuals of neighbours are alike: something that varies in space is not in the model",
        "residuals of neighbours differ more than by chance: the surface may follow noise",
    ),
}


def _sentence(name: str, check: Check) -> str:
    low, high = check["interval"]
    words = _WORDS[name][0 if check["observed"] > (low + high) / 2 else 1]
    p = check["p"]
    return (
        f"{words} ({check['observed']:.3g}; {100 * LEVEL:g} % of replicated data "
        f"{low:.3g} to {high:.3g}; p {'< .001' if p < 0.001 else f'= {p:.3f}'.replace('0.', '.')})"
    )
