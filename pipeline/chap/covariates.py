"""Covariates by period with their lags, and what stands in where the past is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from geo.core.errors import InputError, Problem, name_first
from pipeline.chap.tables import Table

#: Climate acts on vectors, and these on cases, after one to three months.
LAGS = {"month": (1, 2, 3), "week": (4, 8, 12)}
YEAR = {"month": 12.0, "week": 365.2425 / 7}  # in steps


@dataclass(frozen=True)
class Climate:
    """Covariates by lag, and their seasonal means in the training data.

    Attributes
    ----------
    names : list of str
    lags : tuple of int
        Steps.
    season : (n_name, n_season, n_location) float64
        Mean of each covariate in each month (or week) of the year, at each location.
    step : str
    """

    names: list[str]
    lags: tuple[int, ...]
    season: np.ndarray
    step: str

    @classmethod
    def of(cls, table: Table, names: Sequence[str], lags: Sequence[int] | None = None) -> Climate:
        """Return those of training data."""
        n = int(YEAR[table.step])
        place = season_of(table.times, table.step)
        means = np.full((len(names), n, len(table.locations)), np.nan)
        for k, name in enumerate(names):
            values = table.covariates[name]
            for s in range(n):
                own = values[place == s]
                means[k, s] = own.mean(axis=0) if own.size else values.mean(axis=0)
        return cls(list(names), tuple(lags or LAGS[table.step]), means, table.step)

    def inputs(self, tables: Sequence[Table], times: np.ndarray) -> np.ndarray:
        """Return covariates of some periods from tables, later ones first asked.

        Returns
        -------
        (n_time, n_location, n_name * n_lag) float64
            The seasonal mean where a lag reaches before all tables.
        """
        known: dict[int, list[np.ndarray]] = {}
        for table in tables:
            self._check(table)
            for row, time in enumerate(table.times.tolist()):
                known[time] = [table.covariates[name][row] for name in self.names]
        n_location = self.season.shape[2]
        found = np.zeros((len(times), n_location, len(self.names) * len(self.lags)))
        for i, time in enumerate(np.asarray(times).tolist()):
            for j, lag in enumerate(self.lags):
                at = int(time) - lag
                season = int(season_of(np.array([at]), self.step)[0])
                for k in range(len(self.names)):
                    own = known[at][k] if at in known else self.season[k, season]
                    found[i, :, k * len(self.lags) + j] = own
        return found

    def _check(self, table: Table) -> None:
        absent = [name for name in self.names if name not in table.covariates]
        if absent:
            remedy = "give the covariates of the training data"
            raise InputError(Problem(table.names[0], f"no column {name_first(absent)}", remedy))

    def pack(self) -> Mapping[str, np.ndarray]:
        """Return its arrays, to be stored."""
        return {"season": self.season, "lags": np.array(self.lags)}


def season_of(times: np.ndarray, step: str) -> np.ndarray:
    """Return the place in the year of each period: months 0 to 11, weeks 0 to 51."""
    year = YEAR[step]
    return np.floor(np.mod(times, year)).astype(np.int64) % int(year)
