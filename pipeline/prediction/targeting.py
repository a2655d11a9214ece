"""Targeting: the share of the cases reached by taking the people of highest rate first.

Pixels, or areas, are taken by falling posterior mean rate. In each draw of the map they hold
another share of the cases: the curve has an interval. Only part of the last pixel or area may be
taken, and holds that part of its cases.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.core.threads import map_in_order
from pipeline.prediction.level_draws import Classes
from pipeline.prediction.level_pixels import PixelReader
from pipeline.prediction.level_tables import Summary, order_by_rate

N_CLASS = 1000  # classes of pixels, of equal people as far as rates differ
PERCENT = np.arange(0, 101)

# A positive float32 and its bits are in the same order: the first 20 bits are a class of rates that
# differ by less than 0.05 %.
_SHIFT = np.uint32(12)
_N_KEY = 1 << (31 - 12)


@dataclass(frozen=True)
class RateClasses:
    """Classes of pixels by mean rate, the highest first.

    Attributes
    ----------
    of_key : (n_key,) int32 array
        Class of each key, see :func:`rate_keys`.
    above : (n_key,) float64 array
        Share of the people in pixels of higher keys.
    n_class : int
    """

    of_key: np.ndarray
    above: np.ndarray
    n_class: int

    @classmethod
    def of(cls, people: np.ndarray, n_class: int = N_CLASS) -> RateClasses:
        """Divide the keys into classes of equal people.

        Parameters
        ----------
        people : (n_key,) float64 array
            People in the pixels of each key.
        n_class : int
            Most classes; fewer if there are fewer keys with people.
        """
        total = people.sum()
        falling = people[::-1]
        ends = np.cumsum(falling)
        share = (ends - falling) / total if total > 0 else np.zeros(people.size)
        place = np.minimum((share * n_class).astype(np.int64), n_class - 1)
        used = np.unique(place[falling > 0])
        # A key without people takes the class before it; the first ones, the first.
        number = np.maximum(np.searchsorted(used, place, side="right") - 1, 0)
        return cls(
            of_key=number[::-1].astype(np.int32),
            above=np.clip(share, 0.0, 1.0)[::-1],
            n_class=max(1, used.size),
        )


def rate_keys(rate: np.ndarray) -> np.ndarray:
    """Return a key of each rate, (n,) int64, that never falls as the rate rises.

    Parameters
    ----------
    rate : (n,) float32 array
        At least 0.
    """
    positive = np.maximum(np.ascontiguousarray(rate, dtype=np.float32), np.float32(0))
    return (positive.view(np.uint32) >> _SHIFT).astype(np.int64)


def classify(reader: PixelReader, n_thread: int | None = None) -> RateClasses:
    """Classify the pixels of a map in one pass over its raster of rates.

    Memory has a number for each of half a million keys, never one for each pixel.
    """

    def of(tile: Any) -> tuple[np.ndarray, np.ndarray]:
        rate, people = reader.rates(tile)
        key, place = np.unique(rate_keys(rate), return_inverse=True)
        return key, np.bincount(place, people, key.size)

    total = np.zeros(_N_KEY)
    for key, people in map_in_order(of, reader.tiles, n_thread):
        total[key] += people
    return RateClasses.of(total)


def class_of(classes: RateClasses) -> Classes:
    """Return the function that :func:`pipeline.prediction.level_draws.draw_levels` asks for."""
    return lambda pixels, part: classes.of_key[rate_keys(pixels.rate[part])]


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
