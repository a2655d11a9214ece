"""Write a map tile by tile as a cloud-optimised GeoTIFF (COG), atomically."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import uuid
import zlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import rasterio
import rasterio.shutil
from rasterio.enums import Resampling
from rasterio.errors import RasterioError
from rasterio.windows import Window

from geo.core.errors import GridError
from geo.grids.grid import Grid, Tile
from geo.writers.write_errors import explained_write_errors, write_error

#: Side of a block, in pixels.
BLOCK = 256
#: Size of GDAL's block cache, which is none: a block is written once. Its default is a share of the
#: machine's memory.
CACHE_BYTES = 64


@dataclass(eq=False)
class TiledWriter:
    """Writes a map tile by tile; leaving the context converts it to a COG.

    The band's tags have its exact statistics, which GIS programs then need not estimate.

    The file appears in one step once it is complete. After an exception an earlier file of that
    name is unchanged, and no other file remains. Every tile is read back before that: on a full
    disk GDAL leaves holes without an error. Memory does not depend on the size of the map.
    Thread-safe.

    Attributes
    ----------
    path : str or Path
    grid : Grid
    dtype : str
        Type of the pixels.
    nodata : float
        The value of missing pixels: NaN by default; a whole number for integers.
    description : str
        Description of the band.
    unit : str
        Unit of the band.
    tags : mapping, optional
        Metadata of the file; values become text.
    overview_resampling : str
        "average" for quantities, "nearest" or "mode" for classes.

    Raises
    ------
    GridError
        If a tile lies outside the grid or its array has another shape.
    OSError
        If the file cannot be written, with the system's reason.
    """

    path: Path
    grid: Grid
    dtype: str = field(default="float32", kw_only=True)
    nodata: float = field(default=math.nan, kw_only=True)
    description: str = field(default="", kw_only=True)
    unit: str = field(default="", kw_only=True)
    tags: Mapping[str, object] = field(default_factory=dict, kw_only=True)
    overview_resampling: str = field(default="average", kw_only=True)

    def __post_init__(self) -> None:
        """Check the arguments."""
        self.path = Path(self.path)
        if self._dtype.kind != "f" and not float(self.nodata).is_integer():
            msg = f"nodata {self.nodata} cannot be stored as {self.dtype}; give a whole number"
            raise GridError(msg)
        self._overviews = Resampling[self.overview_resampling].name
        self._lock = threading.Lock()
        self._dataset: Any = None
        self._sums: dict[tuple[int, int, int, int], int] = {}  # CRC-32 by window
        self._moments: dict[tuple[int, int, int, int], Moments] = {}
        mark = uuid.uuid4().hex[:8]
        self._draft = self.path.with_name(f".{self.path.name}.{mark}.draft.tif")
        self._done = self.path.with_name(f".{self.path.name}.{mark}.cog.tif")

    @property
    def _dtype(self) -> np.dtype:
        return np.dtype(self.dtype)

    def __enter__(self) -> TiledWriter:
        """Create the draft."""
        with self._explained():
            self._create()
        return self

    def _create(self) -> None:
        n_row, n_col = self.grid.shape
        self._dataset = rasterio.open(
            self._draft,
            "w",
            driver="GTiff",
            height=n_row,
            width=n_col,
            count=1,
            dtype=self._dtype.name,
            crs=rasterio.crs.CRS.from_wkt(self.grid.crs.to_wkt()),
            transform=self.grid.transform,
            nodata=self.nodata,
            tiled=True,
            blockxsize=BLOCK,
            blockysize=BLOCK,
            # Blocks without data stay nodata and take no space.
            SPARSE_OK="TRUE",
            BIGTIFF="IF_SAFER",
        )

    def _explained(self) -> AbstractContextManager[None]:
        return explained_write_errors(self.path, (self._draft, self._done))

    def write(self, tile: Tile, values: np.ndarray) -> None:
        """Write a tile; values that are not finite become nodata.

        Parameters
        ----------
        tile : Tile
        values : (n_row, n_col) array
            In the band's unit.
        """
        values = np.asarray(values)
        inside = tile.row >= 0 and tile.col >= 0
        inside &= tile.row + tile.n_row <= self.grid.shape[0]
        inside &= tile.col + tile.n_col <= self.grid.shape[1]
        if not inside or values.shape != tile.shape:
            msg = (
                f"{self.path}: {tile} with an array of shape {values.shape} on a grid of "
                f"{self.grid.shape}; give an array of the tile's shape inside the grid"
            )
            raise GridError(msg)
        if values.dtype.kind == "f":
            values = np.where(np.isfinite(values), values, self.nodata)
        with np.errstate(over="ignore"):
            stored = values.astype(self._dtype)
        if self._dtype.kind == "f":
            stored[np.isinf(stored)] = self.nodata  # too large for the type
        window = (tile.col, tile.row, *stored.shape[::-1])
        with self._lock, rasterio.Env(GDAL_CACHEMAX=CACHE_BYTES), self._explained():
            self._dataset.write(stored, 1, window=Window(*window))
            self._sums[window] = zlib.crc32(stored.tobytes())
            self._moments[window] = Moments.of(stored, self.nodata)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Convert the draft to a COG under the final name; after an exception, remove both."""
        try:
            if error is None:
                with self._explained():
                    self._dataset.update_tags(**{str(k): str(v) for k, v in self.tags.items()})
                    self._dataset.set_band_description(1, self.description)
                    self._dataset.set_band_unit(1, self.unit)
                    self._dataset.update_tags(1, **self._statistics())
            self._close()
            if error is None:
                with self._explained():
                    self._translate()
                    self._read_back()
                os.replace(self._done, self.path)
        finally:
            for path in (self._draft, self._done):
                for leftover in (path, Path(f"{path}.aux.xml"), Path(f"{path}.ovr.tmp")):
                    with contextlib.suppress(FileNotFoundError):
                        leftover.unlink()

    def _statistics(self) -> dict[str, str]:
        """Return the band's statistics as GDAL names them; none without a valid pixel."""
        # In the order of the map, so that threads change nothing.
        parts = (self._moments[window] for window in sorted(self._moments))
        return Moments.merged(parts).tags(self.grid.n_pix)

    def _close(self) -> None:
        # GDAL may fail to flush its cache and only log it: _read_back finds that.
        with rasterio.Env(), contextlib.suppress(RasterioError):
            self._dataset.close()

    def _read_back(self) -> None:
        """Compare the checksum of every tile, and sync the file to disk; OSError if one differs."""
        with rasterio.Env(GDAL_CACHEMAX=CACHE_BYTES), rasterio.open(self._done) as source:
            for window, expected in self._sums.items():
                found = source.read(1, window=Window(*window))
                if zlib.crc32(found.tobytes()) != expected:
                    raise write_error(self.path, (self._draft, self._done))
        descriptor = os.open(self._done, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _translate(self) -> None:
        """Copy with GDAL's COG driver, which reads by blocks and copies unit and description.

        rio-cogeo's translation drops the unit and writes the file twice; the tests validate with
        it.
        """
        with rasterio.Env(GDAL_NUM_THREADS="1", GDAL_PAM_ENABLED="NO", GDAL_CACHEMAX=CACHE_BYTES):
            rasterio.shutil.copy(
                self._draft,
                self._done,
                driver="COG",
                compress="DEFLATE",
                predictor="FLOATING_POINT" if self._dtype.kind == "f" else "STANDARD",
                blocksize=BLOCK,
                overview_resampling=self._overviews,
                bigtiff="IF_SAFER",
            )


@dataclass(frozen=True)
class Moments:
    """Number, extremes, mean and sum of squared deviations of some values.

    Attributes
    ----------
    n : int
    low, high, mean, squares : float
        In the unit of the values; NaN if there are none, and ``squares`` in its square.
    """

    n: int = 0
    low: float = math.nan
    high: float = math.nan
    mean: float = math.nan
    squares: float = math.nan

    @classmethod
    def of(cls, values: np.ndarray, nodata: float = math.nan) -> Moments:
        """Return the moments of values that are neither NaN nor ``nodata``, in float64."""
        known = values[~np.isnan(values)] if math.isnan(nodata) else values[values != nodata]
        if known.size == 0:
            return cls()
        exact = known.astype(np.float64)
        mean = float(exact.mean())
        squares = float(((exact - mean) ** 2).sum())
        return cls(exact.size, float(exact.min()), float(exact.max()), mean, squares)

    @classmethod
    def merged(cls, parts: Iterable[Moments]) -> Moments:
        """Return the moments of disjoint parts (Chan, Golub & LeVeque 1983, eq. 2.1)."""
        known = [part for part in parts if part.n]
        if not known:
            return cls()
        n = sum(part.n for part in known)
        shift = known[0].mean
        mean = shift + sum(part.n * (part.mean - shift) for part in known) / n
        squares = sum(part.squares + part.n * (part.mean - mean) ** 2 for part in known)
        low, high = min(part.low for part in known), max(part.high for part in known)
        return cls(n, low, high, mean, squares)

    def tags(self, n_pix: int) -> dict[str, str]:
        """Return them as GDAL names them, for a raster of ``n_pix`` pixels; none without values."""
        if not self.n:
            return {}
        found = {
            "MINIMUM": self.low,
            "MAXIMUM": self.high,
            "MEAN": self.mean,
            "STDDEV": math.sqrt(self.squares / self.n),
            "VALID_PERCENT": 100 * self.n / n_pix,
        }
        return {f"STATISTICS_{name}": f"{value:.17g}" for name, value in found.items()}
