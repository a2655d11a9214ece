"""Read the counts or labels of the areas, and what belongs to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import geopandas as gpd
import pandas as pd

from geo.counts import locate_counts, read_counts, read_labels
from geo.errors import Problem, name_first
from geo.repair import Repairs
from pipeline.config.input_schema import Counts, Labels
from pipeline.config.schema import Config
from pipeline.ingest.without_counts import check_merged, own_file
from pipeline.store.level_areas import titles_of

N_NAMED = 5  # areas that a problem names


@dataclass(frozen=True)
class Responses:
    """Columns of the responses, each by area, None where it is not given or cannot be read.

    Attributes
    ----------
    counts : Series or None
        Counts, values or labels; NaN for areas without one.
    tested : Series or None
        Numbers tested.
    weights : Series or None
        Exposures.
    """

    counts: pd.Series | None = None
    tested: pd.Series | None = None
    weights: pd.Series | None = None


def read_responses(
    config: Config, areas: gpd.GeoDataFrame, repairs: Repairs, problems: list[Problem]
) -> Responses:
    """Read the responses of a configuration, and check each against the others.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
        From :func:`geo.boundary.read_areas`.
    repairs : Repairs
        What was done to the areas: features that were merged must agree.
    problems : list of Problem
        Appended to.
    """
    spec = config.response
    path, id_column = spec.path, spec.id or config.areas.id
    name = f"{config.model.responses} ({path})"
    if own_file(config):
        path, name = None, f"{config.model.responses} (column of the areas)"
        check_merged(config, repairs, name, problems)
    read: dict[str, Any] = {
        "sheet": spec.sheet, "layer": spec.layer, "partial": True, "spelling": spec.spelling,
    }  # fmt: skip
    if isinstance(spec, Labels):
        return Responses(read_labels(path, areas, id_column, spec.value, problems, **read))
    signed = config.model.response.responses[0] < 0
    n_before = len(problems)
    read["row_filter"] = period_filter(config)
    whole = config.model.response.counts
    counts = read_counts(
        path, areas, id_column, spec.value, problems, signed=signed, whole=whole, **read
    )
    # No case at all is a map of upper limits, and a suspicion; equal values have no map.
    given = None if whole or counts is None else counts.dropna()
    if given is not None and len(given) > 1 and given.nunique() == 1 and len(problems) == n_before:
        found = f"column {spec.value!r} is {given.iloc[0]:g} for every area"
        problems.append(Problem(name, found, "give the column of the values"))
    if counts is None:
        return Responses()

    def column(wanted: str | None, *, whole: bool = False) -> pd.Series | None:
        if wanted is None:
            return None
        again: list[Problem] = []
        values = read_counts(path, areas, id_column, wanted, again, whole=whole, **read)
        problems.extend(problem for problem in again if problem not in problems)
        return values

    tested = column(spec.tested, whole=True)
    if tested is not None:
        _check_tested(config, areas, counts, tested, name, problems)
        # Nobody tested tells nothing: such an area has no count.
        counts = counts.where(tested > 0)
    weights = column(spec.weight)
    if weights is not None:
        _check_weights(config, spec, areas, counts, weights, name, problems)
        counts = counts.where(weights.notna())
    return Responses(counts, tested, weights)


def period_filter(config: Config) -> tuple[str, str] | None:
    """Return column and text of the counts' rows of the run's period; None for all rows."""
    column = None if config.counts is None else config.counts.period
    return None if column is None or config.period is None else (column, config.period)


def place_of(config: Config, areas: gpd.GeoDataFrame, name: str, chosen: pd.Series) -> str:
    """Return the name of the table with the rows of some areas: ``cases.csv row 3 (id A)``.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
    name : str
        Of the table.
    chosen : (n_area,) Series of bool
        By id.
    """
    spec = config.response
    rows = locate_counts(
        None if own_file(config) else spec.path, areas, spec.id or config.areas.id, spec.value,
        period_filter(config), sheet=spec.sheet, layer=spec.layer, spelling=spec.spelling,
    )  # fmt: skip
    titles = dict(zip(chosen.index, titles_of(areas, config.areas.name), strict=True))
    which = [
        f"{rows.get(area, 'row ?')} (id {titles[area]})" for area in chosen.index[chosen.to_numpy()]
    ]
    return f"{name} {name_first(which, N_NAMED)}"


def _check_tested(
    config: Config,
    areas: gpd.GeoDataFrame,
    counts: pd.Series,
    tested: pd.Series,
    name: str,
    problems: list[Problem],
) -> None:
    spec = config.response
    given = {spec.value: counts, str(getattr(spec, "tested", "")): tested}
    broken = {name: column % 1 > 0 for name, column in given.items()}
    for column, wrong in broken.items():
        if wrong.any():
            found = f"column {column!r} has a number that is not whole"
            shown = f"{found} ({given[column][wrong].iloc[0]:g})"
            place = place_of(config, areas, name, wrong)
            problems.append(Problem(place, shown, "give numbers of people, not shares"))
    over = (counts > tested) & ~broken[spec.value] & ~broken[str(getattr(spec, "tested", ""))]
    if over.any():
        cases, of = (f"column {column!r} has" for column in given)
        found = f"{cases} more positives than {of} tested people"
        shown = f"{found} ({counts[over].iloc[0]:g} of {tested[over].iloc[0]:g})"
        place = place_of(config, areas, name, over)
        problems.append(Problem(place, shown, "correct the counts or the numbers tested"))


def _check_weights(
    config: Config,
    spec: Counts,
    areas: gpd.GeoDataFrame,
    counts: pd.Series,
    weights: pd.Series,
    name: str,
    problems: list[Problem],
) -> None:
    if not (weights > 0).any():
        found = f"column {spec.weight!r} is 0 or missing for every area"
        problems.append(Problem(name, found, "give the column of the areas' exposure"))
    elif not config.averages:
        wrong = (weights == 0) & (counts != 0) & counts.notna()
        if wrong.any():
            found = f"column {spec.value!r} has a value, but column {spec.weight!r} is 0"
            place = place_of(config, areas, name, wrong)
            problems.append(Problem(place, found, "correct the value or the weight"))
