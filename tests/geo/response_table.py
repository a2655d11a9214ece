"""Counts of a table, for tests that say where they are in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import geopandas as gpd
import pandas as pd

from geo.core.errors import Problem
from geo.tables.counts import read_counts
from geo.tables.response_column import ResponseTable

OF_TABLE = ("row_filter", "sheet", "layer", "spelling")


def counts_in(
    path: str | Path | None,
    areas: gpd.GeoDataFrame,
    id_column: str,
    value_column: str,
    problems: list[Problem],
    **options: Any,
) -> pd.Series | None:
    """Read counts; options are those of the table and of :func:`read_counts`."""
    of_table = {name: options.pop(name) for name in OF_TABLE if name in options}
    table = ResponseTable(path, areas, id_column, **of_table)
    return read_counts(table, value_column, problems, **options)
