r"""Aggregates of areas to first order around a fit, and Gaussian sites of their responses.

Around a fit, ``eta_a = P_a Psi(v_a)`` with ``v_a`` linear in ``f``: to first order

    v_a = v0_a + sum_i b_i (f_i - m_i),    b_i = p_i E Psi'(f_i) / (P_a Psi'(v0_a)),

where ``m`` is the fit's mean and ``Psi(v0_a)`` its mean rate of the area. A response's log density,
expanded to second order, is a Gaussian site of ``v_a``.
"""

from __future__ import annotations

import numpy as np

from models.aggregate.surface_model import SurfaceModel
from models.backend.arrays import segment_sum
from models.core.block import BagBlock
from models.core.protocol import Arrays
from models.gp.priors import few_cases
from models.gp.scaling import scaled_inputs
from models.likelihoods.area_effect import mixture_mode
from models.likelihoods.links import Link
from models.likelihoods.observation import Observation

LEAST = 1e-100
LEAST_PRECISION = 1e-6  # of a site: a response that tells less tells nothing
DIFFERENCE = 1e-4
SPREAD = 1e-3  # variance of a fitted area's logarithm, beside that of its factor
GAP = 1e-9  # of a mean from the upper end of its range

Sites = tuple[np.ndarray, np.ndarray, np.ndarray]


class Linearised:
    """The aggregates ``v`` of areas to first order around a fit, and what responses say of them.

    Parameters
    ----------
    model : VBAgg
    fixed : dict of arrays
        Constants of the fit.
    params : dict of arrays
        What its blocks are evaluated with.
    bags : BagBlock
        Areas, of few pixels each.

    Attributes
    ----------
    b : (n_pix,) float64
        ``v = offset + sum_i b_i f_i``.
    z : (n_pix, n_dim) float64
        Scaled inputs.
    ones, offset : (n_area,) float64
        Sums of ``b``, and what ``v`` has besides.
    bent : (n_area,) float64
        What a variance of ``f`` inside the area adds to ``v``.
    bag_data : (..., n_area)
        What the likelihood needs of each.
    factored : (n_area,) bool
        Whether the response has a factor of its own, or a place.
    displaced : (n_area,) bool or None
        Which bags are of one of their pixels, unknown which.
    between : (n_area,) float64
        Variance of ``v`` between the pixels of a displaced bag, by the fit.
    start : (n_area,) float64
        ``v`` at the mode of the responses' density and its factor.
    level : (n_area,) float64
        The mean of ``Psi``.
    by_factor : (n_area,) float64
        What a factor on the rate adds to ``v``, to first order, per unit of its logarithm.
    moves : bool
        Whether sites are other ones where ``v`` is another.
    usable : bool
        Whether there is anything to expand.
    """

    def __init__(self, model: SurfaceModel, fixed: Arrays, params: Arrays, bags: BagBlock) -> None:
        link, likelihood = model.resolved_link, model.resolved_likelihood
        self._link = link
        self._seen = seen = Observation.of(likelihood, link, params, bags)
        likelihood = seen.likelihood  # of intervals, where some counts are suppressed
        fitted = model._pass(params, model._scaled(params, bags.x, bags.coords), learn=False)
        m, s = np.asarray(fitted.m, dtype=np.float64), np.asarray(fitted.s, dtype=np.float64)
        rate, slope = link.moments(m, s, 1)
        self._total = total = np.maximum(segment_sum(seen.p, seen.offsets), LEAST)
        level = segment_sum(seen.p * rate, seen.offsets) / total
        v0 = _inverse(link, np.maximum(level, LEAST) if likelihood.positive else level)
        bag = np.repeat(np.arange(bags.n_bag), np.diff(bags.offsets))
        b = seen.p * slope / (total * link.slope(v0))[bag]
        b = np.maximum(b, 0.0)  # one branch of the square link
        known = bool(np.isfinite(b).all() and np.isfinite(v0).all() and b.any())
        self.b = b = np.nan_to_num(b, nan=0.0, posinf=0.0)
        self.z = scaled_inputs(fixed, bags.x, bags.coords, np.float64)
        self.ones = segment_sum(b, seen.offsets)
        self.offset = v0 - segment_sum(b * m, seen.offsets)
        self.bent = 0.5 * _slope_of_slope(link, v0) / link.slope(v0)
        # A law whose own parameters move has its sites at the mode under each: found by Newton's
        # steps from the last. A factor's noise stands beside the sites, which stay where they are;
        # those of a quadratic log density are the same everywhere.
        self.start, self.moves = v0, not likelihood.quadratic
        # A factor on Psi(v) adds to v, to first order; noise in units of the responses is v's own.
        self.level = np.asarray(link.value(v0))
        self.by_factor = self.level / np.asarray(link.slope(v0))
        self.base, _ = likelihood.without_factor(seen.params)
        self.bag_data = seen.bag_data
        tau2 = likelihood.factor_variance(seen.params, seen.bag_data)
        # Which of its pixels a displaced bag is of is noise as well; more where they differ more.
        self.displaced, self.between = likelihood.displaced(seen.bag_data), np.zeros(bags.n_bag)
        if self.displaced is not None:
            self.between = np.where(self.displaced, self._between(model, params, bags, m, s), 0.0)
            tau2 = tau2 + self.between
        self.factored = np.broadcast_to(tau2 > 0.0, v0.shape)
        if self.factored.any():
            at = np.log(np.maximum(total * link.value(v0), LEAST)) - 0.5 * tau2
            spread = np.full(bags.n_bag, tau2 + SPREAD)
            mode, _ = mixture_mode(self.base, seen.y, at, seen.params, seen.bag_data, spread)
            self.start = np.where(self.factored, _inverse(link, np.exp(mode) / total), v0)
            self.moves = not self.factored.all()
        self._scale = likelihood.log_scale(seen.params, seen.bag_data)
        # With fewer cases than the prior of the level calls few the posterior of the mean is far
        # from Gaussian; where no rate has a slope there is nothing to expand.
        self.usable = known and not few_cases(link.name, float(params["mean"][0]), fixed)

    def _between(
        self, model: SurfaceModel, params: Arrays, bags: BagBlock, m: np.ndarray, s: np.ndarray
    ) -> np.ndarray:
        """Return the variance of ``f`` between pixels, and what of theirs the average lacks."""
        offsets, ones = bags.offsets, np.maximum(self.ones, LEAST)
        z = model._scaled(params, bags.x, bags.coords)
        fwd = model._pass(params, z, learn=True, slopes=False)
        mean = segment_sum(self.b * m, offsets) / ones
        each = segment_sum(self.b * (m**2 + s), offsets) / ones - mean**2
        whole = ones**2 * each - fwd.followed(self.b, offsets).value
        return np.maximum(whole, 0.0)

    def moved(self, v: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
        """Return where sites that stay are under other scales: a scale moves them as a whole."""
        if scale is None or self._scale is None:
            return v
        at = self._link.value(self.start) * np.exp(self._scale - scale)
        return np.where(self.factored, _inverse(self._link, at), v)

    def sites(self, base: dict[str, float], v: np.ndarray) -> Sites:
        """Return the Gaussian sites of the areas: their places, variances and constants.

        Parameters
        ----------
        base : dict
            Parameters of the likelihood without its factor.
        v : (n_area,) float64
            Where its log density is expanded to second order.
        """
        link, total = self._link, self._total
        mean = self.base.inside(total * link.value(v), GAP)
        at = self.base.terms(self._seen.y, mean, base, self._seen.bag_data, order=3)
        slope = total * link.slope(v)
        bend = total * _slope_of_slope(link, v)
        first = at.d1 * slope
        precision = -(at.d2 * slope**2 + at.d1 * bend)
        known = precision > LEAST_PRECISION
        precision = np.maximum(precision, LEAST_PRECISION)
        first = np.where(known, first, 0.0)
        constant = at.value + 0.5 * first**2 / precision - 0.5 * np.log(precision)
        return v + first / precision, 1.0 / precision, constant

    def aggregate(self, v: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the aggregates of the areas ``rows`` (n,) where ``v`` is (..., n)."""
        return np.asarray(self._total[rows] * self._link.value(v))

    def centres(self, n_feat: int) -> np.ndarray:
        """Return the centre of each area by people, scaled as the inputs: (n_axis, n_area)."""
        seen = self._seen
        axes = self.z[:, n_feat:].T
        return np.stack([segment_sum(seen.p * axis, seen.offsets) / self._total for axis in axes])


def _inverse(link: Link, level: np.ndarray) -> np.ndarray:
    return np.array([link.inverse(float(each)) for each in level])


def _slope_of_slope(link: Link, v: np.ndarray) -> np.ndarray:
    up, down = link.slope(v + DIFFERENCE), link.slope(v - DIFFERENCE)
    return np.asarray(up - down) / (2.0 * DIFFERENCE)
