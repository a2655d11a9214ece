"""The files of the levels: tables, targeting, reconciled maps.

The command line imports this module at its start: import nothing slow here.
"""

from __future__ import annotations

from typing import Any

from pipeline.config.schema import Config
from pipeline.products.product_types import Product, RasterProduct, Values

LEVELS_GPKG = Product(
    file="levels.gpkg",
    description="areas of every level: cases, rates, exceedance and ranks from joint draws",
    announced=True,
    stage="report",
)
LEVELS_CSV = Product(file="levels_{level}.csv", description="the table of one level, no shapes")
LEVELS_PARQUET = Product(file="levels_{level}.parquet", description="one level as GeoParquet")
LEVELS_XLSX = Product(
    file="levels.xlsx",
    description="the tables of all levels as a workbook, with a glossary of their columns",
    announced=True,
    stage="report",
)
TARGETING_RANK = RasterProduct(
    file="targeting_rank.tif",
    description="share of the {weight_unit} in pixels with a higher mean {quantity}",
    unit="1",
    values=lambda found, _, __: found["rank"],
    shows="total",
    low=0.0,
    high=1.0,
    ramp="priority",
    from_draws=True,
    group="Targeting",
)
TARGETING_CSV = Product(
    file="targeting.csv",
    description="cases reached by the people of highest rate, and people needed, in percent",
    announced=True,
)
TARGETING_PNG = Product(file="targeting.png", description="the same as a picture", stage="report")


def _reconciled(config: Config) -> bool:
    return config.output.reconcile is not None


def _reconciled_rate(end: str) -> Values:
    return lambda found, _, at: at.rate_per * found[end]


def _reconciled_cases(end: str) -> Values:
    return lambda found, people, _: found[end] * people


_OF_RECONCILED: dict[str, Any] = {
    "wanted": _reconciled,
    "from_draws": True,
    "group": "Reconciled",
}
_ENDS = {
    "mean": "mean {what}",
    "lower": "lower end of the central {{interval}} interval of the {what}",
    "upper": "upper end of the central {{interval}} interval of the {what}",
}
_SCALED = "each draw scaled to the totals (reconciled)"
#: Rasters of ``output.reconcile``; their values are the ends of the interval and the mean.
RECONCILED = [
    *(
        RasterProduct(
            file=f"rate_reconciled_{end}.tif",
            description=text.format(what=f"{{quantity}}, {_SCALED}"),
            values=_reconciled_rate(end),
            unit="{rate_unit}",
            stretch="rate",
            of_spread=end != "mean",
            **_OF_RECONCILED,
        )
        for end, text in _ENDS.items()
    ),
    *(
        RasterProduct(
            file=f"cases_reconciled_{end}.tif",
            description=text.format(what=f"{{expected}} {{of_pixel}}, {_SCALED}"),
            values=_reconciled_cases(end),
            unit="{total}",
            stretch="cases_reconciled",
            of_spread=end != "mean",
            **_OF_RECONCILED,
        )
        for end, text in _ENDS.items()
    ),
]


def level_files(level: str) -> tuple[str, str]:
    """Return the names of the CSV and the GeoParquet file of a level."""
    csv, parquet = (each.file.format(level=level) for each in (LEVELS_CSV, LEVELS_PARQUET))
    return csv, parquet
