"""Targeting: the share of the cases reached by taking the people of highest rate first.

Pixels, or areas, are taken by falling posterior mean rate. In each draw of the map they hold
another share of the cases: the curve has an interval. Only part of the last pixel or area may be
taken, and holds that part of its cases.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from pipeline.levels.level_tables import Summary, order_by_rate
from pipeline.products.tile_pass import Consumer
from pipeline.products.tile_pixels import TilePixels

PERCENT = np.arange(0, 101)

# A positive float32 and its bits are in the same order: its first 20 bits are a key of rates that
# differ by less than 0.05 %, its first 17 a class of those that differ by less than 0.4 %.
_SHIFT = np.uint32(12)
_N_KEY = 1 << (31 - 12)
_OF_CLASS = 3  # bits of a key that its class lacks


def rate_keys(rate: np.ndarray) -> np.ndarray:
    """Return a key of each rate, (n,) int64, that never falls as the rate rises.

    Parameters
    ----------
    rate : (n,) float32 array
        At least 0.
    """
    positive = np.maximum(np.ascontiguousarray(rate, dtype=np.float32), np.float32(0))
    return (positive.view(np.uint32) >> _SHIFT).astype(np.int64)


def people_above(people: np.ndarray) -> np.ndarray:
    """Return the share of the people whose key is higher, (n_key,), of each key.

    Parameters
    ----------
    people : (n_key,) float64 array
        People in the pixels of each key.
    """
    total, falling = people.sum(), people[::-1]
    ends = np.cumsum(falling)
    share = (ends - falling) / total if total > 0 else np.zeros(people.size)
    return np.clip(share, 0.0, 1.0)[::-1]


@dataclass
class _Tile:
    key: np.ndarray  # those that occur
    people: np.ndarray
    kind: np.ndarray  # the class of each pixel, by its place in `classes`
    classes: np.ndarray
    class_drawn: np.ndarray  # (n_class, n_draws)


class Targeting(Consumer):
    """Sums people and drawn cases of pixels inside the training areas by classes of mean rate.

    Memory has a number for each of half a million keys, and ``n_draws`` for each class that occurs:
    180 from a rate to its double; never one for each pixel.

    Parameters
    ----------
    n_draws : int
    """

    def __init__(self, n_draws: int) -> None:
        self._n_draws = n_draws
        self._people, self._above = np.zeros(_N_KEY), np.zeros(_N_KEY)
        self._drawn: dict[int, np.ndarray] = {}

    def begin(self, pixels: TilePixels) -> _Tile:
        """Sum the people of each key, and find the classes."""
        key, place = np.unique(rate_keys(pixels.values["rate_mean"]), return_inverse=True)
        people = np.bincount(place, pixels.people * pixels.covered, key.size)
        classes, of_key = np.unique(key >> _OF_CLASS, return_inverse=True)
        drawn = np.zeros((classes.size, self._n_draws))
        return _Tile(key, people, of_key[place], classes, drawn)

    def draw(
        self, found: _Tile, pixels: TilePixels, part: slice, rate: np.ndarray, counted: np.ndarray
    ) -> None:
        """Sum the drawn cases of each class."""
        del rate
        people, kind = (pixels.people * pixels.covered)[part], found.kind[part]
        shape = (found.classes.size, kind.size)
        chosen = csr_matrix((people, (kind, np.arange(kind.size))), shape=shape)
        found.class_drawn += chosen @ counted

    def add(self, pixels: TilePixels, found: _Tile) -> None:
        """Add the sums of a tile."""
        del pixels
        self._people[found.key] += found.people
        for number, drawn in zip(found.classes.tolist(), found.class_drawn, strict=True):
            self._drawn[number] = self._drawn.get(number, 0.0) + drawn

    def finish(self) -> None:
        """Rank the keys."""
        self._above = people_above(self._people)

    def curve(self) -> Curve | None:
        """Return the curve of the pixels; None without people or cases."""
        if not self._drawn:
            return None
        falling = sorted(self._drawn, reverse=True)
        of_class = self._people.reshape(-1, 1 << _OF_CLASS).sum(axis=1)
        return Curve.of(of_class[falling], np.stack([self._drawn[k] for k in falling], axis=1))

    def above(self, rate: np.ndarray) -> np.ndarray:
        """Return the share of the people in pixels of a higher mean rate, (n_pix,)."""
        return self._above[rate_keys(rate)]


@dataclass(frozen=True)
class Curve:
    """Shares of people and cases of the first units, in order.

    Attributes
    ----------
    people : (n_unit + 1,) float64
        Share of the people, from 0 to 1.
    cases : (n_draws, n_unit + 1) float64
        Share of the cases in each draw.
    """

    people: np.ndarray
    cases: np.ndarray

    @classmethod
    def of(cls, people: np.ndarray, cases: np.ndarray) -> Curve | None:
        """Return the curve of units in their order; None without people or cases.

        Parameters
        ----------
        people : (n_unit,) float64
        cases : (n_draws, n_unit) float64
        """
        if not (people.sum() > 0 and (cases.sum(axis=1) > 0).all()):
            return None
        x = np.concatenate([[0.0], np.cumsum(people)])
        y = np.concatenate([np.zeros((cases.shape[0], 1)), np.cumsum(cases, axis=1)], axis=1)
        return cls(x / x[-1], y / y[:, -1:])

    def reached(self, share: np.ndarray) -> np.ndarray:
        """Return the share of cases at some shares of people, (n_draws, n)."""
        return np.stack([np.interp(share, self.people, each) for each in self.cases])

    def needed(self, share: np.ndarray) -> np.ndarray:
        """Return the share of people that holds some shares of cases, (n_draws, n)."""
        return np.stack([np.interp(share, each, self.people) for each in self.cases])

    def table(self, summary: Summary) -> pd.DataFrame:
        """Return the curve and its inverse at whole percents, all in percent."""
        at = PERCENT / 100
        reached, needed = 100 * self.reached(at), 100 * self.needed(at)
        return pd.DataFrame(
            {
                "percent": PERCENT,
                **summary.columns("cases_reached", reached.mean(axis=0), reached),
                **summary.columns("people_needed", needed.mean(axis=0), needed),
            }
        )


def area_curve(
    rate: np.ndarray, people: np.ndarray, drawn: np.ndarray
) -> tuple[np.ndarray, Curve | None]:
    """Return the order of the areas of a level, and their curve.

    Parameters
    ----------
    rate, people : (n_area,) float64
    drawn : (n_draws, n_area) float64
        Cases.
    """
    order = order_by_rate(rate)
    return order, Curve.of(people[order], drawn[:, order])


def target_columns(order: np.ndarray, curve: Curve, summary: Summary) -> dict[str, np.ndarray]:
    """Return the columns of a level's table, one number for each area in the order."""
    cases = curve.cases[:, 1:]
    return {
        "target_order": np.arange(1.0, order.size + 1),
        "target_people": curve.people[1:],
        **summary.columns("target_cases", cases.mean(axis=0), cases),
    }


def targeting_table(curves: Iterable[tuple[str, Curve]], summary: Summary) -> pd.DataFrame:
    """Return the table of ``targeting.csv``: every curve, one after the other."""
    parts = []
    for name, curve in curves:
        table = curve.table(summary)
        table.insert(0, "level", name)
        parts.append(table)
    return pd.concat(parts, ignore_index=True)
