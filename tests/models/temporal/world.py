"""A small country of several months, and models of it at given hyperparameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from models import Bags, Period, PeriodSource, SpaceTime
from models.core.protocol import State, Stats
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

    def _sums(self, asked: list[tuple[int, Any]], slopes: bool) -> list[Stats]:
        found = []
        for t, params in asked:
            own = [
                self.model.block_stats(
                    {**params, "slopes": np.array([slopes])}, self.source.read(k), None
                )[0]
                for k in np.flatnonzero(self.source.block_period == t)
            ]
            found.append(sum(own[1:], own[0]))
        return found

    def best(self, state: State | None = None, tolerance: float = 1e-9) -> State:
        """Return the state with the best sites."""
        return self.profile.at(state or self.start, tolerance, slopes=False).state
