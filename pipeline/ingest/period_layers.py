"""Suspicions about the files of all periods of what moves: a wrong unit, a raster that was cut."""

from __future__ import annotations

import geopandas as gpd

from pipeline.config.schema import Config
from pipeline.ingest.period_coverage import cut_suspicions
from pipeline.ingest.period_sample import sample_periods
from pipeline.ingest.period_values import value_suspicions
from pipeline.ingest.raster_suspicions import Suspicion


def layer_suspicions(config: Config, shapes: gpd.GeoSeries) -> list[Suspicion]:
    """Return suspicions about files of any period, those that the user accepts included.

    A file that several covariates read, such as lags of one, is told once.

    Parameters
    ----------
    config : Config
        With the inputs on this machine.
    shapes : (n_area,) GeoSeries
        Valid polygons with a CRS.
    """
    layers = sample_periods(config, shapes)
    found = dict[tuple[str, str], Suspicion]()
    for each in [*value_suspicions(layers), *cut_suspicions(layers)]:
        file = each.place.partition(" (")[2]
        found.setdefault((each.code, file), each)
    return list(found.values())
