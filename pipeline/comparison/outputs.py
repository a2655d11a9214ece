"""Files of a comparison: the table of areas, the layer, and the styles."""

from __future__ import annotations

from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
import pyogrio

from geo.writers.colours import Scale, ramp_colours
from geo.writers.geopackage import LayerDescription, describe_layer, graduated_style
from geo.writers.styles import write_style
from geo.writers.write_errors import explained_write_errors
from pipeline.comparison.periods import PERIODS_CHANGE
from pipeline.comparison.pixels import DIFFERENCE, PROBABILITY, RATIO
from pipeline.comparison.sides import Side
from pipeline.products.csv_table import write_csv
from pipeline.products.products import AREAS_LAYER

CSV, PACKAGE, LAYER, REPORT = "change.csv", "change.gpkg", "change", "compare.json"
STYLES = tuple(name.replace(".tif", ".qml") for name in (DIFFERENCE, RATIO, PROBABILITY))
#: Every file that a comparison may write.
FILES = (DIFFERENCE, RATIO, PROBABILITY, *STYLES, CSV, PACKAGE, PERIODS_CHANGE, REPORT)

_RAMP = "change"
#: Breaks of ratios: a halving is as far from 1 as a doubling.
_RATIOS = ((1.05, 1.1, 1.25), (1.1, 1.25, 1.5), (1.25, 1.5, 2.0), (1.5, 2.0, 4.0), (2.0, 4.0, 10.0))
_ALIASES = {
    "in_maps": "which maps have the area",
    "rate_a": "{quantity} in A ({unit})",
    "rate_b": "{quantity} in B ({unit})",
    "difference": "difference of the {quantity}, B less A ({unit})",
    "difference_lower": "difference: {interval} interval, lower end",
    "difference_upper": "difference: {interval} interval, upper end",
    "ratio": "ratio of the {quantity}, B to A",
    "ratio_lower": "ratio: {interval} interval, lower end",
    "ratio_upper": "ratio: {interval} interval, upper end",
    "change_probability": "probability that the {quantity} is larger in B",
    "change_p_value": "two-sided p value of no change of the observed {rates}",
    "changed": "change of the observed {rates} by more than chance",
    "change_probability_independent": "the same, if the errors of A and B had nothing in common",
    "people_a": "{weight_unit} in A",
    "people_b": "{weight_unit} in B",
    "tested_a": "people tested in A",
    "tested_b": "people tested in B",
    "expected_a": "{fitted} in A",
    "expected_b": "{fitted} in B",
    "observed_a": "observed {total} in A",
    "observed_b": "observed {total} in B",
    "observed_lower_a": "suppressed {total} in A: least that they may be",
    "observed_lower_b": "suppressed {total} in B: least that they may be",
    "observed_upper_a": "suppressed {total} in A: most that they may be",
    "observed_upper_b": "suppressed {total} in B: most that they may be",
}


def read_areas_layer(side: Side) -> gpd.GeoDataFrame:
    """Read ``areas.gpkg`` of a side, indexed by id: its first column."""
    frame = pyogrio.read_dataframe(side.areas, layer=AREAS_LAYER)
    name = next(c for c in frame.columns if c != frame.geometry.name)
    frame.index = pd.Index(frame[name].astype(str), name=name)
    return frame.drop(columns=name)


def write_areas_change(
    table: pd.DataFrame, a: gpd.GeoDataFrame, b: gpd.GeoDataFrame, side: Side, directory: Path
) -> None:
    """Write ``change.csv`` and ``change.gpkg``: shapes of B, and of A for areas that B lacks."""
    shapes, gone = b.geometry, a.geometry[a.index.difference(b.index, sort=False)]
    if len(gone):
        gone = gone if a.crs is None or b.crs is None else gone.to_crs(b.crs)
        shapes = pd.concat([shapes, gone])
    result = table.rename_axis(b.index.name).reset_index()
    whole = gpd.GeoDataFrame(result, geometry=shapes.reindex(table.index).to_numpy(), crs=b.crs)
    package = directory / PACKAGE
    with explained_write_errors(package, [package]):
        whole.to_file(package, layer=LAYER, driver="GPKG")
    words = _words(side)
    aliases = {name: _ALIASES[name].format(**words) for name in table if name in _ALIASES}
    described = LayerDescription(
        f"{side.config.name}: change by area",
        f"change of the {words['quantity']} by area",
        aliases,
        graduated_style(
            "change_probability",
            Scale.of(np.array([0.0, 1.0]), low=0.0, high=1.0, ramp=_RAMP),
            "",
            aliases,
        ),
    )
    describe_layer(package, LAYER, described)
    write_csv(whole.drop(columns="geometry"), directory / CSV)


def descriptions(side: Side) -> dict[str, tuple[str, str]]:
    """Return description and unit of each raster."""
    words = _words(side)
    quantity, unit = words["quantity"], words["unit"]
    return {
        DIFFERENCE: (f"difference of the mean {quantity}, B less A", unit),
        RATIO: (f"ratio of the mean {quantity}, B to A", "1"),
        PROBABILITY: (f"probability that the {quantity} is larger in B", "1"),
    }


def write_change_styles(directory: Path, unit: str) -> None:
    """Write a style beside each raster: blue has fallen, red has risen."""
    difference = directory / DIFFERENCE
    levels = Scale.of_rasters([difference], ramp=_RAMP)
    end = max(abs(levels.breaks[0]), abs(levels.breaks[-1]))
    write_style(difference, Scale.of_rasters([difference], low=-end, high=end, ramp=_RAMP), unit)
    path = directory / RATIO
    found = Scale.of_rasters([path], ramp=_RAMP)
    far = max(found.breaks[-1], 1.0 / found.breaks[0] if found.breaks[0] > 0 else 1.0)
    up = next((steps for steps in _RATIOS if steps[-1] >= far), _RATIOS[-1])
    breaks = (*(float(f"{1 / step:.3g}") for step in reversed(up)), 1.0, *up)
    write_style(path, Scale(breaks, ramp_colours(_RAMP, len(breaks)), True, True))
    probability = Scale.of(np.array([0.0, 1.0]), low=0.0, high=1.0, ramp=_RAMP)
    write_style(directory / PROBABILITY, probability)


def _words(side: Side) -> dict[str, str]:
    return {**side.response.texts, "unit": side.response.rate_unit}
