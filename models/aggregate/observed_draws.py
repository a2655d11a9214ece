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

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from models.aggregate.displaced import Displaced
from models.aggregate.moment_matching import LEAST_LOG_VARIANCE, LEAST_REST
from models.aggregate.surface_model import SurfaceModel
from models.backend.arrays import segment_sum
from models.core.block import BagBlock
from models.core.protocol import Arrays
from models.core.thinning import thinned_block
from models.gp.bag_variance import BagVariance, bag_variance
from models.gp.draws import add_by_bag
from models.gp.kernel_model import exactly
from models.gp.pixel_pass import PixelPass
from models.likelihoods.area_effect import mixture_mode
from models.likelihoods.likelihood import TINY
from models.likelihoods.observation import Observation, bag_weights

PIXELS = 96  # of an area, whose variances and pairs are visited; others take their average
ROWS = 2048
MOST_DEVIATIONS = 6.0  # of r under its prior: a drawn aggregate of zero has none


class Whole(NamedTuple):
    """Sums over all pixels of bags, where few of them stand for the rest.

    Attributes
    ----------
    level : (n_bag,) float64
        Of the weights ``p e^m``.
    line : (n_draws, n_bag) float64
        Averages of ``l`` by these weights.
    """

    level: np.ndarray
    line: np.ndarray


class Condition:
    """What conditions drawn aggregates of bags on their responses.

    Parameters
    ----------
    model : SurfaceModel
    params : callable
        Returns the block parameters of one draw of the hyperparameters; called when first needed.
    away : (n_ind, n_draws) float64
        ``K_WW^-1 (u - E u)`` of each function.
    """

    def __init__(self, model: SurfaceModel, params: Callable[[], Arrays], away: np.ndarray) -> None:
        self.model, self.away, self._params = model, away, params

    def afresh(self) -> Self:
        """Return the same without its parameters, which take memory once they are needed."""
        return type(self)(self.model, self._params, self.away)

    def some(self, columns: np.ndarray) -> Self:
        """Return what conditions some of the functions, by their places (n,)."""
        return type(self)(self.model, self._params, self.away[:, columns])

    @cached_property
    def params(self) -> Arrays:
        """The block parameters, exact."""
        return exactly(self._params())

    @property
    def holds(self) -> bool:
        """Whether responses were integrated so: not under other links and estimators."""
        model = self.model
        log_normal = model.estimator_name == "log_normal" and model.link_name == "exp"
        return log_normal and "cov" in self.params

    def thins(self, bags: BagBlock) -> bool:
        """Whether some pixels stand for the others, whose sums are then needed besides."""
        return self._tells(bags) and int(np.diff(bags.offsets).max()) > PIXELS

    def _tells(self, bags: BagBlock) -> bool:
        """Whether there is a response that draws can be conditioned on."""
        return bool(np.isfinite(bags.y).any()) and self.holds

    def few(self, bags: BagBlock) -> BagBlock:
        """Return the bags with the pixels that variances are computed of; alike for every draw."""
        if not self.thins(bags):
            return bags
        params = self.params
        scale = params["x_mean"], params["x_sd"]
        return thinned_block(bags, PIXELS, *scale, self.model.seed, each=2)

    def factors(
        self,
        bags: BagBlock,
        drawn: np.ndarray,
        few: BagBlock | None = None,
        whole: Whole | None = None,
    ) -> np.ndarray:
        """Return the factors of drawn aggregates.

        Parameters
        ----------
        bags : BagBlock
            Bags that the model was fitted to, with their responses.
        drawn : (n_draws, n_bag) float64
            Their aggregates under the functions.
        few : BagBlock, optional
            That of :meth:`few`, where it is known.
        whole : Whole, optional
            The sums over their pixels, where they are known.

        Returns
        -------
        (n_draws, n_bag) float64
            Ones where :attr:`holds` is false, and for bags without a response.
        """
        if not self._tells(bags):
            return np.ones_like(drawn)
        few = self.few(bags) if few is None else few
        model, params = self.model, self.params
        seen = Observation.of(model.resolved_likelihood, model.resolved_link, params, few)
        c, line, total, rest = _parts(model, seen, params, few, self.away, _pairs(bags, few))
        if few is not bags:
            # The mean of ``f`` costs little at a pixel, its variance much: what the variance adds
            # to an average, ``c / sum_i p_i e^{m_i}``, is that of the few pixels.
            whole = _centred(model, params, bags, self.away) if whole is None else whole
            c = c * whole.level / _centred(model, params, few, self.away[:, :0]).level
            line = whole.line
        return _factors(seen, c, line, total, rest, drawn)


def _factors(
    seen: Observation,
    c: np.ndarray,
    line: np.ndarray,
    total: np.ndarray,
    rest: np.ndarray,
    drawn: np.ndarray,
) -> np.ndarray:
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
    return np.where(known, np.exp(moved - r), 1.0)


def _pairs(bags: BagBlock, few: BagBlock) -> np.ndarray:
    """Return the first of the two pixels of each stratum, of the bags that were thinned."""
    thinned = np.diff(bags.offsets) > np.diff(few.offsets)
    first = np.repeat(thinned, np.diff(few.offsets))
    within = np.arange(first.size) - np.repeat(few.offsets[:-1], np.diff(few.offsets))
    return np.flatnonzero(first & (within % 2 == 0))


def _parts(
    model: SurfaceModel,
    seen: Observation,
    params: Arrays,
    bags: BagBlock,
    away: np.ndarray,
    first: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return ``c``, ``l`` (n_draws, n_bag), ``Var (l + r)`` and ``rest`` as ``marginal`` does."""
    p, offsets = seen.p, seen.offsets
    z = model._scaled(params, bags.x, bags.coords)
    fwd = model._pass(params, z, learn=True, slopes=False)
    a0, a1 = seen.link.moments(fwd.m, fwd.s, 1)
    c = np.maximum(segment_sum(p * a0, offsets), TINY)
    variance = bag_variance(fwd, seen.link, p, offsets, seen.bag, PIXELS)
    line, value = fwd.followed(p * a1, offsets), variance.value
    linear = line.value
    if first.size:
        much, much_linear = _too_much(fwd, variance, p, a0, a1, first, offsets)
        value, linear = value - much, linear - much_linear
    displaced = Displaced.of(seen, fwd.m, fwd.s, c)
    value = value if displaced is None else displaced.instead_of(value)
    total = np.maximum(np.log1p(value / c**2), 2.0 * LEAST_LOG_VARIANCE)
    own = np.minimum(linear / c**2, total - LEAST_REST)
    rest = np.maximum(total - own, LEAST_REST)
    return c, (line.sums @ away / c[:, None]).T, total, rest


def _too_much(
    fwd: PixelPass,
    variance: BagVariance,
    p: np.ndarray,
    a0: np.ndarray,
    a1: np.ndarray,
    first: np.ndarray,
    offsets: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what the two pixels of each stratum have too much of ``V`` and of its linear part.

    Drawn in proportion to their weights they stand for the pairs inside a stratum of weight ``P``
    by ``P^2 C_ij``. As pixels of weight ``P / 2`` they have ``P^2 / 4 (C_ii + C_jj + 2 C_ij)``: a
    stratum would vary as a single pixel does.

    Parameters
    ----------
    fwd : PixelPass
    variance : BagVariance
    p, a0, a1 : (n_pix,) float64
    first : (n_stratum,) int64
        The other one follows.
    offsets : (n_bag + 1,) int64

    Returns
    -------
    (n_bag,), (n_bag,) float64
    """
    second, n_bag = first + 1, offsets.size - 1
    weight, bag = p[first] * p[second], np.searchsorted(offsets, first, side="right") - 1
    alone = a0**2 * np.expm1(fwd.s)
    shared = a0[first] * a0[second] * variance.over(first, second)
    apart = a1[first, None] * fwd.k[first] - a1[second, None] * fwd.k[second]
    linear = ((apart @ fwd.params["cov"].astype(apart.dtype)) * apart).sum(axis=1)
    much = weight * (alone[first] + alone[second] - 2.0 * shared)
    return np.bincount(bag, much, n_bag), np.bincount(bag, weight * linear, n_bag)


def _centred(model: SurfaceModel, params: Arrays, bags: BagBlock, away: np.ndarray) -> Whole:
    """Return the sums over the pixels of bags."""
    kernel = model._kernel(params)
    z = model._scaled(params, bags.x, bags.coords)
    columns = np.concatenate([params["alpha"][:, None], away], axis=1).astype(z.dtype)
    w = params["w"].astype(z.dtype)
    sums = WholeSums(model, params, bags, away.shape[1])
    for start in range(0, z.shape[0], ROWS):
        rows = slice(start, start + ROWS)
        sums.add(rows, kernel.cross_values(params["theta"], z[rows], w) @ columns)
    return sums.result


class WholeSums:
    """Adds up :class:`Whole` over the pixels of bags, some at a time.

    Parameters
    ----------
    model : SurfaceModel
    params : dict of arrays
    bags : BagBlock
    n_draws : int
    """

    def __init__(self, model: SurfaceModel, params: Arrays, bags: BagBlock, n_draws: int) -> None:
        n_bag, base = bags.offsets.shape[0] - 1, float(params["base_rate"][0])
        self._p = bag_weights(model.resolved_likelihood, bags.weight, bags.offsets, base)
        self._bag = np.repeat(np.arange(n_bag), np.diff(bags.offsets))
        self._mean = params["mean"][0]
        self._level, self._line = np.zeros(n_bag), np.zeros((n_bag, n_draws))

    def add(self, rows: slice, about: np.ndarray) -> None:
        """Add pixels, by their kernel times ``alpha`` and ``away``: (n, 1 + n_draws)."""
        about, bag = about.astype(np.float64, copy=False), self._bag[rows]
        b = self._p[rows] * np.exp(about[:, 0] + self._mean)
        add_by_bag(self._level, bag, b)
        add_by_bag(self._line, bag, b[:, None] * about[:, 1:])

    @property
    def result(self) -> Whole:
        """The sums of what was added."""
        level = np.maximum(self._level, TINY)
        return Whole(level, (self._line / level[:, None]).T)
