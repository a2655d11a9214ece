"""One pass over the tiles of a map: each is read and evaluated once, for all who consume it.

The posterior of a tile's pixels is evaluated for the layers, its drawn functions a few thousand
pixels at a time; layers, sums by area, targeting, totals and shares of support are consumers. Tiles
are computed on threads and consumed in their order, so that results depend on no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from geo.grids.grid import Tile
from models.backend.arrays import Device, to_host
from models.training.device import DEVICE_PIXELS, placed
from pipeline.core.threads import map_in_order
from pipeline.products.product_types import Layer
from pipeline.products.tile_pixels import TilePixels, TileReader

#: Pixels predicted at once: with 400 inducing points about 50 MB a thread.
CHUNK_PIXELS = 16384
#: Pixels whose draws are in memory at once: with 500 draws 8 MB each for few arrays a thread.
DRAWN_PIXELS = 2048

#: From the pixels of a tile and a part of them to their factors, (n_draws, n_part).
Factors = Callable[[TilePixels, slice], np.ndarray]


class Consumer:
    """What makes one product of a pass.

    ``begin`` and ``draw`` are called on several threads, one tile on one thread; ``add`` and
    ``finish`` on the calling one, tile by tile in their order.
    """

    def begin(self, pixels: TilePixels) -> Any:
        """Return what is found of a tile before its draws."""

    def draw(
        self, found: Any, pixels: TilePixels, part: slice, rate: np.ndarray, counted: np.ndarray
    ) -> None:
        """Add the draws of some pixels to what is found of their tile.

        Parameters
        ----------
        found : object
            Of ``begin``.
        pixels : TilePixels
        part : slice
            Of the pixels.
        rate, counted : (n_part, n_draws) float64 arrays
            Rates per person: of the surface, and those that the counts of the areas tell of.
        """

    def add(self, pixels: TilePixels, found: Any) -> None:
        """Take what was found of a tile."""

    def finish(self) -> None:
        """End the product, after the last tile."""


@dataclass(frozen=True)
class Moments:
    """How the layers of a tile are predicted.

    Attributes
    ----------
    model : fitted model
        With ``predict_pixels``.
    wanted : sequence of Layer
        The first has a value wherever a pixel is mapped.
    device : Device, optional
        Of the computation; the host if not given.
    factor : (n_row, n_col) array, optional
        Of the totals of the grid's pixels; see :mod:`pipeline.products.area_factors`.
    """

    model: Any
    wanted: Sequence[Layer]
    device: Device | None = None
    factor: np.ndarray | None = None

    def of(self, pixels: TilePixels) -> TilePixels:
        """Return the pixels that have a prediction, with the values of every layer."""
        tile = pixels.tile
        found = np.empty((len(self.wanted), pixels.n_pix), np.float32)
        exposures = {
            "pixel": pixels.people,
            "outside": pixels.people * (1.0 - pixels.covered),
            "coverage": pixels.covered,
        }
        kinds = {layer.product.exposure for layer in self.wanted}
        step = CHUNK_PIXELS if self.device is None else DEVICE_PIXELS
        for start in range(0, pixels.n_pix, step):
            part = slice(start, start + step)
            with placed(self.device) as put:
                here = put(pixels.inputs(part))
                coords = put(pixels.coords[part])
                prediction = self.model.predict_pixels(here, coords)
                there = {kind: put(exposures[kind][part]) for kind in kinds}
                for number, layer in enumerate(self.wanted):
                    exposure = there[layer.product.exposure]
                    values = to_host(layer.values(prediction, exposure, (self.model, here, coords)))
                    if self.factor is not None and layer.product.conditioned:
                        at = tile.row + pixels.row[part], tile.col + pixels.col[part]
                        values = values * self.factor[at]
                    found[number, part] = values
        bands = {layer.name: band for layer, band in zip(self.wanted, found, strict=True)}
        return replace(pixels, values=bands).select(np.isfinite(found[0]))


@dataclass(frozen=True)
class Draws:
    """How the drawn functions of a tile are evaluated.

    Attributes
    ----------
    functions : RateDraws
        From ``model.sample_functions``.
    factors : callable, optional
        Factors of the drawn rates.
    counted : callable, optional
        Factors of the drawn cases alone; see :mod:`pipeline.products.area_factors`.
    """

    functions: Any
    factors: Factors | None = None
    counted: Factors | None = None

    def of(self, pixels: TilePixels, part: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return rates and counted rates of some pixels, (n_part, n_draws) each."""
        x = pixels.inputs(part).astype(np.float64)
        rate = self.functions.rate(x, pixels.coords[part])
        if self.factors is not None:
            rate = rate * self.factors(pixels, part)
        counted = rate if self.counted is None else rate * self.counted(pixels, part)
        own = np.ascontiguousarray(rate.T)
        return own, own if counted is rate else np.ascontiguousarray(counted.T)


def run_pass(
    reader: TileReader,
    consumers: Sequence[Consumer],
    *,
    moments: Moments | None = None,
    draws: Draws | None = None,
    known: Callable[[Tile], np.ndarray] | None = None,
    advance: Callable[[int], None] | None = None,
    n_thread: int | None = None,
) -> int:
    """Read and evaluate each tile once, and hand it to every consumer.

    Parameters
    ----------
    reader : TileReader
    consumers : sequence of Consumer
    moments, draws : optional
        What is evaluated of each tile.
    known : callable, optional
        The mapped pixels of a tile, (n_row, n_col) bool, where an earlier pass has found them.
    advance : callable, optional
        Called with 1 after each tile.
    n_thread : int, optional
        Tiles at the same time, one a core if not given; results do not depend on it.

    Returns
    -------
    int
        Pixels mapped.
    """

    def of(tile: Tile) -> tuple[TilePixels, list[Any]] | None:
        pixels = reader.read(tile, None if known is None else known(tile))
        if pixels is not None and moments is not None:
            pixels = moments.of(pixels)
        if pixels is None or pixels.n_pix == 0:
            return None
        if reader.levels:
            pixels = reader.with_areas(pixels)
        found = [each.begin(pixels) for each in consumers]
        if draws is not None:
            for start in range(0, pixels.n_pix, DRAWN_PIXELS):
                part = slice(start, start + DRAWN_PIXELS)
                drawn = draws.of(pixels, part)
                for each, own in zip(consumers, found, strict=True):
                    each.draw(own, pixels, part, *drawn)
        return pixels, found

    n_pix = 0
    for made in map_in_order(of, reader.tiles, n_thread):
        if made is not None:
            pixels, found = made
            n_pix += pixels.n_pix
            for each, own in zip(consumers, found, strict=True):
                each.add(pixels, own)
        if advance is not None:
            advance(1)
    for each in consumers:
        each.finish()
    return n_pix
