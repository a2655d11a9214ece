"""What is suspicious of points and zones beside areas, and what a check shows of them."""

from __future__ import annotations

import geopandas as gpd
import numpy as np
import pandas as pd

from geo.core.columns import id_text
from geo.core.errors import name_first
from pipeline.config.point_schema import Points
from pipeline.config.schema import Config
from pipeline.ingest.point_tables import read_source
from pipeline.ingest.raster_suspicions import Suspicion

N_NAMED = 5  # rows named in one line


def point_suspicions(
    config: Config, areas: gpd.GeoDataFrame, people: np.ndarray
) -> list[Suspicion]:
    """Return suspicions about sources with more cases than people.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
    people : (n_area,) float64
        NaN where unknown.
    """
    found = []
    for spec in config.points:
        table = read_source(spec, [])
        if spec.tested is not None or table.empty:
            continue
        there = _people_of(spec, table, areas, np.nan_to_num(people))
        many = (table["value"] > there) & (there > 0)
        if many.any():
            each = [
                f"{row['id']} {row['period']}".strip()
                + f": {row['value']:,.0f} of {where:,.0f} people (row {row['row']})"
                for row, where in zip(table[many].to_dict("records"), there[many], strict=True)
            ]
            place = f"points.{spec.name} ({spec.path})"
            text = f"more cases than people: {name_first(each, N_NAMED)}"
            found.append(Suspicion("rate", place, text, "correct the totals", grave=True))
    return found


def _people_of(
    spec: Points, table: pd.DataFrame, areas: gpd.GeoDataFrame, people: np.ndarray
) -> pd.Series:
    """Return the people that a row's cases may be of: those of its zone, or all."""
    if spec.zone is None or spec.zone not in areas.columns:
        return pd.Series(float(people.sum()), index=table.index)
    zone = id_text(areas[spec.zone]).to_numpy(object)
    total = pd.Series(people).groupby(zone).sum()
    return table["id"].map(total).fillna(0.0).astype(float)


def describe_sources(config: Config) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what the table of each source has, and the places of all points.

    Returns
    -------
    DataFrame
        A row a source: ``source``, ``kind``, ``rows``, ``periods``, ``total``, ``least``,
        ``median``, ``most`` of its values, ``tested``, ``missing`` values.
    DataFrame
        ``source``, ``lon``, ``lat``, degrees.
    """
    rows, places = [], [pd.DataFrame({"source": [], "lon": [], "lat": []})]
    for spec in config.points:
        table = read_source(spec, [])
        value = table["value"].astype(float)
        kind = "zones" if spec.zone else "catchments" if spec.catchment else "clusters"
        rows.append(
            {
                "source": spec.name,
                "kind": kind,
                "rows": len(table),
                "periods": table["period"].nunique() if spec.period else np.nan,
                "total": value.sum(),
                "least": value.min(),
                "median": value.median(),
                "most": value.max(),
                "tested": table["tested"].astype(float).sum() if spec.tested else np.nan,
                "missing": int(value.isna().sum()),
            }
        )
        if spec.zone is None:
            place = table[["lon", "lat"]].astype(float).dropna()
            places.append(place.assign(source=spec.name))
    return pd.DataFrame(rows), pd.concat(places, ignore_index=True)
