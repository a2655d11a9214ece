"""What moves from period to period, written: its grid, and its pixels beside the store's."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import zarr

from geo.core.errors import InputError, Problem
from pipeline.cluster.local import n_thread
from pipeline.config.context import StageContext
from pipeline.core.progress import Progress
from pipeline.ingest.inputs import on_grid, open_layers
from pipeline.ingest.season_means import SeasonMeans
from pipeline.ingest.table_layers import AreaTables, own_values, put_own
from pipeline.storage.local_commit import is_current, staged
from pipeline.storage.location import Place
from pipeline.storage.object_commit import zarr_at
from pipeline.store import aligned_grid
from pipeline.store.aligned_grid import InputLayers, open_aligned_grid, read_pixels
from pipeline.store.aligned_grid import write_aligned_grid as align
from pipeline.store.period_store import write_period
from pipeline.store.pixel_store import PERIOD_FORMAT, PERIOD_VERSION, PixelStore


@dataclass(frozen=True)
class Partly:
    """A period after the series, of which some of what moves is known.

    Attributes
    ----------
    place : Place
        Directory of its grid and its pixels.
    known : tuple of str
        What is its own, ``population`` among it.
    like : tuple of str
        Periods whose mean stands for the rest.
    others : tuple of str
        Periods that stand for it where none of ``like`` has a value.
    """

    place: Place
    known: tuple[str, ...]
    like: tuple[str, ...]
    others: tuple[str, ...] = ()


def write_moving(
    context: StageContext,
    store: PixelStore,
    label: str,
    fingerprint: str,
    tables: AreaTables | None = None,
    partly: Partly | None = None,
) -> np.ndarray | None:
    """Write the grid and the pixels of what moves in a period, unless they are as before.

    Parameters
    ----------
    context : StageContext
    store : PixelStore
        What stands still.
    label : str
    fingerprint : str
    tables : AreaTables, optional
        Of covariates that are tables.
    partly : Partly, optional
        Where and how a period after the series is written.

    Returns
    -------
    (n_bag,) float64 array or None
        Share of each area's people in pixels that lack a covariate of the period, by numbers of the
        store; None if nothing was written.

    Raises
    ------
    InputError
        If a layer cannot be read, or has no value in any area.
    """
    above = context.place(f"work/periods/{label}") if partly is None else partly.place
    place, pixels = above / "grid.zarr", None if partly is None else above / "pixels"
    kind, version = aligned_grid.FORMAT, aligned_grid.VERSION
    if _has_pixels(store, label, pixels) and is_current(place, kind, version, fingerprint):
        return None
    config = context.config
    own, moving, problems = config.at(label), config.moving(), list[Problem]()
    wanted = moving if partly is None else partly.known
    covariates, population = open_layers(own, wanted, problems)
    grid = store.grid
    own_of: dict[int, np.ndarray] = {}
    if grid is not None:
        covariates = on_grid(own, wanted, grid, tables, covariates, problems)
    if partly is not None and grid is not None and not problems:
        means = SeasonMeans(context, store, partly.like, tables, partly.others)
        covariates = {
            name: covariates[name] if name in covariates else means.covariate(name)
            for name in moving
            if name != "population"
        }
        if population is None and "population" in moving:
            population = means.population()
    if tables is not None:
        own_of = own_values(covariates, pd.Index(tables.ids).get_indexer(list(store.ids)))
    if problems or grid is None:
        raise InputError(problems)
    names = tuple(covariates)
    with staged(place, kind, version, fingerprint) as staging:
        layers = InputLayers(covariates, population)
        written = align(staging, grid, layers, None, everywhere=True, workers=n_thread(config))
        problems = [replace(each, place=f"{each.place}, {label}") for each in written.problems]
        problems += [
            Problem(f"{layer.place}, {label}", "has no value on the grid", "check the file")
            for name, layer in covariates.items()
            if written.ranges[name].n_value == 0 and not written.problems
        ]
        if problems:
            raise InputError(problems)
        group = zarr.open_group(zarr_at(staging), mode="r+")
        group.attrs["has_population"] = population is not None
        standing, people = context.place("work/grid.zarr"), population is not None
        rows = MovingPixels(store, group, standing, people, own_of)
        units = [layer.source.describe().unit for layer in covariates.values()]
        write_period(
            store,
            label,
            names,
            units,
            rows,
            has_weight=True,
            workers=n_thread(config),
            fingerprint=fingerprint,
            place=pixels,
        )
    _log_gaps(rows, label, context.progress)
    return rows.lost


def _has_pixels(store: PixelStore, label: str, place: Place | None) -> bool:
    if place is None:
        return label in store.periods
    return is_current(place, PERIOD_FORMAT, PERIOD_VERSION, store.fingerprint)


class MovingPixels:
    """Reads what moves at the pixels of areas, from a period's aligned grid.

    Parameters
    ----------
    store : PixelStore
    moving : zarr group
        Of the period.
    standing : Place
        The grid of what stands still.
    has_population : bool
        Whether people move.
    own : mapping of int to (n_bag,) array, optional
        Values of the store's areas, by number of the covariate: see
        :func:`pipeline.ingest.table_layers.own_values`.

    Attributes
    ----------
    n_gap : int
        Pixels that lack a covariate in the period: they have no weight there.
    """

    def __init__(
        self,
        store: PixelStore,
        moving: Any,
        standing: Place,
        has_population: bool,
        own: Mapping[int, np.ndarray] | None = None,
    ) -> None:
        self._own = own or {}
        self._store, self._moving, self._people = store, moving, has_population
        self._standing = open_aligned_grid(standing)
        self._n_col = int(self._standing["population"].shape[1])
        self.n_gap = 0
        self._lock = threading.Lock()  # pixels are read in threads
        self._whole, self._gone = np.zeros(store.n_bag), np.zeros(store.n_bag)

    @property
    def lost(self) -> np.ndarray:
        """Share of the weight of each area that was read in pixels of ``n_gap``, (n_bag,)."""
        none = np.zeros(self._whole.size)
        return np.divide(self._gone, self._whole, out=none, where=self._whole > 0)

    def __call__(
        self, bag: np.ndarray, start: np.ndarray, stop: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See :data:`pipeline.store.period_store.MovingRows`."""
        first = self._store.offsets[bag]
        pieces = [
            self._store.rows(int(a), int(b))
            for a, b in zip(first + start, first + stop, strict=True)
        ]
        pixel = np.concatenate([each.pixel for each in pieces])
        weight = np.concatenate([each.weight for each in pieces]).astype(np.float64)
        x, people = read_pixels(self._moving, pixel, self._n_col)
        x = put_own(x, self._own, bag, stop - start)
        if self._people:
            _, before = read_pixels(self._standing, pixel, self._n_col)
            people = np.where(people > 0, people, 0.0)
            weight = np.divide(weight * people, before, out=np.zeros_like(weight), where=before > 0)
        known = np.isfinite(x).all(axis=1)
        area = np.repeat(bag, stop - start)
        with self._lock:
            self.n_gap += int((~known).sum())
            self._whole += np.bincount(area, weight, self._whole.size)
            self._gone += np.bincount(area[~known], weight[~known], self._gone.size)
        if not known.all():
            weight[~known] = 0.0
            # The mean of its area: a value that moves no scaling of the covariates.
            cuts = np.cumsum([0, *(stop - start)])
            for a, b in pairwise(cuts.tolist()):
                x[a:b] = _filled(x[a:b])
        return x, weight


def _filled(x: np.ndarray) -> np.ndarray:
    known = np.isfinite(x)
    total, n = np.where(known, x, 0.0).sum(axis=0), known.sum(axis=0)
    mean = np.divide(total, n, out=np.zeros(x.shape[1]), where=n > 0)
    found: np.ndarray = np.where(known, x, mean.astype(x.dtype))
    return found


def _log_gaps(rows: MovingPixels, label: str, progress: Progress) -> None:
    if rows.n_gap:
        progress.log(
            f"ingest: {label}: {rows.n_gap:,} pixels of areas lack a covariate that moves, and "
            "count nobody in this period"
        )
