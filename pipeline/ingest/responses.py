"""Read the counts or labels of the areas, and what belongs to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import geopandas as gpd
import pandas as pd

from geo.core.errors import Problem, name_first
from geo.core.suppressed import Suppression
from geo.sources.repair import Repairs
from geo.tables.counts import margins_of, read_counts, read_labels
from geo.tables.response_column import ResponseColumn, ResponseTable
from pipeline.config.schema import Config
from pipeline.ingest.without_counts import check_merged, own_file
from pipeline.responses.table import Columns
from pipeline.store.level_areas import titles_of

N_NAMED = 5  # areas that a problem names


def read_responses(
    config: Config, areas: gpd.GeoDataFrame, repairs: Repairs, problems: list[Problem]
) -> Columns:
    """Read the responses of a configuration, and check each against the others.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
        From :func:`geo.sources.boundary.read_areas`.
    repairs : Repairs
        What was done to the areas: features that were merged must agree.
    problems : list of Problem
        Appended to.
    """
    name = f"{config.model.responses} ({config.response.path})"
    if own_file(config):
        name = f"{config.model.responses} (column of the areas)"
        check_merged(config, repairs, name, problems)
    return config.response_kind.read(ResponseReader(config, areas, name, problems))


@dataclass(frozen=True)
class ResponseReader:
    """Reads columns of the responses: see :class:`pipeline.responses.table.Table`.

    Attributes
    ----------
    config : Config
    areas : GeoDataFrame
    name : str
        Of the table, in problems.
    problems : list of Problem
        Appended to.
    """

    config: Config
    areas: gpd.GeoDataFrame
    name: str
    problems: list[Problem]

    @property
    def n_problem(self) -> int:
        """See :class:`Table`."""
        return len(self.problems)

    def numbers(self, column: str, **options: Any) -> pd.Series | None:
        """See :class:`Table`."""
        if options.get("whole"):
            options["suppression"] = suppression_of(self.config)
        return self._read(read_counts, column, **options)

    def margins(self, column: str) -> pd.Series | None:
        """See :class:`Table`."""
        given = column_of(self.config, self.areas, column)
        if given is None:
            return None
        return margins_of(given, self.areas, suppression_of(self.config))

    def labels(self, column: str) -> pd.Series | None:
        """See :class:`Table`."""
        return self._read(read_labels, column)

    def report(self, found: str, remedy: str, chosen: pd.Series | None = None) -> None:
        """See :class:`Table`."""
        place = self.name
        if chosen is not None:
            place = place_of(self.config, self.areas, place, chosen)
        self.problems.append(Problem(place, found, remedy))

    def _read(self, read: Any, column: str, **options: Any) -> pd.Series | None:
        found: list[Problem] = []
        table = table_of(self.config, self.areas)
        values: pd.Series | None = read(table, column, found, partial=True, **options)
        # What every column has is said once.
        self.problems.extend(each for each in found if each not in self.problems)
        return values


def period_filter(config: Config) -> tuple[str, str] | None:
    """Return column and text of the counts' rows of the run's period; None for all rows."""
    column = None if config.counts is None else config.counts.period
    if column is None or config.period is None:
        return None
    return column, config.period if config.series is None else config.series.text(config.period)


def suppression_of(config: Config) -> Suppression:
    """Return how the table of a configuration suppresses small counts."""
    return Suppression() if config.counts is None else config.counts.suppression


def table_of(config: Config, areas: gpd.GeoDataFrame) -> ResponseTable:
    """Return the table of the responses of the configuration's period."""
    spec = config.response
    return ResponseTable(
        None if own_file(config) else spec.path,
        areas,
        spec.id or config.areas.id,
        period_filter(config),
        spec.sheet,
        spec.layer,
        spec.spelling,
    )


def column_of(config: Config, areas: gpd.GeoDataFrame, column: str) -> ResponseColumn | None:
    """Return a column of the responses of the configuration's period; None if it is not usable.

    Its problems are reported where it is read as numbers or labels.
    """
    return table_of(config, areas).column("count", column, [])


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
    given = column_of(config, areas, config.response.value)
    rows = given.places() if given else {}
    titles = dict(zip(chosen.index, titles_of(areas, config.areas.name), strict=True))
    which = [
        f"{rows.get(area, 'row ?')} (id {titles[area]})" for area in chosen.index[chosen.to_numpy()]
    ]
    return f"{name} {name_first(which, N_NAMED)}"
