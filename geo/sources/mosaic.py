"""Rasters on one lattice as one: tiles of a folder, or the assets of STAC items."""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from affine import Affine
from pyproj import CRS

from geo.core.errors import InputError, Problem, name_first
from geo.grids.grid import Tile
from geo.sources.gdal_paths import file_of
from geo.sources.raster_header import BandChoice, RasterHeader
from geo.sources.source import Band, Description, Source, of_time

SAME = 1e-3  # of a pixel: transforms are often rounded
N_NAMED = 3
_PATTERN = re.compile(r"[*?[]")


@dataclass(frozen=True)
class Piece:
    """A raster of a mosaic, which is opened when one of its pixels is read.

    Attributes
    ----------
    path : str
        For messages.
    crs : CRS or None
    transform : affine.Affine
    shape : tuple of int
    open : callable
        Returns the source; can be pickled.
    time : str
        ISO text; "" for none.
    """

    path: str
    crs: CRS | None
    transform: Affine
    shape: tuple[int, int]
    open: Callable[[], Source]
    time: str = ""


class MosaicSource(Source):
    """Pieces of one CRS, one pixel size and one lattice, by time.

    Where pieces of a time overlap, the first that has a value at a pixel gives it. A piece is
    opened once, when a window meets it.

    Parameters
    ----------
    path : str
        For messages.
    pieces : sequence of Piece
        At least one.
    time : str, optional
        Of the pieces to read, or its beginning.

    Raises
    ------
    InputError
        If CRS, pixel size or lattice of some differ.
    """

    def __init__(self, path: str, pieces: Sequence[Piece], time: str | None = None) -> None:
        self.path = path
        times = sorted({each.time for each in pieces})
        bands = of_time(path, [Band(k, "", each) for k, each in enumerate(times, 1)], time)
        wanted = {each.time for each in bands}
        self._pieces = [each for each in pieces if each.time in wanted]
        first = self._pieces[0]
        corners = [_placed(path, first, each) for each in self._pieces]
        top, left = (min(each[axis] for each in corners) for axis in (0, 1))
        shapes = [each.shape for each in self._pieces]
        ends = [(r + m, c + n) for (r, c), (m, n) in zip(corners, shapes, strict=True)]
        self._at = [(row - top, col - left) for row, col in corners]
        self._open: dict[int, Source] = {}
        about = self._source(0).describe()
        self._about = Description(
            first.crs,
            first.transform @ Affine.translation(left, top),
            (max(end[0] for end in ends) - top, max(end[1] for end in ends) - left),
            bands=tuple(bands),
            unit=about.unit,
            description=about.description,
            trouble=about.trouble,
            climatology=about.climatology,
        )

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Return the values of a window: see :meth:`geo.sources.source.Source.read`."""
        tile, when = window or Tile(0, 0, *self.shape), self.band_of(time).time
        found = np.full(tile.shape, np.nan)
        for k in self._met(tile, when):
            row, col = self._at[k]
            n_row, n_col = self._pieces[k].shape
            top, left = max(tile.row, row), max(tile.col, col)
            bottom = min(tile.row + tile.n_row, row + n_row)
            right = min(tile.col + tile.n_col, col + n_col)
            into = found[top - tile.row : bottom - tile.row, left - tile.col : right - tile.col]
            gaps = np.isnan(into)
            if gaps.any():
                part = Tile(top - row, left - col, bottom - top, right - left)
                into[gaps] = self._source(k).read(part)[gaps]
        return found

    def unwritten(self, window: Tile) -> float | None:
        """Return NaN where no piece is."""
        met = any(self._met(window, each.time) for each in self._about.bands)
        return None if met else math.nan

    def damage(self) -> str:
        """Return the damage of the first of the pieces that are open, "" if there is none."""
        return next((said for each in self._open.values() if (said := each.damage())), "")

    def close(self) -> None:
        """Close this thread's handles."""
        for each in self._open.values():
            each.close()

    def _met(self, tile: Tile, time: str) -> list[int]:
        """Return the numbers of the pieces of a time that a window meets."""
        return [
            k
            for k, (piece, (row, col)) in enumerate(zip(self._pieces, self._at, strict=True))
            if piece.time == time
            and row < tile.row + tile.n_row
            and tile.row < row + piece.shape[0]
            and col < tile.col + tile.n_col
            and tile.col < col + piece.shape[1]
        ]

    def _source(self, k: int) -> Source:
        if k not in self._open:
            piece, source = self._pieces[k], self._pieces[k].open()
            about = source.describe()
            if about.shape != piece.shape:
                found = f"{piece.path} has {about.shape[0]} x {about.shape[1]} pixels, not "
                found += f"{piece.shape[0]} x {piece.shape[1]} as is said of it"
                raise InputError(Problem(self.path, found, "correct proj:shape of its item"))
            self._open[k] = source
        return self._open[k]


def piece_of(source: Source, time: str = "") -> Piece:
    """Return an open source as a piece."""
    about = source.describe()
    source.band_of()
    return Piece(source.path, about.crs, about.transform, about.shape, partial(_same, source), time)


def is_pattern(path: str) -> bool:
    """Return whether a path is a pattern of local files: ``tiles/*.tif``."""
    return (
        bool(_PATTERN.search(path))
        and "://" not in path
        and file_of(path) == path
        and not os.path.exists(path)
    )


def files_of(path: str) -> list[str]:
    """Return the files of a pattern, by name; the path itself if it is none."""
    return sorted(glob.glob(path)) if is_pattern(path) else [path]


def tiles_source(
    path: str,
    reader: Callable[[str, BandChoice, RasterHeader], Source],
    choice: BandChoice,
    header: RasterHeader,
) -> Source:
    """Open the files of a pattern as one raster; InputError if there is none."""
    files = files_of(path)
    if not files:
        raise InputError(Problem(path, "no such file", "correct the pattern"))
    if len(files) == 1:
        return reader(files[0], choice, header)
    return MosaicSource(path, [piece_of(reader(each, choice, header)) for each in files])


def _same(source: Source) -> Source:
    return source


def _placed(path: str, first: Piece, piece: Piece) -> tuple[int, int]:
    """Return row and column of a piece's corner in pixels of the first one's."""
    one, other = first.transform, piece.transform
    if piece.crs != first.crs:
        names = [each.crs.name if each.crs else "no CRS" for each in (first, piece)]
        found = f"has pieces in several CRS ({first.path}: {names[0]}; {piece.path}: {names[1]})"
        raise InputError(Problem(path, found, "bring them to one (gdalwarp -t_srs), or give `crs`"))
    drift = np.abs(np.subtract(one[:2] + one[3:5], other[:2] + other[3:5])).max()
    size = max(abs(one.a), abs(one.b))
    col, row = ~one @ (other.c, other.f)
    off = max(abs(row - round(row)), abs(col - round(col)))
    if drift * max(piece.shape) > SAME * size or off > SAME:
        found = f"has pieces of different pixels ({name_first([first.path, piece.path], N_NAMED)})"
        raise InputError(Problem(path, found, "bring them to one grid (gdalwarp -tr ... -tap)"))
    return round(row), round(col)
