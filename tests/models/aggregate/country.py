"""A small country whose exact posterior is dense algebra: areas of a grid, and its evidence."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from scipy.special import gammaln

from models import Bags
from models.aggregate.profile_bound import ProfileBound
from models.training.few_pixels import asked


def country(seed=0, side=24, n_area=16, cases=19.0, range_=5.0, sd=0.5):
    """Bags of a grid: one covariate, a Matern field, and Voronoi cells as areas."""
    rng = np.random.default_rng([13, seed])
    at = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2).astype(float)
    near = np.exp(-0.5 * (cdist(at, at) / 4.0) ** 2) + 1e-6 * np.eye(side**2)
    x = np.linalg.cholesky(near) @ rng.standard_normal((side**2, 1))
    x = (x - x.mean()) / x.std()
    field = np.linalg.cholesky(matern32(cdist(at, at), range_) + 1e-8 * np.eye(side**2))
    f = 0.3 * x[:, 0] + sd * (field @ rng.standard_normal(side**2))
    people = np.exp(0.5 * rng.standard_normal(side**2))
    area = cKDTree(rng.uniform(0, side - 1, (n_area, 2))).query(at)[1]
    order = np.argsort(area, kind="stable")
    counts = np.bincount(area)
    offsets = np.concatenate([[0], np.cumsum(counts[counts > 0])])
    x, at, f, people = x[order], at[order], f[order], people[order]
    n = offsets.size - 1
    people *= cases * n / (people * np.exp(f)).sum()
    y = rng.poisson(np.add.reduceat(people * np.exp(f), offsets[:-1])).astype(float)
    return Bags(x, offsets, y, people, at)


def matern32(distance, range_):
    r = np.sqrt(3.0) * distance / range_
    return (1.0 + r) * np.exp(-r)


@dataclass
class Dense:
    """Poisson counts of areas under a dense Gaussian process with a given prior covariance."""

    y: np.ndarray
    p: np.ndarray
    offsets: np.ndarray
    prior: np.ndarray

    def log_likelihood(self, f):
        """Of each row of ``f`` (n, n_pix)."""
        eta = np.add.reduceat(self.p * np.exp(f), self.offsets[:-1], axis=-1)
        return (self.y * np.log(eta) - eta - gammaln(self.y + 1)).sum(axis=-1)

    def laplace(self):
        """Log evidence by Laplace's method; the mode, and the covariance there."""
        n, n_bag = self.p.size, self.y.size
        bag = np.repeat(np.arange(n_bag), np.diff(self.offsets))
        f = np.zeros(n)
        for _ in range(60):
            e = self.p * np.exp(f)
            eta = np.add.reduceat(e, self.offsets[:-1])
            share = np.zeros((n_bag, n))
            share[bag, np.arange(n)] = e / eta[bag] * np.sqrt(self.y[bag])
            # Newton's step with the curvature of y log(eta) alone, which is positive definite.
            right = (self.y / eta - 1.0)[bag] * e + share.T @ (share @ f)
            k = self.prior @ share.T
            weight = right - share.T @ np.linalg.solve(np.eye(n_bag) + share @ k, k.T @ right)
            step = self.prior @ weight - f
            f = f + step * min(1.0, 1.0 / np.abs(step).max())
            if np.abs(step).max() < 1e-9:
                break
        curvature = np.diag((1.0 - self.y / eta)[bag] * e) + share.T @ share
        inner = np.eye(n) + self.prior @ curvature
        log_det = np.linalg.slogdet(inner)[1]
        value = float(self.log_likelihood(f) - 0.5 * f @ weight - 0.5 * log_det)
        return value, f, np.linalg.solve(inner, self.prior)

    def evidence(self, n_draw, rng):
        """Importance sampling from Laplace's posterior.

        Returns the log evidence, its standard error, and the posterior mean and deviation of ``f``.
        """
        _, mode, cov = self.laplace()
        n = mode.size
        low = np.linalg.cholesky(0.5 * (cov + cov.T) + 1e-9 * np.eye(n))
        low_prior = np.linalg.cholesky(self.prior + 1e-9 * np.eye(n))
        white = rng.standard_normal((n, n_draw))
        f = mode[:, None] + low @ white
        log_prior = -0.5 * (np.linalg.solve(low_prior, f) ** 2).sum(axis=0)
        log_prior -= np.log(np.diag(low_prior)).sum()
        log_own = -0.5 * (white**2).sum(axis=0) - np.log(np.diag(low)).sum()
        log_weight = self.log_likelihood(f.T) + log_prior - log_own
        top = log_weight.max()
        weight = np.exp(log_weight - top)
        error = weight.std() / weight.mean() / np.sqrt(n_draw)
        mean = f @ weight / weight.sum()
        sd = np.sqrt((f - mean[:, None]) ** 2 @ weight / weight.sum())
        return float(top + np.log(weight.mean())), float(error), mean, sd


def widened(state, root=0.3):
    """Return a state whose ``q`` is not as narrow as a fit's start: its deviation there."""
    wide = np.log(root) * np.eye(state.params["root"].shape[0])
    return replace(state, params={**state.params, "root": wide})


def profile_of(model, bags):
    """Return the profile bound of a model of bags."""
    return ProfileBound(
        model,
        lambda at, slopes: model.block_stats(asked(model, at, slopes=slopes), bags, None)[0],
        bags.n_bag,
    )
