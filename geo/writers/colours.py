"""Colour scales of maps: rounded breaks with a colour each, high is dark.

A scale is a list of breaks; between two breaks colours are interpolated linearly. The picture, the
QGIS styles and the styles of areas all use it, so that they look the same
(``docs/design/colours.md``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rasterio

#: Colour maps of matplotlib from light to dark, legible to the colour-blind, and the share of each
#: that is used: the lightest colours look like missing values, the darkest like outlines.
RAMPS = {
    "level": ("magma_r", 0.03, 0.95),
    "spread": ("YlGnBu", 0.05, 1.0),
    "probability": ("BuPu", 0.18, 1.0),
    "priority": ("magma", 0.05, 0.97),  # of ranks, whose least is the first: low is dark
}
#: Colour maps of a change: both ends are dark, no change is nearly white.
DIVERGING = {"change": ("RdBu_r", 0.06, 0.94)}
TAIL = 0.01  # share of the values below the first break, and above the last one
SKEWED = 4.0  # high over middle beyond which breaks are logarithmic
DECADES = 500.0  # high over low, at most, of a logarithmic scale
N_STEP, N_BREAK = 6, 9  # steps wanted of a linear scale, breaks at most of a logarithmic one
SIDE = 1024  # pixels a side that the breaks are chosen from


@dataclass(frozen=True)
class Scale:
    """Colours of values.

    Attributes
    ----------
    breaks : tuple of float
        Rounded values in ascending order, two or more.
    colours : tuple of str
        The colour of each break, ``#rrggbb``, from light to dark.
    below, above : bool
        Whether some values lie below the first break, or above the last one.
    """

    breaks: tuple[float, ...]
    colours: tuple[str, ...]
    below: bool = False
    above: bool = False

    @classmethod
    def of(
        cls,
        values: np.ndarray,
        *,
        low: float | None = None,
        high: float | None = None,
        ramp: str = "level",
    ) -> Scale:
        """Return the scale of some values.

        Parameters
        ----------
        values : array
            NaN where missing. Breaks span the central 98 %, and are rounded outwards; they are
            logarithmic where the values are very skewed.
        low, high : float, optional
            First and last break.
        ramp : str
            A key of :data:`RAMPS` or :data:`DIVERGING`.
        """
        known = np.asarray(values, dtype=np.float64)
        known = known[np.isfinite(known)]
        first, last, logarithmic = _span(known, low, high)
        breaks = _logarithmic(first, last) if logarithmic else _linear(first, last)
        if low is not None:
            breaks = (low, *(value for value in breaks if value > low))
        if high is not None:
            breaks = (*(value for value in breaks if value < high), high)
        return cls(
            breaks,
            ramp_colours(ramp, len(breaks)),
            below=bool(known.size and known.min() < breaks[0]),
            above=bool(known.size and known.max() > breaks[-1]),
        )

    @classmethod
    def of_rasters(
        cls,
        paths: Sequence[Path],
        *,
        low: float | None = None,
        high: float | None = None,
        ramp: str = "level",
        opened: Callable[[Path], AbstractContextManager[Any]] | None = None,
    ) -> Scale:
        """Return the scale that some rasters share, from their overviews.

        Parameters
        ----------
        paths : sequence of Path
        low, high, ramp
            See :meth:`of`.
        opened : callable, optional
            Opens a raster; by default anew.
        """
        looked = [_look(path, opened or rasterio.open) for path in paths]
        joined = np.concatenate([values for values, _ in looked]) if looked else np.empty(0)
        found = cls.of(joined, low=low, high=high, ramp=ramp)
        ends = [end for _, end in looked if end is not None]
        if not ends:
            return found
        # A raster without these tags has its overview alone.
        below = found.below or min(low for low, _ in ends) < found.breaks[0]
        above = found.above or max(high for _, high in ends) > found.breaks[-1]
        return cls(found.breaks, found.colours, below, above)

    @property
    def places(self) -> np.ndarray:
        """Position of each break on the ramp, 0 to 1, (n_break,)."""
        return np.linspace(0.0, 1.0, len(self.breaks))

    def colour(self, value: float) -> str:
        """Return the colour of a value, ``#rrggbb``."""
        parts = np.array([[int(c[k : k + 2], 16) for k in (1, 3, 5)] for c in self.colours])
        mixed = [round(float(np.interp(value, self.breaks, part))) for part in parts.T]
        return "#" + "".join(f"{part:02x}" for part in mixed)

    def labels(self, unit: str = "") -> list[str]:
        """Return a label for each break, the first with the unit; ``<=``, ``>=`` for what lies on.

        A legend lists them from the first, so that the unit stands above all other numbers.
        """
        numbers = [number_text(value) for value in self.breaks]
        if self.below:
            numbers[0] = f"\u2264 {numbers[0]}"
        if self.above:
            numbers[-1] = f"\u2265 {numbers[-1]}"
        return [f"{numbers[0]} {unit}".strip(), *numbers[1:]]

    def refined(self, n_class: int) -> Scale:
        """Return the scale with breaks halfway between its own, until it has enough classes."""
        breaks = self.breaks
        while len(breaks) - 1 < n_class:
            # As many digits as two more breaks need: 0.25 between 0 and 0.5.
            halves = [float(f"{(a + b) / 2:.10g}") for a, b in itertools.pairwise(breaks)]
            breaks = tuple(sorted({*breaks, *halves}))
        colours = tuple(self.colour(value) for value in breaks)
        return replace(self, breaks=breaks, colours=colours)


def number_text(value: float) -> str:
    """Return a rounded number with thousands separators: ``1,000``, ``0.25``."""
    return f"{value:,.10g}".replace("-", "\u2212")


def ramp_colours(ramp: str, n: int) -> tuple[str, ...]:
    """Return ``n`` colours of a ramp, from low to high, ``#rrggbb``."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    name, first, last = {**RAMPS, **DIVERGING}[ramp]
    return tuple(to_hex(colour) for colour in colormaps[name](np.linspace(first, last, n)))


def _span(known: np.ndarray, low: float | None, high: float | None) -> tuple[float, float, bool]:
    """Return the ends to be rounded, and whether breaks are logarithmic."""
    if low is not None and high is not None:
        return low, high, False
    if known.size == 0:
        first = 0.0 if low is None else low
        return first, first + 1.0 if high is None else high, False
    first, middle, last = (float(q) for q in np.quantile(known, [TAIL, 0.5, 1 - TAIL]))
    if low is None and high is None and first >= 0 < middle and last > SKEWED * middle:
        return max(first, last / DECADES), last, True
    first, last = first if low is None else low, last if high is None else high
    if low is None and 0 <= first < 0.15 * last:
        first = 0.0
    if not last > first:
        last = first + (abs(first) or 1.0) / 2
        first = first - (abs(first) or 1.0) / 2 if low is None else first
    return first, last, False


def _linear(low: float, high: float) -> tuple[float, ...]:
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(N_STEP, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return _rounded(ticks, low, high)


def _logarithmic(low: float, high: float) -> tuple[float, ...]:
    """Return breaks such as 1, 2, 5, 10, as dense as the limit allows."""
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        breaks = _rounded(np.outer(decades, steps).ravel(), low, high)
        if len(breaks) <= N_BREAK:
            break
    return breaks


def _rounded(ticks: Iterable[float], low: float, high: float) -> tuple[float, ...]:
    """Return the ticks from the last that is <= low to the first that is >= high."""
    exact = [float(f"{tick:.10g}") for tick in ticks]
    slack = 1e-9 * (abs(high) + abs(low))
    first = max((k for k, tick in enumerate(exact) if tick <= low + slack), default=0)
    last = min((k for k, tick in enumerate(exact) if tick >= high - slack), default=len(exact) - 1)
    return tuple(exact[first : last + 1])


def _look(
    path: Path, opened: Callable[[Path], AbstractContextManager[Any]]
) -> tuple[np.ndarray, tuple[float, float] | None]:
    """Return values of an overview, and the exact minimum and maximum that the tags tell."""
    with opened(path) as source:
        step = max(1.0, max(source.shape) / SIDE)
        shape = tuple(max(1, int(n / step)) for n in source.shape)
        values = source.read(1, out_shape=shape, masked=True).astype(np.float64)
        tags = source.tags(1)
    known: np.ndarray = values.compressed()
    names = ("STATISTICS_MINIMUM", "STATISTICS_MAXIMUM")
    ends = (float(tags[names[0]]), float(tags[names[1]])) if set(names) <= set(tags) else None
    return known[np.isfinite(known)], ends
