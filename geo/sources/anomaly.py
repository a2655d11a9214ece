"""A period of a cube against the same days of other years: its climatology."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date

import numpy as np

from geo.core.calendar import in_year
from geo.core.errors import InputError
from geo.grids.grid import Tile
from geo.sources.aggregated import AggregatedSource
from geo.sources.derived import DerivedSource
from geo.sources.source import Source


class AnomalySource(DerivedSource):
    """The difference of a period's aggregate from the mean of the same days of some years.

    Parameters
    ----------
    source : Source
        With a band of each time.
    span : (date, date)
        First day of the period, and the day after its last.
    how : {"sum", "mean", "max", "min"}
        See :class:`geo.sources.aggregated.AggregatedSource`; the same in all years.
    years : iterable of int
        Two or more; the last day of the period lies in each.
    standardised : bool
        Divide by the standard deviation of the years (of n - 1 degrees of freedom). Where all
        years are the same, a value like theirs is 0, and another one is missing.

    Raises
    ------
    InputError
        If the source lacks a step of the period, or of one of the years.
    """

    def __init__(
        self,
        source: Source,
        span: tuple[date, date],
        how: str,
        years: Iterable[int],
        *,
        standardised: bool = False,
    ) -> None:
        super().__init__(source, "1" if standardised else None)
        self._standardised = standardised
        self._own = AggregatedSource(source, span, how)
        spans = [in_year(span, year) for year in years]
        try:
            # 29 February alone is of leap years alone.
            self._years = [
                AggregatedSource(source, each, how) for each in spans if each[0] < each[1]
            ]
        except InputError as error:
            problems = [
                replace(
                    each,
                    found=f"{each.found}, a part of the climatology",
                    remedy="give a longer file, or years that it has (anomaly.from, anomaly.to)",
                )
                for each in error.problems
            ]
            raise InputError(problems) from error
        own = self._own.band_of()
        label = f"{own.label} less those of {len(self._years)} years"
        self._about = replace(self._about, bands=(replace(own, label=label),))

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Return the values of a window: see :meth:`geo.sources.source.Source.read`."""
        self.band_of(time)
        own = self._own.read(window)
        # Welford's sums: one year is in memory at a time.
        n, mean, squares = (np.zeros(own.shape) for _ in range(3))
        for year in self._years:
            values = year.read(window)
            known = np.isfinite(values)
            n += known
            gap = np.where(known, values - mean, 0.0)
            mean += np.divide(gap, n, out=np.zeros(own.shape), where=n > 0)
            squares += gap * np.where(known, values - mean, 0.0)
        found: np.ndarray = own - np.where(n > 0, mean, np.nan)
        if not self._standardised:
            return found
        deviation = np.sqrt(np.divide(squares, n - 1, out=np.full(own.shape, np.nan), where=n > 1))
        same = (deviation == 0.0) & (found == 0.0)
        scaled = np.full(own.shape, np.nan)
        np.divide(found, deviation, out=scaled, where=deviation > 0)
        return np.where(same, 0.0, scaled)
