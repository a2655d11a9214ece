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
        link, likelihood = model.resolved_link, model.resolved_likelihood
        self._link, self._likelihood = link, likelihood
        seen = Observation.of(likelihood, link, params, bags)
        fitted = model._pass(params, model._scaled(params, bags.x, bags.coords), learn=False)
        m, s = np.asarray(fitted.m, dtype=np.float64), np.asarray(fitted.s, dtype=np.float64)
        rate, slope = link.moments(m, s, 1)
        total = np.maximum(segment_sum(seen.p, seen.offsets), LEAST)
        level = segment_sum(seen.p * rate, seen.offsets) / total
        v0 = _inverse(link, np.maximum(level, LEAST) if likelihood.positive else level)
        bag = np.repeat(np.arange(bags.n_bag), np.diff(bags.offsets))
        b = seen.p * slope / (total * link.slope(v0))[bag]
        b = np.maximum(b, 0.0)  # one branch of the square link
        known = bool(np.isfinite(b).all() and np.isfinite(v0).all() and b.any())
        b = np.nan_to_num(b, nan=0.0, posinf=0.0)
        z = scaled_inputs(state.fixed, bags.x, bags.coords, np.float64)
        self._cov = AverageCovariance(self._kernel, z, b, seen.offsets)
        self._ones = segment_sum(b, seen.offsets)
        self._offset = v0 - segment_sum(b * m, seen.offsets)
        self._total, self._seen = total, seen
        self._inside = self._cov(state.params["theta"])[1]
        self._bent = 0.5 * _slope_of_slope(link, v0) / link.slope(v0)
        # A law whose own parameters move has its sites at the mode under each: found by Newton's
        # steps from the last. A factor's noise stands beside the sites, which stay where they are;
        # those of a quadratic log density are the same everywhere.
        self._at, self._moves = v0, not likelihood.quadratic
        # A factor on Psi(v) adds to v, to first order; noise in units of the responses is v's own.
        self._by_factor = np.asarray(link.value(v0) / link.slope(v0))
        self._base, tau2 = likelihood.without_factor(seen.params)
        if tau2 > 0.0:
            self._moves = False
            t = np.log(np.maximum(total * link.value(v0), LEAST)) - 0.5 * tau2
            spread = np.full(bags.n_bag, tau2 + SPREAD)
            mode, _ = mixture_mode(self._base, seen.y, t, seen.params, seen.bag_data, spread)
            self._at = _inverse(link, np.exp(mode) / total)
        # With fewer cases than the prior of the level calls few the posterior of the mean is far
        # from Gaussian; where no rate has a slope there is nothing to expand.
        few = few_cases(link.name, float(params["mean"][0]), state.fixed)
        self.usable = known and not few
        self._level = _level_site(link, float(params["mean"][0]), state.fixed)
        self.large_sd = link.large_sd
        self.side = side_of(state.fixed) or 1.0
        self._sites: tuple[tuple[float, ...], Sites] | None = None
        self._neighbour = None
        if bags.coords is not None and bags.n_bag > 1:
            axes = z[:, bags.x.shape[1] :].T
            centre = [segment_sum(seen.p * axis, seen.offsets) / total for axis in axes]
            self._neighbour = _nearest(np.stack(centre, axis=1))

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
        prior_mean = self._offset + self._bent * (inside - self._inside)
        _, tau2 = self._likelihood.without_factor(params)
        noise = self._by_factor**2 * tau2
        prior_mean = prior_mean - 0.5 * self._by_factor * tau2
        v = self._at
        for _ in range(MOST_STEPS if self._moves else 1):
            found = self._regress(cov, prior_mean, noise, self._site(params, v))
            if found is None:
                return None
            value, mean, precision, mode = found
            step = mode - v
            close = not self._moves or np.abs(step).max() < CLOSE * self.large_sd
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
        whole = cov.copy()
        whole[np.diag_indices_from(whole)] += variance + noise
        try:
            lower = cholesky(whole)
        except np.linalg.LinAlgError:
            return None
        white = solve_triangular(
            lower, np.stack([site - prior_mean, self._ones], axis=1), lower=True, check_finite=False
        )
        # The prior of the level, expanded around the fit's, is a response of the mean alone.
        level, known = self._level
        precision = float(white[:, 1] @ white[:, 1]) + known
        if not precision > 0.0:
            return None
        mean = (float(white[:, 1] @ white[:, 0]) + known * level) / precision
        square = float(white[:, 0] @ white[:, 0]) + known * level**2 - precision * mean**2
        value = constant - 0.5 * square - float(np.log(np.diag(lower)).sum())
        value -= 0.5 * float(np.log(precision))
        mode = site
        if self._moves:
            off = white[:, 0] - mean * white[:, 1]
            mode = site - variance * solve_triangular(
                lower, off, lower=True, trans="T", check_finite=False
            )
        return value, mean, precision, mode

    def _site(self, params: dict[str, float], v: np.ndarray) -> Sites:
        """Return the Gaussian sites of the areas: their places and variances, and a constant."""
        base = {name: params[name] for name in self._base.parameters}
        key = tuple(base.values())
        if self._moves or self._sites is None or self._sites[0] != key:
            link, total = self._link, self._total
            mean = self._base.inside(total * link.value(v), GAP)
            at = self._base.terms(self._seen.y, mean, base, self._seen.bag_data, order=3)
            slope = total * link.slope(v)
            bend = total * _slope_of_slope(link, v)
            first = at.d1 * slope
            precision = -(at.d2 * slope**2 + at.d1 * bend)
            known = precision > LEAST_PRECISION
            precision = np.maximum(precision, LEAST_PRECISION)
            first = np.where(known, first, 0.0)
            constant = at.value + 0.5 * first**2 / precision - 0.5 * np.log(precision)
            made = (v + first / precision, 1.0 / precision, float(constant.sum()))
            self._sites = (key, made)
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
        here = np.arange(self._offset.size)
        if self._neighbour is not None:
            for number, term in enumerate(self._cov.terms):
                if getattr(term.kernel, "spatial", False):
                    k = self._cov.term(number, theta)
                    field += float(np.mean(np.diag(k) - k[here, self._neighbour]))
        scale = self._by_factor if self._likelihood.positive else 1.0
        noise = float(np.mean((scale * sd) ** 2))
        return noise / (noise + max(field, 0.0))


def _inverse(link: Link, level: np.ndarray) -> np.ndarray:
    return np.array([link.inverse(float(each)) for each in level])


def _level_site(link: Link, mean: float, fixed: Arrays) -> tuple[float, float]:
    """Return place and precision of the prior of the level, to second order around a mean."""
    slopes = [log_prior_level(link.name, mean + by, fixed)[1] for by in (-STEP, 0.0, STEP)]
    precision = (slopes[0] - slopes[2]) / (2.0 * STEP)
    if precision < LEAST_PRECISION:
        return mean, 0.0
    return mean + slopes[1] / precision, precision


def _slope_of_slope(link: Link, v: np.ndarray) -> np.ndarray:
    up, down = link.slope(v + DIFFERENCE), link.slope(v - DIFFERENCE)
    return np.asarray(up - down) / (2.0 * DIFFERENCE)


def _nearest(centre: np.ndarray) -> np.ndarray:
    """Return the nearest other row of each: (n,)."""
    gap = ((centre[:, None] - centre) ** 2).sum(axis=2)
    np.fill_diagonal(gap, np.inf)
    return np.asarray(gap.argmin(axis=1))
