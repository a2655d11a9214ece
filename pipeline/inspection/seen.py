"""What the page of the inputs shows: small copies of the aligned grid, a sample, areas, periods.

All is read from the aligned grid of the check, a tile at a time: what the model would be given, on
one grid, whatever the inputs were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import zarr

from geo.core.columns import AREA_ID
from geo.core.suppressed import interval_text
from geo.grids.grid import Bounds, Grid, Tile
from geo.grids.membership import Membership
from geo.grids.reproject import reproject
from pipeline.config.schema import Config
from pipeline.ingest.examine import Examined
from pipeline.ingest.extent import measurable
from pipeline.ingest.inputs import Inputs
from pipeline.ingest.odd_counts import Beside, beside_neighbours
from pipeline.ingest.period_files import period_states
from pipeline.ingest.point_suspicions import describe_sources
from pipeline.ingest.profile import counts_of_periods
from pipeline.responses.table import Columns
from pipeline.storage.object_commit import zarr_at
from pipeline.store.aligned_grid import TILE, GridSummary
from pipeline.store.level_areas import names_of

N_SIDE = 360  # pixels of a small copy
N_SAMPLE = 20_000  # pixels of areas, drawn at random with a fixed seed
N_AT_ONCE = 1 << 20  # pixels
PEOPLE = "population"


@dataclass(frozen=True)
class Copies:
    """The layers of a grid around the areas, shrunk.

    Attributes
    ----------
    values : dict of (n_row, n_col) float64 arrays
        Means of blocks of pixels, NaN where none has a value; people are per km2.
    side : int
        Pixels of a block's side.
    bounds : tuple of float
        West, south, east, north, in the CRS of the grid.
    sample : (n, n_layer) DataFrame
        Values of pixels that an area covers; people are those of the pixel.
    n_inside : int
        Pixels that areas cover.
    missing : dict of float
        Share of these that lacks a layer.
    """

    values: dict[str, np.ndarray]
    side: int
    bounds: Bounds
    sample: pd.DataFrame
    n_inside: int
    missing: dict[str, float]


@dataclass
class Seen:
    """What a check saw, None or empty where an input is unusable.

    Attributes
    ----------
    grid : Grid or None
        Of the run.
    copies : Copies or None
    shapes : GeoSeries or None
        Areas in the CRS of the grid, the index of `areas`.
    areas : DataFrame
        ``id``, ``name``, ``value``, ``suppressed``, ``people``, ``exposure`` of each area. Without
        a value, a suppressed count has the text of its interval.
    beside : Beside or None
        Rates of areas beside those around.
    periods : DataFrame
        Counts, (n_area, n_period), NaN where missing or suppressed; columns are periods by time.
    hidden : DataFrame
        Which counts are suppressed, as `periods`.
    files : dict of list of str
        Of :func:`pipeline.ingest.period_files.period_states`.
    sources, places : DataFrame
        Of points beside areas, see :func:`pipeline.ingest.point_suspicions.describe_sources`; of
        ``places`` the coordinates ``x``, ``y`` in the CRS of the grid.
    """

    grid: Grid | None = None
    copies: Copies | None = None
    shapes: gpd.GeoSeries | None = None
    areas: pd.DataFrame = field(default_factory=pd.DataFrame)
    beside: Beside | None = None
    periods: pd.DataFrame = field(default_factory=pd.DataFrame)
    hidden: pd.DataFrame = field(default_factory=pd.DataFrame)
    files: dict[str, list[str]] = field(default_factory=dict)
    sources: pd.DataFrame = field(default_factory=pd.DataFrame)
    places: pd.DataFrame = field(default_factory=pd.DataFrame)

    def look(
        self,
        config: Config,
        inputs: Inputs,
        members: Membership | None,
        written: GridSummary | None,
        examined: Examined,
    ) -> None:
        """Take what the page needs, while the aligned grid is there."""
        self.files = period_states(config)
        areas, grid = inputs.areas, inputs.grid
        if config.points:
            self.sources, self.places = describe_sources(config)
            if grid is not None and len(self.places):
                place = gpd.points_from_xy(self.places["lon"], self.places["lat"], crs="EPSG:4326")
                there = place.to_crs(grid.crs)
                self.places = self.places.assign(x=there.x, y=there.y)
        if grid is not None and members is not None and written is not None:
            self.grid = grid
            self.copies = copies_of(grid, members, written)
        if areas is None:
            return
        given = inputs.responses
        ids, names = areas[AREA_ID].astype(str), names_of(areas, config.areas.name)
        self.areas = pd.DataFrame(
            {
                "id": ids,
                "name": ids if names is None else np.where(names == "", ids, names),
                "value": np.asarray(given.known, np.float64),
                "suppressed": _intervals(given),
                "people": np.nan if examined.people is None else examined.people,
                "exposure": np.nan if examined.exposure is None else examined.exposure,
            }
        ).reset_index(drop=True)
        here = self.areas["id"].to_numpy()
        self.periods, self.hidden = periods_of(config, here, examined.exposure)
        if not inputs.located or grid is None:
            return
        usable = areas.reset_index(drop=True)[measurable(areas)]
        self.shapes = reproject(usable.geometry, grid)
        words = config.response_kind
        if not words.classes and given.counts is not None and examined.exposure is not None:
            totals = self.areas["value"].to_numpy(np.float64)
            if not words.adds_up:
                totals = totals * examined.exposure
            self.beside = beside_neighbours(
                areas, totals, examined.exposure, counts=words.countable
            )


def _intervals(given: Columns) -> list[str | None] | None:
    """Return the interval of each suppressed count as text, None for other areas."""
    y, margins = given.counts, given.margins
    if y is None or margins is None:
        return None
    return [
        interval_text(count - margin, count + margin) if margin > 0 and count == count else None
        for count, margin in zip(y, margins, strict=True)
    ]


def periods_of(
    config: Config, ids: np.ndarray, exposure: np.ndarray | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the counts of every period, and which are suppressed; two (n_area, n_period) tables.

    Those of a series have its periods without counts, too. A count of several areas together is
    shared out by their exposures (n_area,).
    """
    found, series = counts_of_periods(config, ids, exposure), config.series
    counts, hidden = (
        pd.DataFrame({period: each[k] for period, each in found.items()}, index=ids) for k in (0, 1)
    )
    if series is None:
        return counts, hidden
    texts, labels = [series.text(label) for label in series.periods], list(series.periods)
    return (
        counts.reindex(columns=texts).set_axis(labels, axis=1),
        hidden.reindex(columns=texts, fill_value=False).set_axis(labels, axis=1),
    )


def copies_of(
    grid: Grid, members: Membership, written: GridSummary, n_side: int = N_SIDE
) -> Copies:
    """Shrink the layers of an aligned grid, and draw a sample of the pixels in areas.

    Parameters
    ----------
    grid : Grid
    members : Membership
        Pixels of all areas, one or more.
    written : GridSummary
    n_side : int, optional
        Pixels of a copy's longer side.
    """
    group: Any = zarr.open_group(zarr_at(written.path), mode="r")
    top, left, n_row, n_col = _window(grid, members.pixel)
    side = -(-max(n_row, n_col) // n_side)
    shape = -(-n_row // side), -(-n_col // side)
    people = group.attrs["exposure"] == "people"
    names = [*written.names, *([PEOPLE] if people else [])]
    total, weight = np.zeros((2, len(names), *shape))
    rng, drawn = np.random.default_rng(0), list[np.ndarray]()
    n_inside = written.people.n_value + written.people.n_missing
    for tile in _within(grid, top, left, n_row, n_col):
        covered = np.asarray(group["coverage"][tile.slices]) > 0
        if not covered.any():  # nothing is written there
            continue
        chosen = covered & (rng.random(tile.shape) < N_SAMPLE / n_inside)
        surface = np.broadcast_to(grid.area_km2(tile), tile.shape) if people else None
        place, summed = _blocks(tile, (top, left), shape, side)
        columns = []
        # All at once: a chunk has all covariates.
        layers = [
            *np.asarray(group["covariates"][(slice(None), *tile.slices)])[: len(written.names)]
        ]
        for number, layer in enumerate(
            [*layers, *([group["population"][tile.slices]] if people else [])]
        ):
            x = np.asarray(layer, np.float64)
            columns.append(x[chosen])
            known = np.isfinite(x)
            each = surface if number == len(layers) and surface is not None else 1.0
            total[number][place] += summed(np.where(known, x, 0.0))
            weight[number][place] += summed(np.where(known, each, 0.0))
        drawn.append(np.stack(columns, axis=1) if columns else np.empty((0, 0)))
    values = np.divide(total, weight, out=np.full_like(total, np.nan), where=weight > 0)
    west, north = grid.transform @ (left, top)
    east, south = grid.transform @ (left + shape[1] * side, top + shape[0] * side)
    ranges = {**written.ranges, **({PEOPLE: written.people} if people else {})}
    return Copies(
        dict(zip(names, values, strict=True)),
        side,
        (west, south, east, north),
        pd.DataFrame(np.concatenate([np.empty((0, len(names))), *drawn]), columns=names),
        n_inside,
        {
            name: each.n_missing / max(1, each.n_value + each.n_missing)
            for name, each in ranges.items()
        },
    )


def _window(grid: Grid, pixel: np.ndarray) -> tuple[int, int, int, int]:
    """Return first row and column, and numbers of both, of the window of some pixels."""
    ends = []
    for start in range(0, pixel.size, N_AT_ONCE):
        row, col = grid.row_col(pixel[start : start + N_AT_ONCE])
        ends.append([row.min(), col.min(), -row.max(), -col.max()])
    top, left, bottom, right = np.min(ends, axis=0).tolist()
    return top, left, 1 - bottom - top, 1 - right - left


def _within(grid: Grid, top: int, left: int, n_row: int, n_col: int) -> list[Tile]:
    """Return the tiles of a grid that meet a window."""
    return [
        tile
        for tile in grid.tiles(TILE)
        if tile.row < top + n_row
        and tile.row + tile.n_row > top
        and tile.col < left + n_col
        and tile.col + tile.n_col > left
    ]


def _blocks(
    tile: Tile, start: tuple[int, int], shape: tuple[int, int], side: int
) -> tuple[tuple[slice, slice], Callable[[np.ndarray], np.ndarray]]:
    """Return where the blocks of a tile lie, and a function that sums its pixels by block."""
    inner, starts, places = [], [], []
    for first, n, origin, n_block in zip(
        (tile.row, tile.col), tile.shape, start, shape, strict=True
    ):
        low, high = max(first, origin), min(first + n, origin + n_block * side)
        block = (np.arange(low, high) - origin) // side
        inner.append(slice(low - first, high - first))
        starts.append(np.flatnonzero(np.diff(block, prepend=-1)))
        places.append(slice(int(block[0]), int(block[-1]) + 1))

    def summed(values: np.ndarray) -> np.ndarray:
        rows = np.add.reduceat(values[inner[0], inner[1]], starts[0], axis=0)
        found: np.ndarray = np.add.reduceat(rows, starts[1], axis=1)
        return found

    return (places[0], places[1]), summed
