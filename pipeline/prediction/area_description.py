"""Describe ``areas.gpkg``: aliases of its columns, and a QGIS style like that of the map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyogrio

from geo.colours import Scale
from geo.geopackage import LayerDescription, describe_layer, graduated_style
from pipeline.config.response_words import ResponseWords
from pipeline.config.schema import Config
from pipeline.core.code import installed_version
from pipeline.prediction.colours import level_product, raster_scale
from pipeline.prediction.products import AREAS_GPKG, AREAS_LAYER, rate_unit

_COUNTS = {
    "observed": "observed {area_total}",
    "fitted": "fitted {area_total}",
    "fitted_sd": "fitted {area_total}: standard deviation",
    "fitted_lower": "fitted {area_total}: {interval} interval, lower end",
    "fitted_upper": "fitted {area_total}: {interval} interval, upper end",
    "people": "{weight_unit}",
    "tested": "people tested",
    "observed_rate": "observed {quantity} ({rate_unit})",
    "fitted_rate": "fitted {quantity} ({rate_unit})",
    "fitted_rate_lower": "fitted {quantity}: {interval} interval, lower end ({rate_unit})",
    "fitted_rate_upper": "fitted {quantity}: {interval} interval, upper end ({rate_unit})",
    "count_lower": "predicted {area_total}: {interval} interval, lower end",
    "count_upper": "predicted {area_total}: {interval} interval, upper end",
    "residual": "observed less fitted, in predictive standard deviations",
    "in_training": "has a count, and is in the fit",
}
_LABELS = {
    "observed": "observed label (1: positive)",
    "probability": "probability to be positive",
    "probability_sd": "probability: standard deviation",
    "probability_lower": "probability: {interval} interval, lower end",
    "probability_upper": "probability: {interval} interval, upper end",
    "in_training": "has a label, and is in the fit",
}


def describe_areas(config: Config, directory: Path) -> None:
    """Write aliases, title and default style into ``areas.gpkg`` of a directory."""
    path = directory / AREAS_GPKG.file
    columns = list(pyogrio.read_info(path, layer=AREAS_LAYER)["fields"])
    aliases = column_aliases(config, columns)
    labels = config.labels is not None
    column = "probability" if labels else "fitted_rate"
    product = level_product(config)
    scale = raster_scale(config, directory, product)
    if scale is None:  # a model that maps no pixel
        table = pyogrio.read_dataframe(
            path, layer=AREAS_LAYER, columns=[column], read_geometry=False
        )
        values = table[column].to_numpy(np.float64)
        scale = Scale.of(values, low=product.low, high=product.high, ramp=product.ramp)
    unit = "" if labels else rate_unit(config)
    period = f", {config.period}" if config.period else ""
    about = (
        f"{aliases['observed']} and {aliases[column]} of each area{period}; "
        f"{config.model.kind}, disagg {installed_version('disagg')}"
    )
    described = LayerDescription(
        f"{config.name}{period}: areas",
        about[0].upper() + about[1:],
        aliases,
        graduated_style(column, scale, unit, aliases),
    )
    describe_layer(path, AREAS_LAYER, described)


def column_aliases(config: Config, columns: list[str]) -> dict[str, str]:
    """Return the text of each of our columns among some; users' own columns keep their names."""
    words = {
        **ResponseWords.of(config).placeholders,
        "interval": f"{100 * config.output.interval:g} %",
        "rate_unit": rate_unit(config),
    }
    texts = _COUNTS if config.labels is None else _LABELS
    return {name: texts[name].format(**words) for name in columns if name in texts}
