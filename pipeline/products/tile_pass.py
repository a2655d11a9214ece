"""One pass over the tiles of a map: each is read and evaluated once, for all who consume it.

The posterior of a tile's pixels is evaluated for the layers, its drawn functions a few thousand
pixels at a time; layers, sums by area, targeting, totals and shares of support are consumers. Tiles
are computed on threads, or the parts of a tile where a map has few of them or where maps share a
pass, and consumed in their order, so that results depend on no thread. Maps of several periods
share a pass: the same pixels are evaluated period after period, for what holds still costs once so
(:mod:`models.temporal.term_runs`).
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from geo.grids.grid import Tile
from models.backend.arrays import Device, give_back_freed_memory, to_host
from models.likelihoods.mixture import MixturePrediction
from models.training.device import DEVICE_PIXELS, placed
from pipeline.core.threads import map_in_order
from pipeline.products.product_types import Layer
from pipeline.products.tile_pixels import TilePixels, TileReader

#: Pixels predicted at once: with 400 inducing points about 50 MB a thread.
CHUNK_PIXELS = 16384
#: Pixels predicted at once with those of other periods: what holds still of them is in memory.
JOINT_PIXELS = 2048
#: Pixels whose draws are in memory at once: with 500 draws 8 MB each for few arrays a thread.
DRAWN_PIXELS = 2048
#: Tiles a thread, below which the parts of a tile are computed at the same time instead: the last
#: tiles would leave threads without work.
LEAST_TILES = 4
#: Pixels of all maps of a tile, after which freed memory is given back: it took seconds.
LARGE_TILE = 100_000
#: Maps of fewer tiles are predicted by smaller parts, however many threads there are.
FEW_TILES, FEW_PIXELS = 32, 4096

Result = TypeVar("Result")
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
    predict : callable, optional
        Instead of the model's ``predict_pixels``, on the host: of a period that is predicted
        together with others, a few thousand pixels at a time.
    """

    model: Any
    wanted: Sequence[Layer]
    device: Device | None = None
    factor: np.ndarray | None = None
    predict: Callable[[np.ndarray, np.ndarray], Any] | None = None

    def step(self, on_host: int) -> int:
        """Return the pixels to predict at once, ``on_host`` where nothing else counts."""
        if self.predict is not None:
            return JOINT_PIXELS
        return on_host if self.device is None else DEVICE_PIXELS

    def of(self, pixels: TilePixels) -> TilePixels:
        """Return the pixels that have a prediction, with the values of every layer."""
        return predicted([self], [pixels])[0]

    def fill(self, found: np.ndarray, pixels: TilePixels, part: slice) -> None:
        """Predict some pixels of a tile: values of every layer, (n_layer, n_pix)."""
        tile = pixels.tile
        exposures = {
            "pixel": pixels.people,
            "outside": pixels.people * (1.0 - pixels.covered),
            "coverage": pixels.covered,
        }
        kinds = {layer.product.exposure for layer in self.wanted}
        with placed(self.device) as put:
            here = put(pixels.inputs(part))
            coords = put(pixels.coords[part])
            predict = self.predict or self.model.predict_pixels
            inputs, counts = _distinct(pixels.alternatives(part))
            each = [predict(put(x), coords) for x in inputs]
            prediction = each[0] if len(each) == 1 else MixturePrediction.of(each, counts)
            at_mean = prediction
            if len(each) > 1 and any(layer.product.of_pixels for layer in self.wanted):
                at_mean = predict(here, coords)  # what is asked of one place in the covariates
            there = {kind: put(exposures[kind][part]) for kind in kinds}
            for number, layer in enumerate(self.wanted):
                exposure = there[layer.product.exposure]
                told = at_mean if layer.product.of_pixels else prediction
                values = to_host(layer.values(told, exposure, (self.model, here, coords)))
                if self.factor is not None and layer.product.conditioned:
                    at = tile.row + pixels.row[part], tile.col + pixels.col[part]
                    values = values * self.factor[at]
                found[number, part] = values


def _distinct(inputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """Return the inputs that differ, and how often each is there: one period may stand twice."""
    if len(inputs) == 1:
        return list(inputs), [1]
    keys = [x.tobytes() for x in inputs]
    first = dict(zip(reversed(keys), reversed(inputs), strict=True))
    counts = Counter(keys)
    return [first[key] for key in counts], list(counts.values())


def predicted(
    moments: Sequence[Moments],
    pixels: list[TilePixels],
    n_thread: int = 1,
    most: int = CHUNK_PIXELS,
) -> list[TilePixels]:
    """Put the pixels of a tile that have a prediction in the place of all, map by map.

    One of both is in memory. Parts are predicted by so many threads.
    """
    found = [
        np.empty((len(own.wanted), here.n_pix), np.float32)
        for own, here in zip(moments, pixels, strict=True)
    ]

    def fill(part: slice) -> None:
        for own, values, here in zip(moments, found, pixels, strict=True):
            if part.start < here.n_pix:
                own.fill(values, here, part)

    parts = _parts(pixels, min(own.step(most) for own in moments))
    deque(_of_parts(fill, parts, n_thread), maxlen=0)
    for number, (own, values) in enumerate(zip(moments, found, strict=True)):
        bands = {layer.name: band for layer, band in zip(own.wanted, values, strict=True)}
        here = replace(pixels[number], values=bands)
        pixels[number] = here.select(np.isfinite(values[0]))
    return pixels


def _parts(pixels: Sequence[TilePixels], step: int) -> list[slice]:
    most = max((here.n_pix for here in pixels), default=0)
    return [slice(start, start + step) for start in range(0, most, step)]


def _of_parts(
    function: Callable[[slice], Result], parts: Sequence[slice], n_thread: int
) -> Iterator[Result]:
    """Call for each part of a tile, several at the same time; yield the results in order.

    A single part has a thread too: what is known of its pixels goes with it.
    """
    return map(function, parts) if n_thread <= 1 else map_in_order(function, parts, n_thread)


def drawn_rates(functions: Any, pixels: TilePixels, part: slice) -> np.ndarray:
    """Return the rates of some pixels under drawn functions, (n_draws, n_part).

    Where the covariates may be several, every so many draws have each.
    """
    coords = pixels.coords[part]
    each = [x.astype(np.float64) for x in pixels.alternatives(part)]
    if len(each) == 1:
        alone: np.ndarray = functions.rate(each[0], coords)
        return alone
    rate = np.empty((functions.n_draws, coords.shape[0]))
    for k, x in enumerate(each[: functions.n_draws]):
        rate[k :: len(each)] = functions.share(k, len(each)).rate(x, coords)
    return rate


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
        rate = drawn_rates(self.functions, pixels, part)
        if self.factors is not None:
            rate = rate * self.factors(pixels, part)
        counted = rate if self.counted is None else rate * self.counted(pixels, part)
        found = np.ascontiguousarray(rate.T)
        return found, found if counted is rate else np.ascontiguousarray(counted.T)


@dataclass(frozen=True)
class MapPass:
    """What is evaluated of the tiles of one map, and who consumes it.

    Attributes
    ----------
    reader : TileReader
    consumers : sequence of Consumer
    moments, draws : optional
        What is evaluated of each tile.
    known : callable, optional
        The mapped pixels of a tile, (n_row, n_col) bool, where an earlier pass has found them.
    """

    reader: TileReader
    consumers: Sequence[Consumer]
    moments: Moments | None = None
    draws: Draws | None = None
    known: Callable[[Tile], np.ndarray] | None = None

    def read(self, tile: Tile) -> TilePixels | None:
        """Read the pixels of a tile."""
        return self.reader.read(tile, None if self.known is None else self.known(tile))


@dataclass(frozen=True)
class _Found:
    """What was found of a tile of one map."""

    own: MapPass
    pixels: TilePixels
    each: list[Any]


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
    """Run the pass of one map: see :class:`MapPass` and :func:`run_passes`."""
    own = MapPass(reader, consumers, moments, draws, known)
    return run_passes([own], advance=advance, n_thread=n_thread)[0]


def run_passes(
    passes: Sequence[MapPass],
    *,
    advance: Callable[[int], None] | None = None,
    n_thread: int | None = None,
) -> list[int]:
    """Read and evaluate each tile once for each map, and hand it to every consumer of that map.

    Parameters
    ----------
    passes : sequence of MapPass
        Of the same grid; all with moments, or none.
    advance : callable, optional
        Called with 1 after each tile.
    n_thread : int, optional
        Tiles at the same time, one a core if not given; results do not depend on it.

    Returns
    -------
    list of int
        Pixels of each map.
    """
    tiles = passes[0].reader.tiles
    cores = n_thread or len(os.sched_getaffinity(0))
    # Tiles of several maps are large: one at a time.
    within = cores if len(passes) > 1 or len(tiles) < LEAST_TILES * cores else 1
    most = FEW_PIXELS if len(tiles) < FEW_TILES else CHUNK_PIXELS

    def of(tile: Tile) -> list[_Found | None]:
        read = [(own, pixels) for own in passes if (pixels := own.read(tile)) is not None]
        chosen, there = [own for own, _ in read], [pixels for _, pixels in read]
        del read
        if moments := [own.moments for own in chosen if own.moments is not None]:
            there = predicted(moments, there, within, most)
        found: dict[int, _Found] = {}
        for own, pixels in zip(chosen, there, strict=True):
            if pixels.n_pix:
                pixels = own.reader.with_areas(pixels) if own.reader.levels else pixels
                each = [consumer.begin(pixels) for consumer in own.consumers]
                found[id(own)] = _Found(own, pixels, each)
        drawn = [made for made in found.values() if made.own.draws is not None]

        def draw(part: slice) -> list[tuple[_Found, slice, tuple[np.ndarray, np.ndarray]]]:
            return [
                (made, part, made.own.draws.of(made.pixels, part))  # type: ignore[union-attr]
                for made in drawn
                if part.start < made.pixels.n_pix
            ]

        parts = _parts([made.pixels for made in drawn], DRAWN_PIXELS)
        for made, part, rates in chain.from_iterable(_of_parts(draw, parts, within)):
            for consumer, own_found in zip(made.own.consumers, made.each, strict=True):
                consumer.draw(own_found, made.pixels, part, *rates)
        return [found.get(id(own)) for own in passes]

    n_pix = [0] * len(passes)

    def take(of_tile: list[_Found | None]) -> int:
        """Hand what was found of a tile to the consumers; return its pixels in all maps."""
        for number, made in enumerate(of_tile):
            if made is not None:
                n_pix[number] += made.pixels.n_pix
                for consumer, own_found in zip(made.own.consumers, made.each, strict=True):
                    consumer.add(made.pixels, own_found)
        return sum(made.pixels.n_pix for made in of_tile if made is not None)

    at_once, waiting = (1, 0) if within > 1 else (n_thread, 1)
    # By `map`, a tile that was taken is not in memory while the next is computed.
    for n_taken in map(take, map_in_order(of, tiles, at_once, waiting)):
        if n_taken > LARGE_TILE:
            give_back_freed_memory()
        if advance is not None:
            advance(1)
    for own in passes:
        for consumer in own.consumers:
            consumer.finish()
    return n_pix
