"""Describe ``areas.gpkg``: aliases of its columns, and a QGIS style like that of the map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyogrio

from geo.writers.colours import Scale
from geo.writers.geopackage import LayerDescription, describe_layer, graduated_style
from pipeline.config.no_spread import without_spread
from pipeline.config.schema import Config
from pipeline.core.code import installed_version
from pipeline.products.colours import level_product, raster_scale
from pipeline.products.products import AREAS_GPKG, AREAS_LAYER

_OF_SPREAD = {
    *("fitted_sd", "fitted_lower", "fitted_upper", "fitted_rate_lower", "fitted_rate_upper"),
    *("probability_sd", "probability_lower", "probability_upper"),
}


def describe_areas(config: Config, directory: Path) -> None:
    """Write aliases, title and default style into ``areas.gpkg`` of a directory."""
    path = directory / AREAS_GPKG.file
    columns = list(pyogrio.read_info(path, layer=AREAS_LAYER)["fields"])
    aliases = column_aliases(config, columns)
    response = config.response_kind
    column = response.level
    product = level_product(config)
    scale = raster_scale(config, directory, product)
    if scale is None:  # a model that maps no pixel
        table = pyogrio.read_dataframe(
            path, layer=AREAS_LAYER, columns=[column], read_geometry=False
        )
        values = table[column].to_numpy(np.float64)
        scale = Scale.of(values, low=product.low, high=product.high, ramp=product.ramp)
    period = f", {config.period}" if config.period else ""
    about = (
        f"{aliases['observed']} and {aliases[column]} of each area{period}; "
        f"{config.model.kind}, disagg {installed_version('disagg')}"
    )
    described = LayerDescription(
        f"{config.name}{period}: areas",
        about[0].upper() + about[1:],
        aliases,
        graduated_style(column, scale, response.in_unit("{}"), aliases),
    )
    describe_layer(path, AREAS_LAYER, described)


def column_aliases(config: Config, columns: list[str]) -> dict[str, str]:
    """Return the text of each of our columns among some; users' own columns keep their names."""
    response = config.response_kind
    texts = response.area_columns
    found = {name: response.fill(texts[name]) for name in columns if name in texts}
    spread = config.model.has_spread
    told = {name: without_spread(found[name], spread=spread) for name in _OF_SPREAD & found.keys()}
    return {**found, **told}


def column_units(config: Config) -> dict[str, str]:
    """Return the units of the columns of ``areas.csv`` and of the file of draws."""
    response = config.response_kind
    fitted = ("observed", "fitted", "fitted_sd", "fitted_lower", "fitted_upper")
    totals = (*fitted, "count_lower", "count_upper", "expected", "count")
    rates = ("observed_rate", "fitted_rate", "fitted_rate_lower", "fitted_rate_upper")
    return {
        **dict.fromkeys(totals, response.fill("{total}")),
        **dict.fromkeys(rates, response.fill("{rate_unit}")),
        "people": response.fill("{weight_unit}"),
        "tested": "people",
        "residual": "1",
    }
