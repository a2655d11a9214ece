"""Joint draws of the areas of all levels: one set of functions, one pass over the pixels.

The functions are evaluated on a few thousand pixels at a time and summed into the areas: memory has
``n_draws`` numbers for each area (and threshold), never for each pixel. Tiles are summed in their
order, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from pipeline.core.threads import map_in_order
from pipeline.prediction.area_factors import TileFactors
from pipeline.prediction.level_pixels import PixelReader, TilePixels

#: Pixels whose draws are in memory at once: with 500 draws 8 MB each for few arrays a thread.
CHUNK_PIXELS = 2048

#: From the pixels of a tile and a part of them to their factors, (n_draws, n_part).
Factors = Callable[[TilePixels, slice], np.ndarray]
#: From the pixels of a tile, a part of them and their drawn rates (n_part, n_draws) to some values
#: of each, (n_value, n_part).
PerPixel = Callable[[TilePixels, slice, np.ndarray], np.ndarray]
#: From the pixels of a tile and a part of them to the class of each, (n_part,) int.
Classes = Callable[[TilePixels, slice], np.ndarray]


@dataclass(frozen=True)
class LevelDraws:
    """Sums over the pixels of each area of all levels, in the order of the reader.

    Attributes
    ----------
    people : (n_area,) float64
        People in mapped pixels, or km2.
    covered_people : (n_area,) float64
        Those of them that could be inside the training areas.
    mapped : (n_area,) float64
        Surface in mapped pixels, in pixels.
    extrapolating : (n_area,) float64
        People in pixels that extrapolate.
    cases : (n_area,) float64
        Mean total, from the raster.
    above : (n_threshold, n_area) float64
        Mean of the people in pixels whose rate is above each threshold.
    cases_drawn : (n_draws, n_area) float64
    above_drawn : (n_threshold, n_draws, n_area) float64
    class_people : (n_class,) float64
        People inside the training areas by class of pixels.
    class_drawn : (n_draws, n_class) float64
        Their cases.
    """

    people: np.ndarray
    covered_people: np.ndarray
    mapped: np.ndarray
    extrapolating: np.ndarray
    cases: np.ndarray
    above: np.ndarray
    cases_drawn: np.ndarray
    above_drawn: np.ndarray
    class_people: np.ndarray
    class_drawn: np.ndarray

    @property
    def n_draws(self) -> int:
        """Number of functions drawn."""
        return int(self.cases_drawn.shape[0])


@dataclass(frozen=True)
class _Part:
    area: np.ndarray
    plain: np.ndarray  # (5 + n_threshold, n_local)
    drawn: np.ndarray  # (1 + n_threshold, n_local, n_draws)
    class_people: np.ndarray
    class_drawn: np.ndarray  # (n_class, n_draws)
    pixels: TilePixels | None = None
    values: np.ndarray | None = None  # (n_value, n_pix)


def draw_levels(
    functions: Any,
    reader: PixelReader,
    *,
    classes: Classes | None = None,
    n_class: int = 0,
    factors: Factors | None = None,
    count_factors: TileFactors | None = None,
    per_pixel: PerPixel | None = None,
    sink: Callable[[TilePixels, np.ndarray], None] | None = None,
    advance: Callable[[int], None] | None = None,
    n_thread: int | None = None,
) -> LevelDraws:
    """Sum the draws of all pixels into the areas of every level.

    Parameters
    ----------
    functions : RateDraws
        From ``model.sample_functions``.
    reader : PixelReader
    classes : callable, optional
        Class of each pixel, below ``n_class``, whose people and cases inside the training areas are
        summed as well.
    n_class : int
    factors : callable, optional
        Factors of the drawn rates.
    count_factors : TileFactors, optional
        Factors of the drawn cases alone; see :mod:`pipeline.prediction.area_factors`.
    per_pixel, sink : callable, optional
        What to compute of each pixel's drawn rates, after their factors; and who takes the values
        (n_value, n_pix) of each tile, in the order of the tiles.
    advance : callable, optional
        Called with 1 after each tile.
    n_thread : int, optional
        Tiles at the same time, one a core if not given; results do not depend on it.

    Returns
    -------
    LevelDraws
    """
    n_draws, n_thr, n_area = functions.n_draws, len(reader.thresholds), reader.n_area

    def of(tile: Any) -> _Part | None:
        pixels = reader.read(tile)
        return None if pixels is None else summed(pixels)

    def summed(pixels: TilePixels) -> _Part:
        share = pixels.fraction
        mass = share.multiply(pixels.people).tocsr()
        inside = np.minimum(share.data, pixels.covered[share.indices])
        inside = csr_matrix((inside, share.indices, share.indptr), shape=share.shape)
        one = np.ones(pixels.people.size)
        plain = np.stack(
            [
                mass @ one,
                inside @ pixels.people,
                share @ one,
                mass @ pixels.extrapolates.astype(np.float64),
                share @ pixels.cases,
                *(mass @ exceed for exceed in pixels.exceed),
            ]
        )
        drawn = np.zeros((1 + n_thr, pixels.area.size, n_draws))
        of_counts = np.zeros(0, np.int64)
        if count_factors is not None:
            # An area has its own factor, a pixel of several areas the average of theirs.
            of_counts = np.flatnonzero(pixels.area < count_factors.drawn.shape[1])
        plain_drawn = np.zeros((of_counts.size, n_draws))
        class_people, class_drawn = np.zeros(n_class), np.zeros((n_class, n_draws))
        values: list[np.ndarray] = []
        for start in range(0, pixels.people.size, CHUNK_PIXELS):
            part = slice(start, start + CHUNK_PIXELS)
            rate = functions.rate(pixels.x[part].astype(np.float64), pixels.coords[part])
            if factors is not None:
                rate = rate * factors(pixels, part)
            counted = rate if count_factors is None else rate * count_factors(pixels, part)
            rate, counted = np.ascontiguousarray(rate.T), np.ascontiguousarray(counted.T)
            here = mass[:, part]
            drawn[0] += here @ counted
            plain_drawn += here[of_counts] @ rate
            for number, threshold in enumerate(reader.thresholds):
                above = (rate > threshold / reader.rate_per).astype(np.float64)
                drawn[1 + number] += here @ above
            if classes is not None:
                of_class = classes(pixels, part)
                people = (pixels.people * pixels.covered)[part]
                shape = (n_class, of_class.size)
                chosen = csr_matrix((people, (of_class, np.arange(of_class.size))), shape=shape)
                class_people += np.bincount(of_class, people, n_class)
                class_drawn += chosen @ counted
            if per_pixel is not None:
                values.append(per_pixel(pixels, part, rate))
        if count_factors is not None:
            own = count_factors.drawn[:, pixels.area[of_counts]].T
            drawn[0, of_counts] = plain_drawn * own
        part_of = _Part(pixels.area, plain, drawn, class_people, class_drawn)
        return replace(part_of, pixels=pixels, values=np.hstack(values)) if values else part_of

    plain = np.zeros((5 + n_thr, n_area))
    drawn = np.zeros((1 + n_thr, n_area, n_draws))
    class_people, class_drawn = np.zeros(n_class), np.zeros((n_class, n_draws))
    for part in map_in_order(of, reader.tiles, n_thread):
        if part is not None:
            plain[:, part.area] += part.plain
            drawn[:, part.area] += part.drawn
            class_people += part.class_people
            class_drawn += part.class_drawn
            if sink is not None and part.pixels is not None and part.values is not None:
                sink(part.pixels, part.values)
        if advance is not None:
            advance(1)
    return LevelDraws(
        people=plain[0],
        covered_people=plain[1],
        mapped=plain[2],
        extrapolating=plain[3],
        cases=plain[4],
        above=plain[5:],
        cases_drawn=drawn[0].T,
        above_drawn=drawn[1:].transpose(0, 2, 1),
        class_people=class_people,
        class_drawn=class_drawn.T,
    )
