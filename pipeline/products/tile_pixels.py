"""The pixels of a tile that can be mapped, with the areas of every level that they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from geo.grids.grid import Grid, Tile
from geo.grids.positions import Positions
from pipeline.products.moving_grids import NOWHERE, MovingGrids, MovingPlaces
from pipeline.store.aligned_grid import known_people, open_aligned_grid, positions_of, read_part
from pipeline.store.level_areas import Level
from pipeline.store.tile_index import TileIndex


@dataclass(frozen=True)
class TilePixels:
    """Pixels of a tile, in the order of rows and columns.

    Attributes
    ----------
    tile : Tile
    row, col : (n_pix,) int64 arrays
        Within the tile.
    x : (n_feat, n_pix) float32, covariates
    coords : (n_pix, n_axis) float64, km
    people : (n_pix,) float64
        Of the whole pixel, 0 where unknown; km2 without a population.
    covered : (n_pix,) float64
        Share of the pixel inside the training areas.
    overlap : (n_pix,) float64
        Share of the pixel that areas which overlap cover again.
    values : mapping of str to (n_pix,) float32
        Of each layer by its name, as the rasters have it.
    area : (n_local,) int64
        Areas with a pixel here: their numbers among those of all levels.
    fraction : (n_local, n_pix) sparse float64
        Share of each pixel that each of these areas covers.
    number : (n_pix,) int64 or None
        Number of the area that covers most of each pixel, as the model numbers areas; -1 for none.
    others : tuple of (n_moving, n_pix) float32
        What the covariates that move, the last of ``x``, may be in a forecast, ``x`` being their
        mean; empty where they are known.
    """

    tile: Tile
    row: np.ndarray
    col: np.ndarray
    x: np.ndarray
    coords: np.ndarray
    people: np.ndarray
    covered: np.ndarray
    overlap: np.ndarray
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    area: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    fraction: csr_matrix = field(default_factory=lambda: csr_matrix((0, 0)))
    number: np.ndarray | None = None
    others: tuple[np.ndarray, ...] = ()

    def inputs(self, part: slice, instead: np.ndarray | None = None) -> np.ndarray:
        """Return the model's inputs at some pixels: (n_part, n_column).

        Parameters
        ----------
        part : slice
        instead : (n_moving, n_pix) array, optional
            Of the last covariates.
        """
        x = self.x[:, part]
        if instead is not None:
            x = np.concatenate([x[: len(x) - len(instead)], instead[:, part]])
        if self.number is not None:
            x = np.concatenate([x, self.number[None, part].astype(x.dtype)])
        return np.ascontiguousarray(x.T)

    def alternatives(self, part: slice) -> list[np.ndarray]:
        """Return what the model's inputs may be, each as probable: one array where they are known.

        :meth:`inputs` has the rest of the words.
        """
        return [self.inputs(part, other) for other in self.others or (None,)]

    @property
    def n_pix(self) -> int:
        """Number of pixels."""
        return int(self.row.size)

    def band(self, values: np.ndarray, rest: float = np.nan, kind: type = np.float32) -> np.ndarray:
        """Return values of the pixels, (n_pix,), as the tile's band; ``rest`` elsewhere."""
        found: np.ndarray = np.full(self.tile.shape, rest, kind)
        found[self.row, self.col] = values
        return found

    def moved(self, moving: MovingGrids | None) -> TilePixels:
        """Return the pixels with the covariates of another period.

        Parameters
        ----------
        moving : MovingGrids or None
            Of that period, as of :class:`TileReader`: what moves is last among the covariates.
        """
        if moving is None:
            return self
        here = self.band(np.ones(self.n_pix), 0.0) > 0
        own = moving.read(*self.tile.slices, here)[0]
        x = np.concatenate([self.x[: len(self.x) - len(own)], own])
        others = moving.alternatives(*self.tile.slices, here, own)
        return replace(self, x=x, others=tuple(others))

    def select(self, keep: np.ndarray) -> TilePixels:
        """Return the pixels where ``keep`` (n_pix,) bool is true, before they have areas."""
        if keep.all():
            return self
        return replace(
            self,
            row=self.row[keep],
            col=self.col[keep],
            x=self.x[:, keep],
            coords=self.coords[keep],
            people=self.people[keep],
            covered=self.covered[keep],
            overlap=self.overlap[keep],
            number=None if self.number is None else self.number[keep],
            others=tuple(each[:, keep] for each in self.others),
            values={name: each[keep] for name, each in self.values.items()},
        )


class TileReader:
    """Reads the pixels of an aligned grid tile by tile, each once; safe on several threads.

    Parameters
    ----------
    aligned : zarr group, or mapping of str to array
        ``covariates`` (n_feat, n_row, n_col), ``population`` and ``coverage`` (n_row, n_col), and
        ``overlap`` where areas overlap.
    positions : Positions
        Of the grid's pixels.
    grid : Grid
    tile_size : int
        Side of a tile in pixels.
    levels : sequence of Level
        Areas are numbered through, level by level.
    mask : {"areas", "all"}
        Pixels in areas only, or every pixel with all covariates.
    moving : MovingGrids, optional
        Of one period: what moves among covariates and population.
    numbers : (n_area,) int64 array, optional
        The model's number of each area of the first level, where it numbers areas; -1 for none.
    """

    def __init__(
        self,
        aligned: Any,
        positions: Positions,
        grid: Grid,
        tile_size: int,
        levels: Sequence[Level] = (),
        mask: str = "areas",
        moving: MovingGrids | None = None,
        numbers: np.ndarray | None = None,
    ) -> None:
        self._aligned, self._positions, self._mask = aligned, positions, mask
        self._moving, self._numbers = moving, numbers
        self.grid, self.tiles = grid, list(grid.tiles(tile_size))
        self.levels = tuple(levels)
        self.starts = np.cumsum([0, *(len(level) for level in levels)])
        self._index = [
            None if level.members is None else TileIndex.of(level.members, grid, tile_size)
            for level in levels
        ]

    @classmethod
    def open(
        cls,
        cube_path: Any,
        levels: Sequence[Level] = (),
        mask: str = "areas",
        tile_size: int | None = None,
        moving: MovingPlaces = NOWHERE,
        numbers: np.ndarray | None = None,
    ) -> TileReader:
        """Open aligned grids at their paths; the grid's own tiles if no size is given."""
        aligned = open_aligned_grid(cube_path)
        described: Any = aligned.attrs["grid"]
        grid, own = Grid.from_dict(described), int(aligned.attrs["tile"])
        positions, moves = positions_of(aligned, grid), moving.open()
        return cls(aligned, positions, grid, tile_size or own, levels, mask, moves, numbers)

    @property
    def n_area(self) -> int:
        """Number of areas of all levels."""
        return int(self.starts[-1])

    def numbered(self) -> list[tuple[Level, slice]]:
        """Return each level with the numbers of its areas."""
        ends = zip(self.starts, self.starts[1:], strict=False)
        of_levels = zip(self.levels, ends, strict=True)
        return [(level, slice(int(first), int(end))) for level, (first, end) in of_levels]

    def read(self, tile: Tile, known: np.ndarray | None = None) -> TilePixels | None:
        """Read the pixels of a tile that have all covariates; None where there is none.

        Parameters
        ----------
        tile : Tile
        known : (n_row, n_col) bool array, optional
            Those that are mapped, where an earlier pass has found them.
        """
        rows, cols = tile.slices
        covered = read_part(self._aligned, "coverage", rows, cols).astype(np.float64)
        if known is None:
            known = covered > 0 if self._mask == "areas" else np.ones(tile.shape, dtype=bool)
        if not known.any():
            return None
        x = read_part(self._aligned, "covariates", slice(None), rows, cols)
        known = known & np.isfinite(x).all(axis=0)
        x, others = x[:, known], list[np.ndarray]()
        if self._moving is not None:
            own, people = self._moving.read(rows, cols, known)
            there = np.isfinite(own).all(axis=0)
            instead = self._moving.alternatives(rows, cols, known, own)
            others = [each[:, there] for each in instead]
            known[known] = there
            x = np.concatenate([x, own])
            if not there.all():
                x, people = x[:, there], people[there[: people.size]]
        if not known.any():
            return None
        row, col = np.nonzero(known)
        if self._moving is None or not self._moving.has_population:
            people = known_people(read_part(self._aligned, "population", rows, cols)[known])
        overlap = np.zeros(row.size)
        if "overlap" in self._aligned:  # not on a grid of an earlier version
            part = read_part(self._aligned, "overlap", rows, cols)[known]
            overlap = np.nan_to_num(part.astype(np.float64))
        return TilePixels(
            tile=tile,
            row=row,
            col=col,
            x=x,
            coords=self._positions.km(tile.row + row, tile.col + col),
            people=people,
            covered=covered[known],
            overlap=overlap,
            number=self._number(tile, row, col),
            others=tuple(others),
        )

    def _number(self, tile: Tile, row: np.ndarray, col: np.ndarray) -> np.ndarray | None:
        """Return the number of the area that covers most of each pixel; None if not asked for."""
        if self._numbers is None:
            return None
        (level, index) = self.levels[0], self._index[0]
        assert level.members is not None
        assert index is not None
        here = index.inside(tile)
        own_row, own_col = np.divmod(level.members.pixel[here].astype(np.int64), self.grid.shape[1])
        place = (own_row - tile.row) * tile.n_col + (own_col - tile.col)
        bag = np.searchsorted(level.members.offsets, here, side="right") - 1
        # The largest share is written last.
        order = np.argsort(level.members.fraction[here], kind="stable")
        found = np.full(tile.n_row * tile.n_col, -1, np.int64)
        found[place[order]] = self._numbers[bag[order]]
        return found[row * tile.n_col + col]

    def with_areas(self, pixels: TilePixels) -> TilePixels:
        """Return the pixels with the areas of all levels."""
        tile = pixels.tile
        at = np.full(tile.n_row * tile.n_col, -1, np.int64)  # among the pixels
        at[pixels.row * tile.n_col + pixels.col] = np.arange(pixels.n_pix)
        areas, places, shares = [], [], []
        for level, index, start in zip(self.levels, self._index, self.starts, strict=False):
            if level.members is None or index is None:
                places.append(np.arange(pixels.n_pix))
                areas.append(np.full(pixels.n_pix, start))
                shares.append(pixels.covered)
                continue
            here = index.inside(tile)
            row, col = np.divmod(level.members.pixel[here].astype(np.int64), self.grid.shape[1])
            place = at[(row - tile.row) * tile.n_col + (col - tile.col)]
            bag = np.searchsorted(level.members.offsets, here, side="right") - 1
            kept = place >= 0
            places.append(place[kept])
            areas.append(start + bag[kept])
            shares.append(level.members.fraction[here][kept].astype(np.float64))
        area, local = np.unique(np.concatenate(areas), return_inverse=True)
        shape = (area.size, pixels.n_pix)
        fraction = csr_matrix(
            (np.concatenate(shares), (local, np.concatenate(places))), shape=shape
        )
        return replace(pixels, area=area, fraction=fraction)
