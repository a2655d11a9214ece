r"""What the response of a bag says of the part of its aggregate that a Gaussian cannot follow.

:func:`models.aggregate.moment_matching.marginal` writes ``log eta = t + l + r``: ``l`` is linear in
the inducing variables and has their posterior, and ``r``, how much ``f`` varies inside the bag, is
integrated out, ``r ~ N(0, rest)``. A function drawn from the sparse posterior has an ``r`` of this
prior: its aggregates are wider than the posterior's, the more the larger the counts. Given ``l``,

    p(r | l, y) ~ p(y | e^{t + l + r}) N(r; 0, rest),

of which the mode and the curvature are found, and ``r`` is moved to where the same quantile of this
normal distribution is. All pixels of the bag are scaled by the same factor, ``e^{r' - r}``.
"""

from __future__ import annotations

import numpy as np

from models.aggregate.displaced import Displaced
from models.aggregate.moment_matching import LEAST_LOG_VARIANCE, LEAST_REST
from models.aggregate.surface_model import SurfaceModel
from models.backend.arrays import segment_sum
from models.core.block import BagBlock
from models.core.protocol import Arrays
from models.core.thinning import thinned_block
from models.gp.bag_variance import bag_variance
from models.gp.drawn_share import DrawnShare
from models.likelihoods.area_effect import mixture_mode
from models.likelihoods.likelihood import TINY
from models.likelihoods.observation import Observation, bag_weights

PIXELS = 512  # of an area, whose variances are computed; other pixels take their average
PAIRS = 192  # of them, whose pairs are visited: their choice should not show in a table
ROWS = 2048
MOST_DEVIATIONS = 6.0  # of r under its prior: a drawn aggregate of zero has none


def observed_factors(
    model: SurfaceModel, params: Arrays, away: np.ndarray, bags: BagBlock, drawn: np.ndarray
) -> np.ndarray:
    """Return the factors that condition drawn aggregates of bags on their responses.

    Parameters
    ----------
    model : VBAgg
    params : dict of arrays
        Block parameters of one draw of the hyperparameters.
    away : (n_ind, n_draws) float64
        ``K_WW^-1 (u - E u)`` of each function.
    bags : BagBlock
        Bags that the model was fitted to, with their responses.
    drawn : (n_draws, n_bag) float64
        Their aggregates under the functions.

    Returns
    -------
    (n_draws, n_bag) float64
        Ones where the response was not integrated so: under other links and estimators.
    """
    ones = np.ones_like(drawn)
    if not (model.estimator_name == "log_normal" and model.link_name == "exp" and "cov" in params):
        return ones
    few = bags
    if int(np.diff(bags.offsets).max()) > PIXELS:
        few = thinned_block(bags, PIXELS, params["x_mean"], params["x_sd"], model.seed)
    seen = Observation.of(model.resolved_likelihood, model.resolved_link, params, few)
    c, line, total, rest = _parts(model, seen, params, few, away)
    if few is not bags:
        c, line = _all_pixels(model, params, few, bags, away, c)
    centre = np.log(c) - 0.5 * total + line
    r = np.log(np.maximum(drawn, TINY)) - centre
    edge = MOST_DEVIATIONS * np.sqrt(rest)
    r = np.clip(r, -edge, edge)
    likelihood, _ = seen.likelihood.without_factor(seen.params)
    tau2 = seen.likelihood.factor_variance(seen.params, seen.bag_data)
    # The sum of r and of the area's effect is what the response tells of; r has a share in it.
    prior = centre - 0.5 * tau2
    variance = rest + tau2
    known = np.isfinite(seen.y)
    y = np.where(known, seen.y, 0.0)
    mode, sd = mixture_mode(likelihood, y, prior, seen.params, seen.bag_data, variance)
    share = rest / variance
    moved = share * (mode - prior) + r * np.sqrt(share * tau2 + (share * sd) ** 2) / np.sqrt(rest)
    return np.where(known, np.exp(moved - r), ones)


def _parts(
    model: SurfaceModel, seen: Observation, params: Arrays, bags: BagBlock, away: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return ``c``, ``l`` (n_draws, n_bag), ``Var (l + r)`` and ``rest`` as ``marginal`` does."""
    p, offsets = seen.p, seen.offsets
    fwd = model._pass(params, model._scaled(params, bags.x, bags.coords), learn=True)
    a0, a1 = seen.link.moments(fwd.m, fwd.s, 1)
    c = np.maximum(segment_sum(p * a0, offsets), TINY)
    variance = bag_variance(fwd, seen.link, p, offsets, seen.bag, PAIRS)
    line, value = fwd.followed(p * a1, offsets), variance.value
    if variance.drawn is not None:
        share = DrawnShare(fwd, a1, variance.drawn, offsets.shape[0] - 1)
        value = value + share.has * line.value - share.value
    displaced = Displaced.of(seen, fwd.m, fwd.s, c)
    value = value if displaced is None else displaced.instead_of(value)
    total = np.maximum(np.log1p(value / c**2), 2.0 * LEAST_LOG_VARIANCE)
    own = np.minimum(line.value / c**2, total - LEAST_REST)
    rest = np.maximum(total - own, LEAST_REST)
    return c, (line.sums @ away / c[:, None]).T, total, rest


def _all_pixels(
    model: SurfaceModel,
    params: Arrays,
    few: BagBlock,
    bags: BagBlock,
    away: np.ndarray,
    c: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``c`` and ``l`` of all pixels, from those of few.

    The mean of ``f`` costs little at a pixel, its variance much: what the variance adds to an
    average, ``c / sum_i p_i e^{m_i}``, is that of the few pixels.
    """
    _, few_level = _centred(model, params, few, away[:, :0])
    sums, level = _centred(model, params, bags, away)
    return c * level / few_level, sums.T


def _centred(
    model: SurfaceModel, params: Arrays, bags: BagBlock, away: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the averages of ``K away`` by the weights ``p e^m``, and the sums of the weights."""
    kernel, n_bag = model._kernel(params), bags.offsets.shape[0] - 1
    z = model._scaled(params, bags.x, bags.coords)
    base = float(params["base_rate"][0])
    p = bag_weights(model.resolved_likelihood, bags.weight, bags.offsets, base)
    bag = np.repeat(np.arange(n_bag), np.diff(bags.offsets))
    columns = np.concatenate([params["alpha"][:, None], away], axis=1).astype(z.dtype)
    sums, level = np.zeros((n_bag, away.shape[1])), np.zeros(n_bag)
    for start in range(0, z.shape[0], ROWS):
        rows = slice(start, start + ROWS)
        k, _ = kernel.cross(params["theta"], z[rows], params["w"].astype(z.dtype))
        of_k = (k @ columns).astype(np.float64)
        b = p[rows] * np.exp(of_k[:, 0] + params["mean"][0])
        first = np.flatnonzero(np.diff(bag[rows], prepend=-1))
        level[bag[rows][first]] += np.add.reduceat(b, first)
        sums[bag[rows][first]] += np.add.reduceat(b[:, None] * of_k[:, 1:], first)
    level = np.maximum(level, TINY)
    return sums / level[:, None], level
