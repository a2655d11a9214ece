"""The list of all files that a run writes to ``output.dir``.

To add a file, add an entry to :data:`PRODUCTS`, or call :func:`register` from other code. The
predict stage then writes the raster, and deletes it once the configuration no longer requests it.
The runner checks it; the command line, publishing and the README's table list it.

The command line imports this module at its start: import nothing slow here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.config.model_schema import WARM_KINDS
from pipeline.config.schema import Config
from pipeline.products.level_products import (
    LEVELS_CSV,
    LEVELS_GPKG,
    LEVELS_PARQUET,
    LEVELS_XLSX,
    RECONCILED,
    TARGETING_CSV,
    TARGETING_PNG,
    TARGETING_RANK,
)
from pipeline.products.product_types import STYLES, Layer, Product, RasterContext, RasterProduct

#: Suffixes of files that users may edit where they lie: of these only the presence is checked.
EDITABLE = (*STYLES, ".qgz")


# A probability has no unit and always the same colours.
_PROBABILITY: dict[str, Any] = {"unit": "1", "low": 0.0, "high": 1.0, "ramp": "probability"}
_OF_LABELS: dict[str, Any] = {**_PROBABILITY, "shows": "probability"}

# They share a stretch: the same colour is the same rate in each.
_RATE: dict[str, Any] = {"unit": "{rate_unit}", "stretch": "rate"}


def _data_support(prediction: Any, _: Any, at: RasterContext) -> Any:
    from pipeline.products.support import data_support

    model, x, coords = at.pixels  # type: ignore[misc]
    return data_support(model, prediction, x, coords)


def _seasonal(config: Config) -> bool:
    return config.time is not None and config.time.step != "year"


DATA_SUPPORT = RasterProduct(
    file="data_support.tif",
    description="share of the prior variance of the surface that the data removed",
    values=_data_support,
    wanted=lambda config: config.model.kind in WARM_KINDS,
    of_pixels=True,
    group="Support",
    **_PROBABILITY,
)
RATE_MEAN = RasterProduct(
    file="rate_mean.tif",
    description="mean {quantity}",
    values=lambda p, _, at: at.rate_per * p.mean,
    announced=True,
    group="Rates",
    **_RATE,
)
RATE_SD = RasterProduct(
    file="rate_sd.tif",
    description="standard deviation of the {quantity}",
    of_spread=True,
    unit="{rate_unit}",
    values=lambda p, _, at: at.rate_per * p.sd,
    ramp="spread",
    group="Uncertainty",
)
RATE_RELATIVE_SD = RasterProduct(
    file="rate_relative_sd.tif",
    description="standard deviation of the {quantity} in per cent of its mean",
    of_spread=True,
    unit="%",
    values=lambda p, _, __: 100 * p.sd / p.mean,
    shows="relative",
    low=0.0,
    ramp="spread",
    group="Uncertainty",
)
OUTBREAK = RasterProduct(
    file="outbreak.tif",
    description="probability that the {quantity} is above the upper quartile of its season",
    values=lambda found, _, __: found["outbreak"],
    wanted=_seasonal,
    from_draws=True,
    group="Season",
    **_PROBABILITY,
)
ANOMALY = RasterProduct(
    file="anomaly.tif",
    description="{quantity} as a multiple of the mean of its season in other years",
    unit="1",
    values=lambda found, _, __: found["anomaly"],
    wanted=_seasonal,
    low=0.0,
    high=2.0,
    ramp="change",
    from_draws=True,
    group="Season",
)
PROBABILITY_MEAN = RasterProduct(
    file="probability_mean.tif",
    description="probability to be positive",
    values=lambda p, _, __: p.mean,
    announced=True,
    group="Probability",
    **_OF_LABELS,
)
PROBABILITY_SD = RasterProduct(
    file="probability_sd.tif",
    description="standard deviation of the probability",
    of_spread=True,
    unit="1",
    values=lambda p, _, __: p.sd,
    shows="probability",
    low=0.0,
    ramp="spread",
    announced=True,
    group="Uncertainty",
)
AREAS_GPKG = Product(
    file="areas.gpkg",
    description="observed and fitted counts, or labels, of each area with intervals",
    announced=True,
)
AREAS_LAYER = "areas"  # of the GeoPackage
AREAS_CSV = Product(file="areas.csv", description="the same table without shapes", announced=True)
POINTS_CSV = Product(
    file="points.csv",
    description="each point beside the areas: observed, expected, intervals",
    announced=True,
)
AREAS_DRAWS = Product(
    file="areas_draws.parquet",
    description="joint draws of each area: what is expected, and what may be observed",
)
PERIODS_CSV = Product(
    file="periods.csv",
    description="areas in every period and forecast: observed, expected, intervals, outbreaks",
    announced=True,
)
PERIODS_PARQUET = Product(file="periods.parquet", description="the same as Parquet")
PREVIEW = Product(
    file="preview.png",
    description="the maps and the fit in one picture",
    stage="report",
    roles=("overview", "thumbnail"),
)
EVALUATION = Product(
    file="evaluation.json",
    description="scores in sample, held out, and against the truth where it is known",
    stage="evaluate",
    roles=("metadata",),
)
STAC_COLLECTION = Product(
    file="stac/collection.json",
    description="STAC collection of the map: what it is, where, when, and its items",
    stage="report",
    roles=("metadata",),
)
STAC_ITEM = Product(
    file="stac/item.json",
    description="STAC item of the run: every file with its checksum, bands, statistics, lineage",
    stage="report",
    roles=("metadata",),
)
STAC_PERIOD = Product(
    file="stac/item_{period}.json",
    description="STAC item of each other mapped period and window, of a run with `time`",
    stage="report",
    roles=("metadata",),
)
QGIS_PROJECT = Product(
    file="disagg.qgz",
    description="QGIS project of all maps and the areas, styled and grouped",
    stage="report",
    announced=True,
    roles=("metadata",),
)
REPORT = Product(
    file="report.html",
    description="the whole run on one page that needs nothing else: for a browser, a phone, paper",
    stage="report",
    announced=True,
)
REPORT_PICTURES = Product(file="report.pdf", description="the pictures of the page", stage="report")
RUN_RECORD = Product(
    file="run.json",
    description="versions, configuration, fingerprints of all inputs, timings",
    stage="",
    roles=("metadata",),
)

#: All files of a run. Intervals are of the rate (or probability), without observation noise.
PRODUCTS: list[Product] = [
    RATE_MEAN,
    RATE_SD,
    RATE_RELATIVE_SD,
    RasterProduct(
        file="rate_lower.tif",
        description="lower end of the central {interval} interval of the {quantity}",
        of_spread=True,
        values=lambda p, _, at: at.rate_per * p.quantile(at.lower),
        announced=True,
        group="Uncertainty",
        **_RATE,
    ),
    RasterProduct(
        file="rate_upper.tif",
        description="upper end of the central {interval} interval of the {quantity}",
        of_spread=True,
        values=lambda p, _, at: at.rate_per * p.quantile(at.upper),
        announced=True,
        group="Uncertainty",
        **_RATE,
    ),
    RasterProduct(
        file="rate_median.tif",
        description="median {quantity}",
        values=lambda p, _, at: at.rate_per * p.quantile(0.5),
        group="Rates",
        **_RATE,
    ),
    RasterProduct(
        file="cases_mean.tif",
        description="{expected} {of_pixel}",
        unit="{total}",
        values=lambda p, people, _: p.mean * people,
        shows="total",
        conditioned=True,
        group="Cases",
    ),
    RasterProduct(
        file="cases_outside_mean.tif",
        description="{expected}, {elsewhere}",
        unit="{total}",
        values=lambda p, people, _: p.mean * people,
        shows="total",
        wanted=lambda config: config.output.mask == "all",
        exposure="outside",
        conditioned=True,
        group="Cases",
    ),
    RasterProduct(
        file="population.tif",
        description="people of a pixel, inside areas or not",
        unit="people",
        values=lambda _, people, __: people,
        shows="",
        wanted=lambda config: config.population is not None,
        low=0.0,
        group="Grid",
    ),
    RasterProduct(
        file="coverage.tif",
        description="share of a pixel that lies inside areas with or without a {noun}",
        unit="1",
        values=lambda _, share, __: share,
        shows="",
        exposure="coverage",
        low=0.0,
        high=1.0,
        ramp="priority",
        group="Grid",
    ),
    RasterProduct(
        file="exceedance_{threshold}.tif",
        description="probability that the {quantity} is above {threshold} {rate_unit}",
        of_spread=True,
        values=lambda p, _, at: p.exceed(at.threshold / at.rate_per),
        thresholds=lambda config: config.output.exceedance,
        group="Exceedance",
        **_PROBABILITY,
    ),
    DATA_SUPPORT,
    OUTBREAK,
    ANOMALY,
    PROBABILITY_MEAN,
    PROBABILITY_SD,
    RasterProduct(
        file="probability_lower.tif",
        description="lower end of the central {interval} interval of the probability",
        of_spread=True,
        values=lambda p, _, at: p.quantile(at.lower),
        group="Uncertainty",
        **_OF_LABELS,
    ),
    RasterProduct(
        file="probability_upper.tif",
        description="upper end of the central {interval} interval of the probability",
        of_spread=True,
        values=lambda p, _, at: p.quantile(at.upper),
        group="Uncertainty",
        **_OF_LABELS,
    ),
    AREAS_GPKG,
    AREAS_CSV,
    POINTS_CSV,
    AREAS_DRAWS,
    PERIODS_CSV,
    PERIODS_PARQUET,
    LEVELS_GPKG,
    LEVELS_CSV,
    LEVELS_PARQUET,
    LEVELS_XLSX,
    TARGETING_CSV,
    TARGETING_PNG,
    TARGETING_RANK,
    *RECONCILED,
    PREVIEW,
    EVALUATION,
    REPORT,
    REPORT_PICTURES,
    QGIS_PROJECT,
    STAC_COLLECTION,
    STAC_ITEM,
    STAC_PERIOD,
    RUN_RECORD,
]


def register(product: Product) -> None:
    """Add a product to the list.

    Raises
    ------
    ValueError
        If the list already has a product of that file name.
    """
    if any(product.file == other.file for other in PRODUCTS):
        found = f"product {product.file}: already registered; give the file another name"
        raise ValueError(found)
    PRODUCTS.append(product)


def layers(config: Config, store: Any = None, *, from_draws: bool = False) -> list[Layer]:
    """Return the rasters that a configuration requests.

    Parameters
    ----------
    config : Config
    store : BagStore, optional
        The areas that the model was fitted to; not needed to plan a run.
    from_draws : bool
        Whether to return those that are written from draws, instead of the others.
    """
    whole, shown = RasterContext(config, store), config.response_kind.shows | {""}
    result = []
    for product in PRODUCTS:
        if not (isinstance(product, RasterProduct) and product.shows in shown):
            continue
        if not product.wanted(config):
            continue
        if product.from_draws != from_draws:
            continue
        if product.thresholds is None:
            result.append(Layer(product, whole))
            continue
        for threshold in dict.fromkeys(product.thresholds(config)):
            result.append(Layer(product, RasterContext(config, store, threshold)))
    return result


def raster(name: str) -> RasterProduct:
    """Return the raster of that name, without suffix."""
    for each in PRODUCTS:
        if isinstance(each, RasterProduct) and each.file == f"{name}.tif":
            return each
    found = f"product {name}.tif: not on the list; register it, or name another"
    raise ValueError(found)


def output_patterns(stage: str) -> tuple[str, ...]:
    """Return glob patterns of every file that a stage can write to ``output.dir``."""
    return tuple(p for product in PRODUCTS if product.stage == stage for p in product.patterns)


def product_functions(stage: str) -> list[Callable[..., Any]]:
    """Return the functions that decide what the rasters of a stage hold."""
    rasters = [each for each in PRODUCTS if isinstance(each, RasterProduct) and each.stage == stage]
    found = [f for each in rasters for f in (each.values, each.wanted, each.thresholds)]
    return [function for function in found if function is not None]


def announced_files(directory: Path) -> list[str]:
    """Return the names of the files that the command line lists when a run ends."""
    return [
        path.relative_to(directory).as_posix()
        for product in PRODUCTS
        if product.announced
        for path in sorted(directory.glob(product.patterns[0]))
    ]


def is_product(name: str) -> bool:
    """Return whether a file is on the list of results; styles are not."""
    return any(Path(name).match(product.patterns[0]) for product in PRODUCTS)
