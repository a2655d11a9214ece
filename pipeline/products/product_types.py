"""What a file of a run is: its name and text, and for a raster its values and colours.

The command line imports this module at its start: import nothing slow here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pipeline.config.no_spread import without_spread
from pipeline.config.schema import Config

if TYPE_CHECKING:
    import numpy as np

_PLACEHOLDER = re.compile(r"\{\w+\}")
#: Suffixes of the styles beside each raster: of QGIS, and of servers and other programs.
STYLES = (".qml", ".sld")


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
        exposure = float(self.config.response_kind.exposure_in(self.store).sum())
        return float(self.store.y.sum()) / exposure if exposure > 0 else float("nan")

    @property
    def words(self) -> dict[str, str]:
        """Values of the placeholders in descriptions and units."""
        return {**self.config.response_kind.texts, "threshold": f"{self.threshold:g}"}


Values = Callable[[Any, "np.ndarray", RasterContext], "np.ndarray"]


@dataclass(frozen=True, kw_only=True)
class RasterProduct(Product):
    """A cloud-optimised GeoTIFF with a QGIS style.

    Placeholders: ``{threshold}`` in ``file``; in ``description`` and ``unit`` also the
    words of the response (:attr:`Response.texts`), such as ``{quantity}`` and ``{rate_unit}``.

    Attributes
    ----------
    unit : str
        Of the values; ``1`` for none.
    values : callable
        ``values(prediction, people, context)``: from a prediction of n_pix pixels, their people
        (n_pix,) and the :class:`RasterContext` to (n_pix,) values.
    of_spread : bool
        Whether they say how sure the map is: nothing, of a model without uncertainty.
    shows : str
        Family of rasters: a run has it if its response does (:attr:`Response.shows`); empty for a
        raster of every run.
    wanted : callable
        Whether a configuration whose response has the family requests the raster.
    thresholds : callable, optional
        The thresholds that a configuration requests: one raster each.
    low, high : float, optional
        Values of the style's first and last colour; percentiles of the map if not given.
    exposure : {"pixel", "outside", "coverage"}
        What ``values`` gets as people: those of the whole pixel (0 where unknown, as in the bags),
        those of its share outside every area, or its share inside areas.
    ramp : {"level", "spread", "probability", "priority", "change"}
        Colours, see :data:`geo.writers.colours.RAMPS`.
    stretch : str
        Rasters with the same word here share one colour scale; one of its own if empty.
    of_pixels : bool
        Whether ``values`` needs ``context.pixels``.
    conditioned : bool
        Whether the values are totals, which the counts of the areas are told of
        (:mod:`pipeline.products.area_factors`).
    from_draws : bool
        Whether the raster is written after the others, with the tables of levels: ``values`` then
        gets arrays by name (:mod:`pipeline.prediction.level_rasters`) instead of a prediction.
    group : str
        Where the QGIS project lists it.
    """

    unit: str
    values: Values
    of_spread: bool = False
    shows: str = "rate"
    wanted: Callable[[Config], bool] = lambda _: True
    thresholds: Callable[[Config], tuple[float, ...]] | None = None
    low: float | None = None
    high: float | None = None
    exposure: Literal["pixel", "outside", "coverage"] = "pixel"
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
        spread = self.context.config.model.has_spread or not self.product.of_spread
        return without_spread(self._filled(self.product.description), spread=spread)

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
