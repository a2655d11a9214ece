r"""The evidence of the hyperparameters from areas whose aggregates are linear in ``f``.

Around a fit, ``eta_a = P_a Psi(v_a)`` with ``v_a`` linear in ``f``: to first order

    v_a = v0_a + sum_i b_i (f_i - m_i),    b_i = p_i E Psi'(f_i) / (P_a Psi'(v0_a)),

where ``m`` is the fit's mean and ``Psi(v0_a)`` its mean rate of the area. With the responses' log
density expanded to second order around the fit, the model is Gaussian regression between areas,

    log Z(phi) = log N(site; prior mean, cov(b'f) + area effect + site variance) + constants,

the mean integrated under its flat prior. One factorisation of an (n_area, n_area) matrix gives its
value: thousands of evaluations cost less than a fit, so that the posterior of the hyperparameters
can be explored where it is skewed or has several modes, as noise between areas and a field shorter
than an area have. It has neither inducing variables nor a bound: a second route to the evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from models.aggregate.surface_model import SurfaceModel
from models.backend.arrays import cholesky, segment_sum
from models.core.block import BagBlock
from models.core.protocol import Arrays, State
from models.gp.average_covariance import AverageCovariance
from models.gp.kernel_model import exactly
from models.gp.kernel_terms import whole_kernel
from models.gp.priors import few_cases, log_prior, log_prior_level, log_prior_noise, side_of
from models.gp.scaling import scaled_inputs
from models.likelihoods.area_effect import mixture_mode
from models.likelihoods.links import Link
from models.likelihoods.observation import Observation

LEAST = 1e-100
LEAST_PRECISION = 1e-6  # of a site: a response that tells less tells nothing
DIFFERENCE, STEP = 1e-4, 0.1
SPREAD = 1e-3  # variance of a fitted area's logarithm, beside that of its factor
GAP = 1e-9  # of a mean from the upper end of its range
MOST_STEPS, LONGEST, CLOSE = 20, 2.0, 0.003  # of Newton's method; in large deviations of f


Sites = tuple[np.ndarray, np.ndarray, float]


@dataclass(frozen=True)
class Evidence:
    """The evidence at one ``phi``.

    Attributes
    ----------
    value : float
        Nats, with the log density of the priors.
    mean, precision : float
        Of the posterior of the mean, given the other hyperparameters.
    """

    value: float
    mean: float
    precision: float


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
    factored : bool, or (n_area,) bool
        Whether the response has a factor of its own, or a place.
    displaced : (n_area,) bool or None
        Which bags are of one of their pixels, unknown which.
    between : (n_area,) float64
        Variance of ``v`` between the pixels of a displaced bag, by the fit.
    start : (n_area,) float64
        ``v`` at the mode of the responses' density and its factor.
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
        self.by_factor = np.asarray(link.value(v0) / link.slope(v0))
        self.base, _ = likelihood.without_factor(seen.params)
        self.bag_data = seen.bag_data
        tau2 = likelihood.factor_variance(seen.params, seen.bag_data)
        # Which of its pixels a displaced bag is of is noise as well; more where they differ more.
        self.displaced, self.between = likelihood.displaced(seen.bag_data), np.zeros(bags.n_bag)
        if self.displaced is not None:
            self.between = np.where(self.displaced, self._between(model, params, bags, m, s), 0.0)
            tau2 = tau2 + self.between
        self.factored = tau2 > 0.0
        if np.any(self.factored):
            at = np.log(np.maximum(total * link.value(v0), LEAST)) - 0.5 * tau2
            spread = np.full(bags.n_bag, tau2 + SPREAD)
            mode, _ = mixture_mode(self.base, seen.y, at, seen.params, seen.bag_data, spread)
            self.start = np.where(self.factored, _inverse(link, np.exp(mode) / total), v0)
            self.moves = not np.all(self.factored)
        self._scale = likelihood.log_scale(seen.params, seen.bag_data)
        # With fewer cases than the prior of the level calls few the posterior of the mean is far
        # from Gaussian; where no rate has a slope there is nothing to expand.
        self.usable = known and not few_cases(link.name, float(params["mean"][0]), fixed)

    def _between(
        self, model: SurfaceModel, params: Arrays, bags: BagBlock, m: np.ndarray, s: np.ndarray
    ) -> np.ndarray:
        """Return the variance of ``f`` between pixels, and what of theirs the average lacks."""
        offsets, ones = bags.offsets, np.maximum(self.ones, LEAST)
        fwd = model._pass(params, model._scaled(params, bags.x, bags.coords), learn=True)
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
        """Return the Gaussian sites of the areas: their places and variances, and a constant.

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
        return v + first / precision, 1.0 / precision, float(constant.sum())

    def centres(self, n_feat: int) -> np.ndarray:
        """Return the centre of each area by people, scaled as the inputs: (n_axis, n_area)."""
        seen = self._seen
        axes = self.z[:, n_feat:].T
        return np.stack([segment_sum(seen.p * axis, seen.offsets) / self._total for axis in axes])


class AreaEvidence:
    """``log Z`` around a fit.

    Parameters
    ----------
    model : VBAgg
    state : State
        The fit.
    bags : BagBlock
        All training bags, of few pixels each.
    """

    def __init__(self, model: SurfaceModel, state: State, bags: BagBlock) -> None:
        self._model, self._fixed = model, state.fixed
        params = exactly(model.block_params(state))
        self._kernel = whole_kernel(model._kernel(state.fixed))
        link, self._likelihood = model.resolved_link, model.resolved_likelihood
        self._around = around = Linearised(model, state.fixed, params, bags)
        self._cov = AverageCovariance(self._kernel, around.z, around.b, bags.offsets)
        self._inside = self._cov(state.params["theta"])[1]
        self._at = around.start
        self.usable = around.usable
        self._level = level_site(link, float(params["mean"][0]), state.fixed)
        self.large_sd = link.large_sd
        self.side = side_of(state.fixed) or 1.0
        self._sites: tuple[tuple[float, ...], Sites] | None = None
        self._neighbour = None
        own = np.ones(bags.n_bag, bool) if bags.source is None else bags.source == 0
        self._here = np.flatnonzero(own)
        if bags.coords is not None and self._here.size > 1:
            centres = around.centres(bags.x.shape[1]).T[self._here]
            self._neighbour = self._here[nearest(centres)]

    def at(self, x: np.ndarray) -> Evidence | None:
        """Evaluate.

        Parameters
        ----------
        x : (n_theta + n_own,) float64
            The kernel's parameters and the likelihood's own, logarithms.

        Returns
        -------
        Evidence
            Or None where the covariances are not positive definite.
        """
        theta, own = x[: self._kernel.n_theta], x[self._kernel.n_theta :]
        params = dict(zip(self._likelihood.parameters, own.tolist(), strict=True))
        cov, inside = self._cov(theta)
        # Psi is not linear: the more f varies inside an area, the further its mean is from f's.
        around = self._around
        prior_mean = around.offset + around.bent * (inside - self._inside)
        tau2 = self._likelihood.factor_variance(params, around.bag_data)
        noise = around.by_factor**2 * tau2
        if around.displaced is not None:
            # The fit knows how the pixels differ by what is known everywhere, such as slopes.
            between = np.maximum(around.between + inside - self._inside, 0.0)
            noise = noise + np.where(around.displaced, between, 0.0)
        prior_mean = prior_mean - 0.5 * around.by_factor * tau2
        v = around.moved(self._at, self._likelihood.log_scale(params, around.bag_data))
        for _ in range(MOST_STEPS if around.moves else 1):
            found = self._regress(cov, prior_mean, noise, self._site(params, v))
            if found is None:
                return None
            value, mean, precision, mode = found
            step = np.where(around.factored, 0.0, mode - v)
            close = not around.moves or np.abs(step).max() < CLOSE * self.large_sd
            if close:
                break
            v = v + np.clip(step, -LONGEST * self.large_sd, LONGEST * self.large_sd)
        else:
            return None
        self._at = v
        if self._model.priors == "weak":
            side = side_of(self._fixed)
            value += log_prior(self._kernel, theta, self._model.link_name, side)[0]
            arrays = {name: np.array([each]) for name, each in params.items()}
            value += log_prior_noise(self._likelihood, arrays, self._fixed)[0]
        return Evidence(value, mean, precision) if np.isfinite(value) else None

    def _regress(
        self, cov: np.ndarray, prior_mean: np.ndarray, noise: np.ndarray, sites: Sites
    ) -> tuple[float, float, float, np.ndarray] | None:
        """Return the evidence of the sites, mean and precision of the mean, and the mode of v."""
        site, variance, constant = sites
        around = self._around
        left = site - prior_mean
        found = regress(cov, left, variance + noise, around.ones, self._level, constant)
        if found is None:
            return None
        mode = site
        if around.moves:
            mode = site - variance * found.pull()
        return found.value, found.mean, found.precision, mode

    def _site(self, params: dict[str, float], v: np.ndarray) -> Sites:
        """Return the sites; those that do not move are kept."""
        base = {name: params[name] for name in self._around.base.parameters}
        key = tuple(base.values())
        if self._around.moves or self._sites is None or self._sites[0] != key:
            self._sites = (key, self._around.sites(base, v))
        return self._sites[1]

    def noise_share(self, x: np.ndarray, sd: float) -> float:
        """Return the noise's share in the variance of ``v`` between neighbouring areas.

        Parameters
        ----------
        x : (n_theta + n_own,) float64
        sd : float
            Deviation of the noise: of a factor on the mean, or in units of the responses'.
        """
        theta, field = x[: self._kernel.n_theta], 0.0
        around, here = self._around, self._here
        if self._neighbour is not None:
            for number, term in enumerate(self._cov.terms):
                if getattr(term.kernel, "spatial", False):
                    k = self._cov.term(number, theta)
                    field += float(np.mean(np.diag(k)[here] - k[here, self._neighbour]))
        scale = around.by_factor[here] if self._likelihood.positive else 1.0
        noise = float(np.mean((scale * sd) ** 2))
        return noise / (noise + max(field, 0.0))


@dataclass(frozen=True)
class Regression:
    """Gaussian regression between areas, with a mean of flat prior.

    Attributes
    ----------
    value : float
        Its log density, nats.
    mean, precision : float
        Of the posterior of the mean.
    lower : (n_area, n_area) float64
    off : (n_area,) float64
        What is left of the responses, whitened by ``lower``.
    """

    value: float
    mean: float
    precision: float
    lower: np.ndarray
    off: np.ndarray

    def pull(self) -> np.ndarray:
        """Return the inverse covariance times what is left: (n_area,)."""
        found: np.ndarray = solve_triangular(
            self.lower, self.off, lower=True, trans="T", check_finite=False
        )
        return found


def regress(
    cov: np.ndarray,
    responses: np.ndarray,
    noise: np.ndarray,
    ones: np.ndarray,
    level: tuple[float, float],
    constant: float = 0.0,
) -> Regression | None:
    """Regress responses whose prior covariance is known.

    Parameters
    ----------
    cov : (n_area, n_area) float64
    responses, noise : (n_area,) float64
        And the variance of their noise.
    ones : (n_area,) float64
        What the mean adds to each.
    level : tuple of float
        Place and precision of a response of the mean alone, :func:`level_site`.
    constant : float
        Of the log density.

    Returns
    -------
    Regression
        None where the covariance is not positive definite, or nothing tells of the mean.
    """
    whole = cov.copy()
    whole[np.diag_indices_from(whole)] += noise
    try:
        lower = cholesky(whole)
    except np.linalg.LinAlgError:
        return None
    white = solve_triangular(
        lower, np.stack([responses, ones], axis=1), lower=True, check_finite=False
    )
    # The prior of the level, expanded around the fit's, is a response of the mean alone.
    place, known = level
    precision = float(white[:, 1] @ white[:, 1]) + known
    if not precision > 0.0:
        return None
    mean = (float(white[:, 1] @ white[:, 0]) + known * place) / precision
    square = float(white[:, 0] @ white[:, 0]) + known * place**2 - precision * mean**2
    value = constant - 0.5 * square - float(np.log(np.diag(lower)).sum())
    value -= 0.5 * float(np.log(precision))
    return Regression(value, mean, precision, lower, white[:, 0] - mean * white[:, 1])


def _inverse(link: Link, level: np.ndarray) -> np.ndarray:
    return np.array([link.inverse(float(each)) for each in level])


def level_site(link: Link, mean: float, fixed: Arrays) -> tuple[float, float]:
    """Return place and precision of the prior of the level, to second order around a mean."""
    slopes = [log_prior_level(link.name, mean + by, fixed)[1] for by in (-STEP, 0.0, STEP)]
    precision = (slopes[0] - slopes[2]) / (2.0 * STEP)
    if precision < LEAST_PRECISION:
        return mean, 0.0
    return mean + slopes[1] / precision, precision


def _slope_of_slope(link: Link, v: np.ndarray) -> np.ndarray:
    up, down = link.slope(v + DIFFERENCE), link.slope(v - DIFFERENCE)
    return np.asarray(up - down) / (2.0 * DIFFERENCE)


def nearest(centre: np.ndarray) -> np.ndarray:
    """Return the nearest other row of each: (n,)."""
    gap = ((centre[:, None] - centre) ** 2).sum(axis=2)
    np.fill_diagonal(gap, np.inf)
    return np.asarray(gap.argmin(axis=1))
