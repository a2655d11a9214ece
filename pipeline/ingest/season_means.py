"""What stands for a layer of a period that is not known: its mean over other periods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from geo.grids.grid import Grid, Tile
from geo.sources.align import TRANSFORMS
from geo.sources.area_source import AreaSource
from geo.sources.source import Description, Source
from pipeline.config.context import StageContext
from pipeline.ingest.table_layers import AreaTables
from pipeline.store.aligned_grid import Layer, open_aligned_grid, read_part
from pipeline.store.pixel_store import PixelStore


class SeasonMeans:
    """The layers of some periods of a series, as layers of their means.

    Parameters
    ----------
    context : StageContext
    store : PixelStore
    like : sequence of str
        The periods, which are written.
    tables : AreaTables, optional
        Of covariates that are tables.
    others : sequence of str
        Periods whose mean serves where none of ``like`` has a value.
    """

    def __init__(
        self,
        context: StageContext,
        store: PixelStore,
        like: Sequence[str],
        tables: AreaTables | None,
        others: Sequence[str] = (),
    ) -> None:
        assert store.grid is not None
        self._config, self._grid, self._tables = context.config, store.grid, tables
        self._like = tuple(like)
        self._groups, self._others = (
            [open_aligned_grid(context.place(f"work/periods/{label}/grid.zarr")) for label in each]
            for each in (like, others)
        )
        first = PixelStore(store.path, period=self._like[0])
        self._units = dict(zip(first.covariates, first.units, strict=True))

    def covariate(self, name: str) -> Layer:
        """Return the mean of a covariate: of its values as the model reads them."""
        place, spec = f"covariates.{name}", self._config.covariates[name]
        if self._tables is not None and spec.table is not None:
            transform = TRANSFORMS[spec.transform]
            each = [self._tables.values(self._config.at(own), name, []) for own in self._like]
            mean = np.mean([transform(values) for values in each if values is not None], axis=0)
            owners = self._tables.owners_on(self._grid)
            unit = self._units[name]
            source: Source = AreaSource(spec.path, self._grid, owners, mean, name, unit)
            return Layer(place, source, "nearest")
        band = list(self._groups[0].attrs["covariates"]).index(name)
        groups = self._groups, self._others
        source = MeanSource(place, self._grid, groups, "covariates", band, self._units[name])
        return Layer(place, source, "nearest")

    def population(self) -> Layer:
        """Return the mean of the people."""
        groups = self._groups, self._others
        source = MeanSource("population", self._grid, groups, "population")
        return Layer("population", source, "sum")


class MeanSource(Source):
    """The mean of an array of aligned grids: of the first where any has a value, else of others.

    Parameters
    ----------
    path : str
        For messages.
    grid : Grid
        Of all.
    groups : (sequence, sequence) of zarr group
        Those whose mean is wanted, and those that serve where none of them has a value.
    name : str
        Of the array.
    band : int, optional
        Of the array's first axis.
    unit : str
    """

    def __init__(
        self,
        path: str,
        grid: Grid,
        groups: tuple[Sequence[Any], Sequence[Any]],
        name: str,
        band: int | None = None,
        unit: str = "",
    ) -> None:
        self.path, self._groups, self._name = path, groups, name
        self._first = () if band is None else (slice(band, band + 1),)
        self._about = Description.on(grid, name, unit)
        self._whole = grid.whole

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Return the values of a window: see :meth:`geo.sources.source.Source.read`."""
        self.band_of(time)
        part = (*self._first, *(window or self._whole).slices)
        first, others = self._groups
        found = self._mean(first, part)
        if others and not np.isfinite(found).all():
            found = np.where(np.isfinite(found), found, self._mean(others, part))
        return found

    def _mean(self, groups: Sequence[Any], part: tuple[slice, ...]) -> np.ndarray:
        each = np.stack([read_part(group, self._name, *part) for group in groups])
        values = each.astype(np.float64)[:, 0] if self._first else each.astype(np.float64)
        known = np.isfinite(values)
        found = np.full(values.shape[1:], np.nan)
        total = np.where(known, values, 0.0).sum(axis=0)
        return np.divide(total, known.sum(axis=0), out=found, where=known.any(axis=0))
