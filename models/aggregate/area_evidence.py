r"""The evidence of the hyperparameters from areas whose aggregates are linear in ``f``.

Around a fit the aggregate of an area is a function of ``v_a``, which is linear in ``f``, and its
response a Gaussian site of ``v_a`` (:mod:`models.aggregate.linearised`). So the model is Gaussian
regression between areas,

    log Z(phi) = log N(site; prior mean, cov(b'f) + area effect + site variance) + constants,

the mean integrated under its flat prior. One factorisation of an (n_area, n_area) matrix gives its
value: thousands of evaluations cost less than a fit, so that the posterior of the hyperparameters
can be explored where it is skewed or has several modes, as noise between areas and a field shorter
than an area have. It has neither inducing variables nor a bound: a second route to the evidence.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf

from models.aggregate.linearised import LEAST_PRECISION, Linearised, Sites
from models.aggregate.surface_model import SurfaceModel
from models.core.block import BagBlock
from models.core.protocol import Arrays, State
from models.gp.average_covariance import AverageCovariance
from models.gp.kernel_model import exactly
from models.gp.kernel_terms import whole_kernel
from models.gp.priors import log_prior, log_prior_level, log_prior_noise, side_of
from models.likelihoods.links import Link

STEP = 0.1  # of the difference that tells the prior of the level
BORDER = 1e300  # of a factor's last rows, so that these are right-hand sides, solved
MOST_STEPS, LONGEST, CLOSE = 20, 2.0, 0.003  # of Newton's method; in large deviations of f


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
        All training bags; where they have many pixels, some of them.

    Attributes
    ----------
    seen : (n,) int64
        Areas whose responses count; all but for :meth:`without`.
    usable, moves : bool
        See :class:`models.aggregate.linearised.Linearised`.
    """

    def __init__(self, model: SurfaceModel, state: State, bags: BagBlock) -> None:
        self._model, self._fixed = model, state.fixed
        self.seen = np.arange(bags.n_bag)
        params = exactly(model.block_params(state))
        self._kernel = whole_kernel(model._kernel(state.fixed))
        self._n_theta = self._kernel.n_theta
        link, self._likelihood = model.resolved_link, model.resolved_likelihood
        self._around = around = Linearised(model, state.fixed, params, bags)
        self._cov = AverageCovariance(self._kernel, around.z, around.b, bags.offsets)
        self._inside = self._cov(state.params["theta"])[1]
        self._at = around.start
        self.usable, self.moves = around.usable, around.moves
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

    def without(self, unseen: np.ndarray) -> AreaEvidence:
        """Return the evidence of all areas but some, around the same fit.

        Parameters
        ----------
        unseen : (n_area,) bool
        """
        other = copy.copy(self)
        other.seen = self.seen[~unseen[self.seen]]
        return other

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
        found = self._regressed(x, self.prior(x[: self._n_theta]))
        if found is None:
            return None
        value = found.value
        if self._model.priors == "weak":
            theta, side = x[: self._n_theta], side_of(self._fixed)
            value += log_prior(self._kernel, theta, self._model.link_name, side)[0]
            arrays = {name: np.array([each]) for name, each in self.own(x).items()}
            value += log_prior_noise(self._likelihood, arrays, self._fixed)[0]
        return Evidence(value, found.mean, found.precision) if np.isfinite(value) else None

    def own(self, x: np.ndarray) -> dict[str, float]:
        """Return the likelihood's parameters among all."""
        own = x[self._n_theta :]
        return dict(zip(self._likelihood.parameters, own.tolist(), strict=True))

    def prior(self, theta: np.ndarray) -> Prior:
        """Return the prior of ``v`` under parameters of the kernel: (n_theta,)."""
        cov, inside = self._cov.lower(theta)
        # Psi is not linear: the more f varies inside an area, the further its mean is from f's.
        around = self._around
        return Prior(around.offset + around.bent * (inside - self._inside), cov, inside)

    def _regressed(self, x: np.ndarray, prior: Prior) -> Regression | None:
        """Regress the sites of the areas that are seen; those that move, at the mode of ``v``."""
        around, params, seen = self._around, self.own(x), self.seen
        tau2 = self._likelihood.factor_variance(params, around.bag_data)
        noise = around.by_factor**2 * tau2
        if around.displaced is not None:
            # The fit knows how the pixels differ by what is known everywhere, such as slopes.
            between = np.maximum(around.between + prior.inside - self._inside, 0.0)
            noise = noise + np.where(around.displaced, between, 0.0)
        mean = prior.mean - 0.5 * around.by_factor * tau2
        cov = prior.cov if seen.size == mean.size else prior.cov[np.ix_(seen, seen)]
        v = around.moved(self._at, self._likelihood.log_scale(params, around.bag_data))
        for _ in range(MOST_STEPS if around.moves else 1):
            site, variance, constant = (each[seen] for each in self._site(params, v))
            found = regress(
                cov,
                site - mean[seen],
                variance + noise[seen],
                around.ones[seen],
                self._level,
                float(constant.sum()),
            )
            if found is None:
                return None
            if not around.moves:
                break
            step = np.where(around.factored[seen], 0.0, site - variance * found.pull() - v[seen])
            if np.abs(step).max() < CLOSE * self.large_sd:
                break
            v = v.copy()
            v[seen] += np.clip(step, -LONGEST * self.large_sd, LONGEST * self.large_sd)
        else:
            return None
        self._at = v
        return found

    def given(self, x: np.ndarray, rows: np.ndarray) -> Given | None:
        """Return the posterior of ``v`` in some areas by the responses of those that are seen.

        Parameters
        ----------
        x : (n_theta + n_own,) float64
        rows : (n,) int64
            None of :attr:`seen`.

        Returns
        -------
        Given
            Or None where the covariances are not positive definite.
        """
        prior, seen = self.prior(x[: self._n_theta]), self.seen
        found = self._regressed(x, prior)
        if found is None:
            return None
        whole = prior.cov + np.tril(prior.cov, -1).T
        across = solve_triangular(
            found.lower, whole[np.ix_(seen, rows)], lower=True, check_finite=False
        )
        # What the mean adds to each area, less what it adds by way of those that are seen.
        by_mean = self._around.ones[rows] - across.T @ found.by_mean
        mean = prior.mean[rows] + across.T @ found.off + found.mean * self._around.ones[rows]
        cov = whole[np.ix_(rows, rows)] - across.T @ across
        return Given(mean, cov + np.outer(by_mean, by_mean) / found.precision)

    def aggregate(self, v: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the aggregates of the areas ``rows`` (n,) where ``v`` is (..., n)."""
        return self._around.aggregate(v, rows)

    def _site(self, params: dict[str, float], v: np.ndarray) -> Sites:
        """Return the sites; those that do not move are kept."""
        base = {name: params[name] for name in self._around.base.parameters}
        key = tuple(base.values())
        if self._around.moves or self._sites is None or self._sites[0] != key:
            self._sites = (key, self._around.sites(base, v))
        return self._sites[1]

    @property
    def middle(self) -> float:
        """Mean of ``Psi`` in the middle area."""
        return float(np.median(self._around.level[self._here]))

    def noise_share(self, x: np.ndarray, sd: float) -> float:
        """Return the noise's share in the variance of ``v`` between neighbouring areas.

        Parameters
        ----------
        x : (n_theta + n_own,) float64
        sd : float
            Deviation of the noise (:meth:`Places.sd`).
        """
        theta, field = x[: self._n_theta], 0.0
        around, here = self._around, self._here
        if self._neighbour is not None:
            for number, term in enumerate(self._cov.terms):
                if getattr(term.kernel, "spatial", False):
                    k = self._cov.term(number, theta)
                    field += float(np.mean(np.diag(k)[here] - k[here, self._neighbour]))
        if self._likelihood.positive:
            factor = self._likelihood.factor_deviation(sd, around.level[here])
            noise = float(np.mean((around.by_factor[here] * factor) ** 2))
        else:
            noise = sd**2
        return noise / (noise + max(field, 0.0))


@dataclass(frozen=True)
class Prior:
    """The prior of the areas' ``v``, without the mean.

    Attributes
    ----------
    mean : (n_area,) float64
    cov : (n_area, n_area) float64
        Its lower triangle, and 0 above it.
    inside : (n_area,) float64
        Variance of ``f`` inside each area.
    """

    mean: np.ndarray
    cov: np.ndarray
    inside: np.ndarray


@dataclass(frozen=True)
class Given:
    """The posterior of ``v`` in some areas by the responses of others.

    Attributes
    ----------
    mean : (n,) float64
    cov : (n, n) float64
    """

    mean: np.ndarray
    cov: np.ndarray

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw it: (n, n_area)."""
        value, vector = np.linalg.eigh(0.5 * (self.cov + self.cov.T))
        root = vector * np.sqrt(np.maximum(value, 0.0))
        return np.asarray(self.mean + rng.standard_normal((n, value.size)) @ root.T)


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
    off, by_mean : (n_area,) float64
        What is left of the responses, and what the mean adds to each, whitened by ``lower``.
    """

    value: float
    mean: float
    precision: float
    lower: np.ndarray
    off: np.ndarray
    by_mean: np.ndarray

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
        Its lower triangle is read.
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
    n = responses.size
    # The factor of what is bordered by right-hand sides has these, solved, in its last rows.
    whole = np.zeros((n + 2, n + 2))
    whole[:n, :n] = cov
    whole[n, :n], whole[n + 1, :n] = responses, ones
    whole[range(n + 2), range(n + 2)] += np.append(noise, (BORDER, BORDER))
    factor, info = dpotrf(whole.T, lower=0, overwrite_a=1, clean=0)
    if info != 0:
        return None
    lower, white = factor.T[:n, :n], factor.T[n:, :n]
    # The prior of the level, expanded around the fit's, is a response of the mean alone.
    place, known = level
    precision = float(white[1] @ white[1]) + known
    if not precision > 0.0:
        return None
    mean = (float(white[1] @ white[0]) + known * place) / precision
    square = float(white[0] @ white[0]) + known * place**2 - precision * mean**2
    value = constant - 0.5 * square - float(np.log(np.diag(lower)).sum())
    value -= 0.5 * float(np.log(precision))
    off = white[0] - mean * white[1]
    return Regression(value, mean, precision, lower, off, white[1])


def level_site(link: Link, mean: float, fixed: Arrays) -> tuple[float, float]:
    """Return place and precision of the prior of the level, to second order around a mean."""
    slopes = [log_prior_level(link.name, mean + by, fixed)[1] for by in (-STEP, 0.0, STEP)]
    precision = (slopes[0] - slopes[2]) / (2.0 * STEP)
    if precision < LEAST_PRECISION:
        return mean, 0.0
    return mean + slopes[1] / precision, precision


def nearest(centre: np.ndarray) -> np.ndarray:
    """Return the nearest other row of each: (n,)."""
    gap = ((centre[:, None] - centre) ** 2).sum(axis=2)
    np.fill_diagonal(gap, np.inf)
    return np.asarray(gap.argmin(axis=1))
