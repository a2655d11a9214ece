"""A small country of several months, and models of it at given hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models import Bags, Period, PeriodSource, SpaceTime
from models.core.protocol import State
from models.temporal.profile import TemporalProfile

SIDE, AREAS = 8, 2  # pixels along a side, and areas
TEXT = "ridge(x) + matern32(space) + area * time(matern12) + constant * season"


def months(n_period: int, *, likelihood: str = "poisson", seed: int = 1) -> list[Period]:
    """Return periods of 16 areas of 4 pixels."""
    rng = np.random.default_rng(seed)
    row, column = np.divmod(np.arange(SIDE**2), SIDE)
    area = row // AREAS * (SIDE // AREAS) + column // AREAS
    order = np.argsort(area, kind="stable")
    coords = np.column_stack([row, column])[order].astype(float)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(area))])
    found = []
    for t in range(n_period):
        x = rng.standard_normal((SIDE**2, 2))
        f = -1.0 + 0.5 * x[:, 0] + 0.6 * np.sin(2 * np.pi * t / 6) + 0.5 * np.cos(coords[:, 0] / 3)
        weight = rng.uniform(5.0, 15.0, SIDE**2)
        if likelihood == "normal":
            mean = np.add.reduceat(weight * f, offsets[:-1])
            y = mean + 3.0 * rng.standard_normal(mean.size)
        else:
            y = rng.poisson(np.add.reduceat(weight * np.exp(f), offsets[:-1])).astype(float)
        trials = (
            None if likelihood == "normal" else np.ceil(np.add.reduceat(weight, offsets[:-1])) + y
        )
        found.append(Period(float(t), Bags(x, offsets, y, weight, coords, trials)))
    return found


def model_of(**settings: Any) -> SpaceTime:
    """Return a model of few inducing points, without draws of the hyperparameters."""
    given = {"kernel": TEXT, "season_length": 6.0, "n_inducing": 12, "integrate": "none"}
    return SpaceTime(**{**given, **settings})


class Held:
    """A model at its start, whose sites alone are fitted.

    Parameters
    ----------
    model : SpaceTime
    periods : list of Period
    block_pixels : int
    """

    def __init__(self, model: SpaceTime, periods: list[Period], block_pixels: int = 8192) -> None:
        self.model = model
        self.source = PeriodSource(periods, block_pixels=block_pixels)
        rng = np.random.default_rng(0)
        self.start = model.init(self.source.summary(rng), rng)
        self.profile = self.profile_of(sorted(set(self.source.block_period.tolist())))

    def profile_of(self, periods: list[int]) -> TemporalProfile:
        """Return the profile bound over some periods."""
        return TemporalProfile(self.model, self._sums, periods)

    def _sums(self, periods: list[int], params_of: Any, slopes: bool, take: Any) -> list[Any]:
        found = []
        for t in periods:
            params = {**params_of(t), "slopes": np.array([slopes])}
            own = [
                self.model.block_stats(params, self.source.read(k), None)[0]
                for k in np.flatnonzero(self.source.block_period == t)
            ]
            found.append(take(t, sum(own[1:], own[0])))
        return found

    def best(self, state: State | None = None, tolerance: float = 1e-9) -> State:
        """Return the state with the best sites."""
        return self.profile.at(state or self.start, tolerance, slopes=False).state


@dataclass(frozen=True)
class Dense:
    """Normal responses of bags of one pixel, and their exact posterior.

    ``mean`` (n_period * n,) and ``cov`` are of ``f``, period by period.
    """

    held: Held
    state: State
    times: list[float]
    inputs: np.ndarray
    coords: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    evidence: float


def dense_regression() -> Dense:
    """Return 12 pixels of three periods, inducing points at all of them."""
    rng, n, times = np.random.default_rng(2), 12, [0.0, 1.0, 3.0]
    coords = rng.uniform(0, 4, (n, 2))
    kernel = "matern12(space) * time(constant + matern32) + area * time(matern12)"
    every = [
        Bags(np.zeros((n, 1)), np.arange(n + 1), rng.normal(size=n), None, coords) for _ in times
    ]
    model = model_of(kernel=kernel, likelihood="normal", n_moving=n, priors="none")
    held = Held(model, [Period(t, bags) for t, bags in zip(times, every, strict=True)])
    state = held.best()
    base, mean = float(state.fixed["base_rate"][0]), float(state.params["mean"][0])
    inputs = np.column_stack([every[0].x, np.arange(n)])
    k, noise = _dense_prior(model, state, inputs, coords, times)
    whole_cov = base**2 * k + noise * np.eye(3 * n)
    y = np.concatenate([bags.y for bags in every])
    off = y - base * mean
    return Dense(
        held,
        state,
        times,
        inputs,
        coords,
        mean + base * k @ np.linalg.solve(whole_cov, off),
        k - base**2 * k @ np.linalg.solve(whole_cov, k),
        dense_evidence(model, state, inputs, coords, times, y),
    )


def dense_evidence(
    model: SpaceTime,
    state: State,
    inputs: np.ndarray,
    coords: np.ndarray,
    times: list[float],
    y: np.ndarray,
) -> float:
    """Return the log density of normal responses (n_period * n,), of those that are numbers."""
    base, mean = float(state.fixed["base_rate"][0]), float(state.params["mean"][0])
    k, noise = _dense_prior(model, state, inputs, coords, times)
    known = np.flatnonzero(np.isfinite(y))
    cov = base**2 * k[np.ix_(known, known)] + noise * np.eye(known.size)
    off = y[known] - base * mean
    square = off @ np.linalg.solve(cov, off)
    logdet = np.linalg.slogdet(cov)[1]
    return float(-0.5 * (square + logdet + known.size * np.log(2 * np.pi)))


def _dense_prior(
    model: SpaceTime, state: State, inputs: np.ndarray, coords: np.ndarray, times: list[float]
) -> tuple[np.ndarray, float]:
    """Return the covariance of ``f`` over periods and pixels, and the variance of the noise."""
    fixed, params, n = state.fixed, state.params, len(times)
    z = model._scaled(params | fixed, inputs, coords)
    whole = model._whole(fixed)
    (first, second), theta = model.text(fixed).times, model.text(fixed).split(params["time"])
    lags = (np.array(times)[:, None] - np.array(times)).ravel()
    space = whole.left.matrix(params["theta"][:2], z, z)  # type: ignore[attr-defined]
    areas = whole.right.matrix(params["theta"][2:], z, z)  # type: ignore[attr-defined]
    k = np.kron(first.covariance(theta[0], lags).reshape(n, n), space)
    k += np.kron(second.covariance(theta[1], lags).reshape(n, n), areas)
    noise = np.exp(float(params["log_noise"][0])) + np.exp(2 * float(params["log_area_noise"][0]))
    return k, noise
