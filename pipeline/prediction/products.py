"""The list of all files that a run writes to ``output.dir``.

To add a file, add an entry to :data:`PRODUCTS`, or call :func:`register` from other code. The
predict stage then writes the raster, and deletes it once the configuration no longer requests it.
The runner checks it; the command line, publishing and the README's table list it.

The command line imports this module at its start: import nothing slow here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.config.response_words import ResponseWords
from pipeline.config.schema import Config

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Product:
    """A file that a run writes to ``output.dir``.

    Attributes
    ----------
    file : str
        Name of the file.
    description : str
        Its content.
    stage : str
        The stage that writes it; empty for the run itself.
    announced : bool
        Whether the command line lists it when a run ends.
    """

    file: str
    description: str
    stage: str = "predict"
    announced: bool = False

    @property
    def patterns(self) -> tuple[str, ...]:
        """Glob patterns of the files in ``output.dir``."""
        return (self.file,)


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
    ramp : {"level", "spread", "probability"}
        Colours, see :data:`geo.colours.RAMPS`.
    stretch : str
        Rasters with the same word here share one colour scale; one of its own if empty.
    of_pixels : bool
        Whether ``values`` needs ``context.pixels``.
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

    @property
    def patterns(self) -> tuple[str, ...]:
        """Glob patterns of the rasters and their styles."""
        raster = self.file.replace("{threshold}", "*")
        return raster, raster.removesuffix(".tif") + ".qml"


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
    """Return whether the cases of a pixel are its rate times its people (or km2).

    A value is no number of cases, and a weight of an area is not known by pixel.
    """
    counts = config.counts
    return counts is not None and config.model.response.counts and counts.weight is None


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
    **_PROBABILITY,
)
RATE_MEAN = RasterProduct(
    file="rate_mean.tif",
    description="mean {quantity}",
    values=lambda p, _, at: at.rate_per * p.mean,
    announced=True,
    **_RATE,
)
RATE_SD = RasterProduct(
    file="rate_sd.tif",
    description="standard deviation of the {quantity}",
    unit="{rate_unit}",
    values=lambda p, _, at: at.rate_per * p.sd,
    ramp="spread",
)
PROBABILITY_MEAN = RasterProduct(
    file="probability_mean.tif",
    description="probability to be positive",
    values=lambda p, _, __: p.mean,
    announced=True,
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
)
AREAS_GPKG = Product(
    file="areas.gpkg",
    description="observed and fitted counts, or labels, of each area with intervals",
    announced=True,
)
AREAS_LAYER = "areas"  # of the GeoPackage
AREAS_CSV = Product(file="areas.csv", description="the same table without shapes", announced=True)
PREVIEW = Product(file="preview.png", description="the maps and the fit in one picture")
EVALUATION = Product(
    file="evaluation.json",
    description="scores in sample, held out, and against the truth where it is known",
    stage="evaluate",
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
        **_RATE,
    ),
    RasterProduct(
        file="rate_upper.tif",
        description="upper end of the central {interval} interval of the {quantity}",
        values=lambda p, _, at: at.rate_per * p.quantile(at.upper),
        announced=True,
        **_RATE,
    ),
    RasterProduct(
        file="rate_median.tif",
        description="median {quantity}",
        values=lambda p, _, at: at.rate_per * p.quantile(0.5),
        **_RATE,
    ),
    RasterProduct(
        file="cases_mean.tif",
        description="{expected}, people inside areas",
        unit="{total}",
        values=lambda p, people, _: p.mean * people,
        wanted=_has_cases,
        exposure="inside",
    ),
    RasterProduct(
        file="cases_outside_mean.tif",
        description="{expected}, people outside every area",
        unit="{total}",
        values=lambda p, people, _: p.mean * people,
        wanted=lambda config: _has_cases(config) and config.output.mask == "all",
        exposure="outside",
    ),
    RasterProduct(
        file="exceedance_{threshold}.tif",
        description="probability that the {quantity} is above {threshold} {rate_unit}",
        values=lambda p, _, at: p.exceed(at.threshold / at.rate_per),
        thresholds=lambda config: config.output.exceedance,
        **_PROBABILITY,
    ),
    DATA_SUPPORT,
    PROBABILITY_MEAN,
    PROBABILITY_SD,
    RasterProduct(
        file="probability_lower.tif",
        description="lower end of the central {interval} interval of the probability",
        values=lambda p, _, at: p.quantile(at.lower),
        **_OF_LABELS,
    ),
    RasterProduct(
        file="probability_upper.tif",
        description="upper end of the central {interval} interval of the probability",
        values=lambda p, _, at: p.quantile(at.upper),
        **_OF_LABELS,
    ),
    AREAS_GPKG,
    AREAS_CSV,
    PREVIEW,
    EVALUATION,
    REPORT,
    REPORT_PICTURES,
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


def rate_unit(config: Config) -> str:
    """Return the unit of rates: ``cases per 1,000 people``, or per km2 without a population."""
    return ResponseWords.of(config).rate_unit(config.output.rate_per)


def layers(config: Config, store: Any = None) -> list[Layer]:
    """Return the rasters that a configuration requests.

    Parameters
    ----------
    config : Config
    store : BagStore, optional
        The areas that the model was fitted to; not needed to plan a run.
    """
    whole = RasterContext(config, store)
    result = []
    for product in PRODUCTS:
        if not (isinstance(product, RasterProduct) and product.wanted(config)):
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
        path.name
        for product in PRODUCTS
        if product.announced
        for path in sorted(directory.glob(product.patterns[0]))
    ]


def is_product(name: str) -> bool:
    """Return whether a file is on the list of results; styles are not."""
    return any(Path(name).match(product.patterns[0]) for product in PRODUCTS)
