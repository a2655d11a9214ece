"""The list of all files that a run writes to ``output.dir``.

To add a file, add an entry to :data:`PRODUCTS`, or call :func:`register` from other code. The
predict stage then writes the raster, and deletes it once the configuration no longer requests it.
The runner checks it; the command line, publishing and the README's table list it.

The command line imports this module at its start: import nothing slow here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.config.response_words import ResponseWords
from pipeline.config.schema import Config

if TYPE_CHECKING:
    import numpy as np

_PLACEHOLDER = re.compile(r"\{\w+\}")
#: Suffixes of the styles beside each raster: of QGIS, and of servers and other programs.
STYLES = (".qml", ".sld")
#: Suffixes of files that users may edit where they lie: of these only the presence is checked.
EDITABLE = (*STYLES, ".qgz")


@dataclass(frozen=True, kw_only=True)
class Product:
    """A file that a run writes to ``output.dir``.

    Attributes
    ----------
    file : str
        Name of the file, with its folder in ``output.dir`` if it has one; of several, with a
        placeholder such as ``{level}``.
    description : str
        Its content.
    stage : str
        The stage that writes it; empty for the run itself.
    announced : bool
        Whether the command line lists it when a run ends.
    roles : tuple of str
        Its roles in the STAC catalogue: ``data``, ``metadata``, ``overview``, ``thumbnail``.
    """

    file: str
    description: str
    stage: str = "predict"
    announced: bool = False
    roles: tuple[str, ...] = ("data",)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Glob patterns of the files in ``output.dir``."""
        return (_PLACEHOLDER.sub("*", self.file),)


@dataclass(frozen=True)
class RasterContext:
    """Inputs of a raster's values besides the prediction.

    Attributes
    ----------
    config : Config
    store : BagStore or None
        The areas that the model was fitted to; None if a run is only planned.
    threshold : float
        Of this raster, per ``output.rate_per`` people; NaN for a raster without thresholds.
    pixels : tuple, optional
        The model, covariates and positions of the pixels, of rasters that need them.
    """

    config: Config
    store: Any = None
    threshold: float = float("nan")
    pixels: tuple[Any, Any, Any] | None = None

    @property
    def rate_per(self) -> float:
        """People in the denominator of rates."""
        return self.config.output.rate_per

    @property
    def lower(self) -> float:
        """Probability below the central interval."""
        return (1 - self.config.output.interval) / 2

    @property
    def upper(self) -> float:
        """Probability below the upper end of the central interval."""
        return (1 + self.config.output.interval) / 2

    @cached_property
    def mean_rate(self) -> float:
        """Observed cases per person (or km2, or person tested) over all areas.

        NaN if a run is only planned, or if nobody is exposed.
        """
        if self.store is None:
            return float("nan")
        trials = self.config.model.response.needs_trials
        exposure = float((self.store.trials if trials else self.store.bag_weight).sum())
        return float(self.store.y.sum()) / exposure if exposure > 0 else float("nan")

    @property
    def words(self) -> dict[str, str]:
        """Values of the placeholders in descriptions and units."""
        response = ResponseWords.of(self.config)
        return {
            **response.placeholders,
            "interval": f"{100 * self.config.output.interval:g} %",
            "rate_unit": response.rate_unit(self.rate_per),
            "threshold": f"{self.threshold:g}",
        }


Values = Callable[[Any, "np.ndarray", RasterContext], "np.ndarray"]


@dataclass(frozen=True, kw_only=True)
class RasterProduct(Product):
    """A cloud-optimised GeoTIFF with a QGIS style.

    Placeholders: ``{threshold}`` in ``file``; in ``description`` and ``unit`` also ``{interval}``,
    ``{rate_unit}`` and the words of :class:`ResponseWords`: ``{quantity}``, ``{total}``.

    Attributes
    ----------
    unit : str
        Of the values; ``1`` for none.
    values : callable
        ``values(prediction, people, context)``: from a prediction of n_pix pixels, their people
        (n_pix,) and the :class:`RasterContext` to (n_pix,) values.
    wanted : callable
        Whether a configuration requests the raster.
    thresholds : callable, optional
        The thresholds that a configuration requests: one raster each.
    low, high : float, optional
        Values of the style's first and last colour; percentiles of the map if not given.
    exposure : {"pixel", "inside", "outside"}
        Whose people ``values`` gets: those of the whole pixel, of its share inside areas, or of
        its share outside every area. Where that share is 0, the raster has no value.
    ramp : {"level", "spread", "probability", "priority"}
        Colours, see :data:`geo.colours.RAMPS`.
    stretch : str
        Rasters with the same word here share one colour scale; one of its own if empty.
    of_pixels : bool
        Whether ``values`` needs ``context.pixels``.
    conditioned : bool
        Whether the values are totals, which the counts of the areas are told of
        (:mod:`pipeline.prediction.area_factors`).
    from_draws : bool
        Whether the raster is written after the others, with the tables of levels: ``values`` then
        gets arrays by name (:mod:`pipeline.prediction.level_rasters`) instead of a prediction.
    group : str
        Where the QGIS project lists it.
    """

    unit: str
    values: Values
    wanted: Callable[[Config], bool] = lambda config: config.labels is None
    thresholds: Callable[[Config], tuple[float, ...]] | None = None
    low: float | None = None
    high: float | None = None
    exposure: Literal["pixel", "inside", "outside"] = "pixel"
    ramp: str = "level"
    stretch: str = ""
    of_pixels: bool = False
    conditioned: bool = False
    from_draws: bool = False
    group: str = "Other maps"

    @property
    def patterns(self) -> tuple[str, ...]:
        """Glob patterns of the rasters and their styles."""
        raster = self.file.replace("{threshold}", "*")
        return raster, *(raster.removesuffix(".tif") + style for style in STYLES)


@dataclass(frozen=True)
class Layer:
    """One raster of one run.

    Attributes
    ----------
    product : RasterProduct
    context : RasterContext
    """

    product: RasterProduct
    context: RasterContext

    @property
    def name(self) -> str:
        """Name of the file, without its suffix."""
        return self._filled(self.product.file).removesuffix(".tif")

    @property
    def description(self) -> str:
        """Description of the band."""
        return self._filled(self.product.description)

    @property
    def unit(self) -> str:
        """Unit of the band."""
        return self._filled(self.product.unit)

    def values(
        self, prediction: Any, people: np.ndarray, pixels: tuple[Any, Any, Any] | None = None
    ) -> np.ndarray:
        """Return the values of n_pix pixels.

        Parameters
        ----------
        prediction : Prediction
        people : (n_pix,) array
        pixels : tuple, optional
            The model, covariates (n_pix, n_feat) and positions (n_pix, n_axis) of the prediction.
        """
        context = replace(self.context, pixels=pixels) if self.product.of_pixels else self.context
        return self.product.values(prediction, people, context)

    def _filled(self, text: str) -> str:
        return text.format(**self.context.words)


def _labels(config: Config) -> bool:
    return config.labels is not None


def _has_cases(config: Config) -> bool:
    return config.has_cases


# A probability has no unit and always the same colours.
_PROBABILITY: dict[str, Any] = {"unit": "1", "low": 0.0, "high": 1.0, "ramp": "probability"}
_OF_LABELS: dict[str, Any] = {**_PROBABILITY, "wanted": _labels}

# They share a stretch: the same colour is the same rate in each.
_RATE: dict[str, Any] = {"unit": "{rate_unit}", "stretch": "rate"}


def _data_support(prediction: Any, _: Any, at: RasterContext) -> Any:
    from pipeline.prediction.support import data_support

    model, x, coords = at.pixels  # type: ignore[misc]
    return data_support(model, prediction, x, coords)


DATA_SUPPORT = RasterProduct(
    file="data_support.tif",
    description="share of the prior variance of the surface that the data removed",
    values=_data_support,
    wanted=lambda config: config.labels is None and config.model.kind == "vbagg",
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
    unit="{rate_unit}",
    values=lambda p, _, at: at.rate_per * p.sd,
    ramp="spread",
    group="Uncertainty",
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
    unit="1",
    values=lambda p, _, __: p.sd,
    wanted=_labels,
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
LEVELS_GPKG = Product(
    file="levels.gpkg",
    description="areas of every level: cases, rates, exceedance and ranks from joint draws",
    announced=True,
)
LEVELS_CSV = Product(file="levels_{level}.csv", description="the table of one level, no shapes")
LEVELS_PARQUET = Product(file="levels_{level}.parquet", description="one level as GeoParquet")
LEVELS_XLSX = Product(
    file="levels.xlsx",
    description="the tables of all levels as a workbook, with a glossary of their columns",
    announced=True,
)
TARGETING_RANK = RasterProduct(
    file="targeting_rank.tif",
    description="share of the {weight_unit} in pixels with a higher mean {quantity}",
    unit="1",
    values=lambda found, _, __: found["rank"],
    wanted=_has_cases,
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
TARGETING_PNG = Product(file="targeting.png", description="the same as a picture")


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
            **_RATE,
            **_OF_RECONCILED,
        )
        for end, text in _ENDS.items()
    ),
    *(
        RasterProduct(
            file=f"cases_reconciled_{end}.tif",
            description=text.format(what=f"{{expected}} of people inside areas, {_SCALED}"),
            values=_reconciled_cases(end),
            unit="{total}",
            stretch="cases_reconciled",
            **_OF_RECONCILED,
        )
        for end, text in _ENDS.items()
    ),
]
PREVIEW = Product(
    file="preview.png",
    description="the maps and the fit in one picture",
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
    RasterProduct(
        file="rate_lower.tif",
        description="lower end of the central {interval} interval of the {quantity}",
        values=lambda p, _, at: at.rate_per * p.quantile(at.lower),
        announced=True,
        group="Uncertainty",
        **_RATE,
    ),
    RasterProduct(
        file="rate_upper.tif",
        description="upper end of the central {interval} interval of the {quantity}",
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
        description="{expected}, people inside areas",
        unit="{total}",
        values=lambda p, people, _: p.mean * people,
        wanted=_has_cases,
        exposure="inside",
        conditioned=True,
        group="Cases",
    ),
    RasterProduct(
        file="cases_outside_mean.tif",
        description="{expected}, people outside every area",
        unit="{total}",
        values=lambda p, people, _: p.mean * people,
        wanted=lambda config: _has_cases(config) and config.output.mask == "all",
        exposure="outside",
        group="Cases",
    ),
    RasterProduct(
        file="exceedance_{threshold}.tif",
        description="probability that the {quantity} is above {threshold} {rate_unit}",
        values=lambda p, _, at: p.exceed(at.threshold / at.rate_per),
        thresholds=lambda config: config.output.exceedance,
        group="Exceedance",
        **_PROBABILITY,
    ),
    DATA_SUPPORT,
    PROBABILITY_MEAN,
    PROBABILITY_SD,
    RasterProduct(
        file="probability_lower.tif",
        description="lower end of the central {interval} interval of the probability",
        values=lambda p, _, at: p.quantile(at.lower),
        group="Uncertainty",
        **_OF_LABELS,
    ),
    RasterProduct(
        file="probability_upper.tif",
        description="upper end of the central {interval} interval of the probability",
        values=lambda p, _, at: p.quantile(at.upper),
        group="Uncertainty",
        **_OF_LABELS,
    ),
    AREAS_GPKG,
    AREAS_CSV,
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


def level_files(level: str) -> tuple[str, str]:
    """Return the names of the CSV and the GeoParquet file of a level."""
    csv, parquet = (each.file.format(level=level) for each in (LEVELS_CSV, LEVELS_PARQUET))
    return csv, parquet


def rate_unit(config: Config) -> str:
    """Return the unit of rates: ``cases per 1,000 people``, or per km2 without a population."""
    return ResponseWords.of(config).rate_unit(config.output.rate_per)


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
    whole = RasterContext(config, store)
    result = []
    for product in PRODUCTS:
        if not (isinstance(product, RasterProduct) and product.wanted(config)):
            continue
        if product.from_draws != from_draws:
            continue
        if product.thresholds is None:
            result.append(Layer(product, whole))
            continue
        for threshold in dict.fromkeys(product.thresholds(config)):
            result.append(Layer(product, RasterContext(config, store, threshold)))
    return result


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
