r"""An independent yardstick of noisy counts: linear + Matern-3/2 + noise of areas, by quadrature.

The kind of model that R's `disaggregation` publishes, without its mesh and its mode. Around the
posterior mean, found by repetition, the log of an area's expected count is linear in slopes and
field, but for half of the variance that the rate has inside the area, and the Poisson likelihood is
Gaussian (Laplace's method),

    log eta_a = c_a + sum_i b_i (x_i' beta + field_i) + eps_a,    y_a ~ Poisson(eta_a),

so that everything but field variance, range and noise is integrated in closed form, and these three
over a grid. Nothing here calls ``models``; fields and pixels are dense.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import ndtr

from benchmarks.grids import Grid, matern

SLOPE_VARIANCE = 1.0  # of a slope by a deviation of its covariate
LEVEL_VARIANCE = 100.0
FIELD_SDS = np.array([0.05, 0.12, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0, 1.4])
RANGES = np.array([1.5, 2.5, 4.0, 6.0, 9.0, 13.0, 20.0, 40.0])  # km
NOISES = np.array([0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.85, 1.1])
ROUNDS = 6
LEAST_WEIGHT = 1e-3  # of a point of the grid
PRIOR_SD, PRIOR_NOISE, PRIOR_RANGE = 1.0, 0.5, 0.8  # each exceeded with probability .1; of sides


class ExactAreas:
    """Posterior of a grid's rates under that model.

    Parameters
    ----------
    grid : Grid
    known : tuple of float, optional
        The true deviation of the field, its range (km) and the noise: nothing is integrated.
    """

    def __init__(self, grid: Grid, known: tuple[float, float, float] | None = None) -> None:
        self._grid, self._area = grid, np.repeat(np.arange(grid.cases.size), np.diff(grid.offsets))
        self._y = grid.cases
        self._base = float(grid.cases.sum() / grid.people.sum())
        gap = np.hypot(*(grid.coords[:, None] - grid.coords).transpose(2, 0, 1))
        self._steps, self._which = np.unique(np.round(gap, 6), return_inverse=True)
        self._which = self._which.reshape(gap.shape)
        self._fields: dict[float, np.ndarray] = {}
        self._points = [known] if known else list(product(FIELD_SDS, RANGES, NOISES))
        self._mean, self._inside = np.zeros(self._area.size), np.zeros(self._y.size)
        self._latent = np.log(np.maximum(self._y, 0.5)) - np.log(
            self._base * np.bincount(self._area, grid.people)
        )
        for _ in range(ROUNDS):
            self._linearise()
            self.mean, self.sd, self.weight, self._latent, of_average = self._posterior()
            self._mean = self.weight @ self.mean
            self._inside = self._b @ (self.weight @ self.sd**2) - of_average

    def _field(self, length: float) -> np.ndarray:
        if length not in self._fields:
            self._fields[length] = matern(self._steps, length, 1.5)[self._which]
        return self._fields[length]

    def _linearise(self) -> None:
        weight = self._grid.people * np.exp(self._mean)
        total = np.bincount(self._area, weight)
        self._b = np.zeros((self._y.size, self._area.size))
        self._b[self._area, np.arange(self._area.size)] = weight / total[self._area]
        level = np.log(self._base * total) - self._b @ self._mean + 0.5 * self._inside
        eta = np.exp(np.clip(level + self._latent, -3.0, None))
        step = np.clip((self._y - eta) / eta, -2.0, 2.0)
        self._response, self._error = self._latent + step, 1.0 / eta

    def _posterior(self) -> tuple[np.ndarray, ...]:
        """Return means and deviations (n_point, n_pix) of log rates over the base, and weights.

        And means of the areas' logarithms, noise included, and variances of their averages.
        """
        x = np.column_stack([np.ones(self._area.size), self._grid.x])
        slopes = np.diag([LEVEL_VARIANCE] + [SLOPE_VARIANCE] * self._grid.x.shape[1])
        linear = x @ slopes @ (self._b @ x).T
        by_range = {
            length: self._field(length) @ self._b.T for length in {p[1] for p in self._points}
        }
        sizes = np.diff(self._grid.offsets)
        side = float(np.sqrt(np.median(sizes)))

        def parts(point: tuple[float, float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            sd, length, noise = point
            cross = linear + sd**2 * by_range[length]
            cov = self._b @ cross
            cov[np.diag_indices_from(cov)] += self._error + noise**2
            # The factor has mean one: its logarithm has mean -noise^2 / 2.
            return cross, np.linalg.cholesky(cov), self._response + 0.5 * noise**2

        value = []
        for sd, length, noise in self._points:
            _, lower, response = parts((sd, length, noise))
            white = solve_triangular(lower, response, lower=True)
            own = -0.5 * white @ white - np.log(np.diag(lower)).sum()
            own += np.log(sd * noise * _width(sd, FIELD_SDS) * _width(noise, NOISES))
            rate = np.log(10.0)
            own -= rate * (sd / PRIOR_SD + noise / PRIOR_NOISE + PRIOR_RANGE * side / length)
            own += np.log(_width(length, RANGES) / length)
            value.append(own)
        weight = np.exp(np.array(value) - max(value))
        weight /= weight.sum()
        chosen = np.flatnonzero(weight > LEAST_WEIGHT)
        means, sds, latents, averages = [], [], [], []
        for k in chosen:
            cross, lower, response = parts(self._points[k])
            white = solve_triangular(lower, cross.T, lower=True)
            seen = solve_triangular(lower, response, lower=True)
            means.append(white.T @ seen)
            # What the site's own error leaves of the response.
            rest = solve_triangular(lower.T, seen, lower=False)
            latents.append(self._response - self._error * rest)
            own = self._b @ cross - (white @ self._b.T).T @ (white @ self._b.T)
            averages.append(np.diag(own))
            prior = np.einsum("ij,jk,ik->i", x, slopes, x) + self._points[k][0] ** 2
            sds.append(np.sqrt(np.maximum(prior - (white**2).sum(axis=0), 1e-12)))
        share = weight[chosen] / weight[chosen].sum()
        return np.array(means), np.array(sds), share, share @ latents, share @ averages

    def scores(self) -> dict[str, Any]:
        """Return what :func:`benchmarks.grid_scores.pixel_scores` does of the same names."""
        truth = np.log(self._grid.rate / self._base)
        u = self.weight @ ndtr((truth - self.mean) / self.sd)
        inside, share = np.abs(u - 0.5) <= 0.45, self._grid.people / self._grid.people.sum()
        mean = np.log(self.weight @ np.exp(self.mean + 0.5 * self.sd**2))
        total_sd = np.sqrt(self.weight @ (self.mean**2 + self.sd**2) - self._mean**2)
        return {
            "coverage": {"0.9": float(inside.mean())},
            "coverage_people": {"0.9": float(share @ inside)},
            "correlation": float(np.corrcoef(mean, truth)[0, 1]),
            "width": float(2 * 1.645 * total_sd.mean()),
        }


def _width(value: float, points: np.ndarray) -> float:
    """Return the width, in logarithms, of a point of a grid; 1 of one that is not on it."""
    at = np.flatnonzero(points == value)
    if not at.size:
        return 1.0
    return float(np.gradient(np.log(points))[at[0]])
