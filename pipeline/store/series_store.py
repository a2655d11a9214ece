"""The bags of several periods: one store of pixels, and what each period has beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from pipeline.storage.location import Location, Place
from pipeline.storage.object_commit import place_of
from pipeline.store.bag_store import BagStore
from pipeline.store.pixel_store import PixelStore
from pipeline.store.series_source import SeriesSource
from pipeline.store.stand_ins import Ahead, StandIns
from pipeline.store.thinning import thinned_store

#: What ingest leaves for others to know what has changed, in the output directory.
SERIES_FILE = "work/series.json"
CACHE_MB = 256.0  # of decoded pixels, of all periods together
NEAR = 1.01 / 12  # share of a season that counts as the same season, on both sides
SHARES = 6  # parts of the draws, between the periods that stand for another


class SeriesStore:
    """The bags of several periods, open for reading.

    Parameters
    ----------
    path : path-like, or address
        Of the pixels' store.
    periods : sequence of str
        Labels, by rising time.
    times : sequence of float
        Of the periods, in steps.
    season : float, optional
        Steps of a season; without it a forecast's covariates are those of the last period.
    ahead : mapping of str to Ahead, optional
        Later periods of which something that moves is known, by label.

    Attributes
    ----------
    ids : tuple of str
        Of all areas: an area's number is its place here.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Location,
        periods: Sequence[str],
        times: Sequence[float],
        season: float | None = None,
        ahead: Mapping[str, Ahead] | None = None,
    ) -> None:
        self.path, self.periods, self.times = place_of(path), tuple(periods), tuple(times)
        self.season, self.ahead = season, dict(ahead or {})
        self._open: dict[tuple[str, tuple[str, ...]], BagStore] = {}
        self._to_fit: dict[str, BagStore] = {}

    @cached_property
    def pixels(self) -> PixelStore:
        """What stands still."""
        return PixelStore(self.path)

    @property
    def ids(self) -> tuple[str, ...]:
        """See the class."""
        return self.pixels.ids

    @cached_property
    def _cache_mb(self) -> float:
        """Memory for decoded pixels of a period.

        All or none: blocks are read in their order, so that of a part each would be gone before it
        is asked for again.
        """
        share = CACHE_MB / max(len(self.periods), 1)
        return share if self.pixels.decoded_bytes <= 1e6 * share else 0.0

    def at(
        self, period: str, time: float | None = None, like: Sequence[str] | None = None
    ) -> BagStore:
        """Return the bags of a period; of one that is not of the series, without responses.

        Parameters
        ----------
        period : str
        time : float, optional
            Of a period that is not of the series.
        like : sequence of str, optional
            Periods whose mean stands for what moves in it, where that is not known; those of
            :meth:`like` if not given. People are those of :meth:`like` at any rate.
        """
        if period in self.periods:
            like = ()
        elif like is None:
            like = self.like(period, time)
        key = (period, tuple(like))
        if key not in self._open:
            if period in self.periods:
                self._open[key] = BagStore.open(self.path, self._cache_mb, period)
            else:
                self._open[key] = BagStore.ahead(
                    self.path,
                    period,
                    self._stand_ins(period, time, like),
                    0.0,  # read once, for some of the draws
                    self.periods,
                    self.ahead.get(period),
                )
        return self._open[key]

    def to_fit(self, period: str) -> BagStore:
        """Return the bags of a period that a model is fitted to, with their shares of unions."""
        if period not in self._to_fit:
            found = BagStore.open(self.path, self._cache_mb, period, unions=True)
            # Without unions the other will do: decoded pixels are kept once.
            found = self.at(period) if found.unions is None else found
            self._to_fit[period] = found.training
        return self._to_fit[period]

    def like(self, period: str, time: float | None = None) -> tuple[str, ...]:
        """Return the periods whose mean stands for what moves in a period; none if it is known.

        Those of the same season, where there is one of a whole season before; else the last. None
        either where some of it is known: its own store has the mean in place of the rest.
        """
        if period in self.ahead:
            return ()
        found = self._of_season(period, time, 0.5)
        return found if found is not None else self._known[-1:]

    def _stand_ins(self, period: str, time: float | None, like: Sequence[str]) -> StandIns:
        """Return what stands for what moves in a period, where ``like`` does for covariates."""
        own = self.like(period, time)
        rest, people_rest = (self.rest(period, each, time) for each in (like, own))
        return StandIns(tuple(like), rest, own, people_rest)

    def candidates(self, period: str, time: float | None = None) -> tuple[str, ...]:
        """Return the periods each of which may stand for what moves in one; none if all is known.

        Those of the same season, a month earlier to a month later, where one is of the very period
        of another year. Else the nearest of its season before and after it, some of them several
        times: a covariate half a season away says less than one of last month. Without a season
        all.
        """
        if self._is_known(period):
            return ()
        if self.season is None or time is None:
            return self._known
        return self._near(period, time) or self._around(time, self.season)

    def _near(self, period: str, time: float | None) -> tuple[str, ...] | None:
        """Return the periods of a season, with a month on both sides; None if it has none."""
        if self.season is None or not self._of_season(period, time, 0.5):
            return None
        return self._of_season(period, time, max(0.5, NEAR * self.season))

    def _around(self, time: float, season: float) -> tuple[str, ...]:
        """Return the known periods before and after a time of the season, in sixths.

        They are weighed as for a line between both, none by less than a sixth.
        """
        there = set(self._known)
        times = np.array([own for each, own in zip(self.periods, self.times, strict=True)
                          if each in there])  # fmt: skip
        since, until = (time - times) % season, (times - time) % season
        before, after = int(np.argmin(since)), int(np.argmin(until))
        if before == after:
            return (self._known[before],)
        share = until[after] / (since[before] + until[after])
        n = min(max(round(SHARES * share), 1), SHARES - 1)
        return (self._known[before],) * n + (self._known[after],) * (SHARES - n)

    def rest(self, period: str, like: Sequence[str], time: float | None) -> tuple[str, ...]:
        """Return other periods, which stand where a pixel counts in none of some."""
        found = () if self._is_known(period) else self._near(period, time) or self._known
        return tuple(own for own in found if own not in like)

    @cached_property
    def _known(self) -> tuple[str, ...]:
        there = set(self.pixels.periods)
        return tuple(own for own in self.periods if own in there)

    def _is_known(self, period: str) -> bool:
        own = self.ahead.get(period)
        whole = period in self._known if own is None else own.whole
        return whole or not self._known

    def _of_season(self, period: str, time: float | None, near: float) -> tuple[str, ...] | None:
        """Return the known periods of a season, so many steps near; None if there is none."""
        if self._is_known(period):
            return ()
        if self.season is None or time is None:
            return None
        away = (np.array(self.times) - time) / self.season
        same = (np.abs(away - np.round(away)) * self.season <= near) & (np.abs(away) > 0.5)
        chosen = {own for own, is_same in zip(self.periods, same, strict=True) if is_same}
        return tuple(own for own in self._known if own in chosen) or None

    def thinned(self, directory: Place, cap: int | str, seed: int) -> list[BagStore]:
        """Return the training bags of each period, few pixels standing for those of large areas."""
        return [
            thinned_store(self.to_fit(period), directory / period, cap, seed)
            for period in self.periods
        ]

    def source(self, stores: Sequence[BagStore]) -> SeriesSource:
        """Return the training bags of stores of each period, such as those of :meth:`thinned`."""
        return SeriesSource.of(stores, self.times, self.ids)

    @property
    def n_pix(self) -> int:
        """Pixels of the training bags of all periods."""
        return sum(self.to_fit(period).n_pix for period in self.periods)
