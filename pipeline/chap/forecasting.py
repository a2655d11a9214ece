"""A model of counts by location and period: trained, kept in a folder, and asked for forecasts.

Each location is one bag of one pixel: its exposure is the population of the period, its covariates
are those of the periods before (:mod:`pipeline.chap.covariates`), its place the centroid of its
polygon, where there are polygons. A forecast takes the counts after the training into the model
(an update, no new fit), and draws counts of all locations and periods jointly.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from geo.core.errors import InputError, Problem, name_first
from models import Bags, Period, SpaceTime, load
from models.core.errors import ModelError
from pipeline.chap.configuration import Settings
from pipeline.chap.covariates import YEAR, Climate
from pipeline.chap.positions import read_positions
from pipeline.chap.tables import PLACE, TIME, Table
from pipeline.storage.files import atomic_write, write_json, write_text

SAMPLES = 100  # CHAP reads sample_0 to sample_99
_DESCRIPTION = "chap.json"
_ARRAYS = "chap.npz"


@dataclass(frozen=True)
class Trained:
    """A fitted model, and what its inputs are made of.

    Attributes
    ----------
    model : SpaceTime
    climate : Climate
    locations : list of str
        By the number of their area.
    places : (n_location, 2) float64 or None, km
    seed : int
    """

    model: SpaceTime
    climate: Climate
    locations: list[str]
    places: np.ndarray | None
    seed: int

    def save(self, folder: Path) -> None:
        """Write the model and what belongs to it to a folder."""
        self.model.save(folder)
        described = {
            "step": self.climate.step,
            "covariates": self.climate.names,
            "locations": self.locations,
            "seed": self.seed,
        }
        write_json(folder / _DESCRIPTION, described)
        arrays: dict[str, Any] = dict(self.climate.pack())
        if self.places is not None:
            arrays["places"] = self.places
        with atomic_write(folder / _ARRAYS) as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, folder: Path) -> Trained:
        """Read what :meth:`save` wrote.

        Raises
        ------
        InputError
            If the folder is none of that kind.
        """
        remedy = "give the MODEL that `disagg chap train` wrote"
        try:
            said = json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8"))
            with np.load(folder / _ARRAYS, allow_pickle=False) as arrays:
                held = {name: arrays[name] for name in arrays.files}
            model = load(folder)
            lags = tuple(held["lags"].tolist())
            climate = Climate(said["covariates"], lags, held["season"], said["step"])
            locations, seed = said["locations"], said["seed"]
        except (OSError, ValueError, KeyError, ModelError) as error:
            raise InputError(Problem(str(folder), "is no trained model", remedy)) from error
        if not isinstance(model, SpaceTime):
            raise InputError(Problem(str(folder), "is a model of one period", remedy))
        return cls(model, climate, locations, held.get("places"), seed)


def train(table: Table, settings: Settings, polygons: Path | None = None) -> Trained:
    """Fit the model to a table.

    Parameters
    ----------
    table : Table
    settings : Settings
    polygons : Path, optional
        GeoJSON with the locations' polygons; without it counts share no place.

    Raises
    ------
    InputError
        If no count is known, or a location or a covariate is absent.
    """
    if not np.nansum(table.cases) > 0:
        remedy = "give counts; some may be empty"
        raise InputError(Problem("disease_cases", "no case in any row", remedy))
    places = None if polygons is None else read_positions(polygons, table.locations)
    names = settings.chosen(sorted(table.covariates))
    climate = Climate.of(table, names, settings.lags)
    # A season is learnt from what returned: of a year or less it would be the drift.
    season = YEAR[table.step] if table.times.size > YEAR[table.step] else None
    model = SpaceTime(season_length=season, **settings.model)
    periods = _periods(table, climate.inputs([table], table.times), places, table.locations)
    return Trained(
        model.fit(periods, n_thread=settings.threads),
        climate,
        table.locations,
        places,
        model.seed or 0,
    )


def predict(
    trained: Trained,
    historic: Table,
    future: Table,
    n_draws: int = SAMPLES,
    threads: int | None = None,
) -> np.ndarray:
    """Draw the counts of future periods, jointly: (n_period, n_location, n_draws) float64.

    Parameters
    ----------
    trained : Trained
    historic : Table
        What is known: its periods after the training update the model.
    future : Table
        The periods and their covariates; population as last known where it has none.
    n_draws : int
    threads : int, optional

    Raises
    ------
    InputError
        If the tables do not go with the training data, or with each other.
    """
    historic = _ordered(historic, trained, "historic data")
    future = _ordered(future, trained, "future data")
    if future.times[0] <= historic.times[-1]:
        found = f"begins with {future.names[0]}, the historic data end with {historic.names[-1]}"
        raise InputError(Problem("future data", found, "give periods after the historic ones"))
    tables = [historic, future]
    model, places = trained.model, trained.places
    known = model.posterior_.times[-1]
    rows = np.flatnonzero(historic.times > known)
    if rows.size:
        inputs = trained.climate.inputs(tables, historic.times[rows])
        later = _periods(_rows(historic, rows), inputs, places, trained.locations)
        if any(period.bags is not None for period in later):
            model = model.with_periods(*later, n_thread=threads)
    last = historic.people[-1]
    people = np.where(np.isfinite(future.people), future.people, last)
    inputs = trained.climate.inputs(tables, future.times)
    rng = np.random.default_rng([trained.seed, int(future.times[0])])
    times = future.times.astype(float).tolist()
    functions = model.sample_functions(n_draws, rng, times)
    n = len(trained.locations)
    drawn = []
    for row, time in enumerate(times):
        bags = Bags(inputs[row], np.arange(n + 1), np.zeros(n), people[row], places)
        expected = model.predict_bags(bags, period=time, area=np.arange(n), draws=functions)
        drawn.append(expected.observed(rng).draws.T)
    return np.stack(drawn)


def write_samples(path: Path, table: Table, locations: list[str], draws: np.ndarray) -> None:
    """Write ``time_period, location, sample_0 ...``: a row for each period and location."""
    n_period, n_location, n_draws = draws.shape
    head = {
        TIME: np.repeat(table.names, n_location),
        PLACE: np.tile(np.array(locations, dtype=object), n_period),
    }
    values = np.rint(draws.reshape(-1, n_draws)).astype(np.int64)
    samples = {f"sample_{k}": values[:, k] for k in range(n_draws)}
    write_text(path, pd.DataFrame({**head, **samples}).to_csv(index=False))


def _periods(
    table: Table, inputs: np.ndarray, places: np.ndarray | None, locations: list[str]
) -> list[Period]:
    """Return the periods with the locations whose count is known as bags of one pixel."""
    assert table.locations == locations
    found = []
    for row, time in enumerate(table.times.tolist()):
        area = np.flatnonzero(np.isfinite(table.cases[row]))
        if not area.size:
            found.append(Period(float(time), None))
            continue
        bags = Bags(
            inputs[row, area],
            np.arange(area.size + 1),
            table.cases[row, area],
            table.people[row, area],
            None if places is None else places[area],
        )
        found.append(Period(float(time), bags, area))
    return found


def _rows(table: Table, rows: np.ndarray) -> Table:
    return replace(
        table,
        names=[table.names[row] for row in rows],
        times=table.times[rows],
        cases=table.cases[rows],
        people=table.people[rows],
        covariates={name: own[rows] for name, own in table.covariates.items()},
    )


def _ordered(table: Table, trained: Trained, what: str) -> Table:
    """Return a table with the locations in the order of the training, and the same covariates."""
    if table.step != trained.climate.step:
        found = f"has {table.step}s, the training data {trained.climate.step}s"
        raise InputError(Problem(what, found, "give the same step"))
    absent = [name for name in trained.climate.names if name not in table.covariates]
    if absent:
        found, remedy = f"has no column {name_first(absent)}", "give it as in the training data"
        raise InputError(Problem(what, found, remedy))
    known = {name: k for k, name in enumerate(table.locations)}
    new = sorted(set(known) - set(trained.locations))
    gone = [name for name in trained.locations if name not in known]
    if new or gone:
        differ = f"new: {name_first(new)}" if new else f"absent: {name_first(gone)}"
        remedy = "give the locations of the training data, or train anew"
        raise InputError(Problem(what, f"its locations are others ({differ})", remedy))
    order: Any = [known[name] for name in trained.locations]
    return replace(
        table,
        locations=trained.locations,
        cases=table.cases[:, order],
        people=table.people[:, order],
        covariates={name: own[:, order] for name, own in table.covariates.items()},
    )
