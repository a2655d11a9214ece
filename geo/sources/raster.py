"""Rasters that GDAL reads, by windows."""

from __future__ import annotations

import contextlib
import math
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from pyproj import CRS
from pyproj.exceptions import CRSError
from rasterio.enums import MaskFlags
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from geo.core.errors import InputError, Problem
from geo.core.stopping import stop_if_asked
from geo.core.trust import current_trust
from geo.core.web_errors import web_problem
from geo.grids.conventions import axes_trouble, degrees_by_units
from geo.grids.grid import Tile
from geo.sources.gdal_access import open_dataset
from geo.sources.gdal_paths import file_of
from geo.sources.raster_bands import chosen_bands
from geo.sources.raster_header import ANY_BAND, AS_IT_IS, BandChoice, RasterHeader
from geo.sources.source import Description, Source

#: Size of GDAL's block cache; its default is a twentieth of the machine's memory. Rasterio takes it
#: in bytes: with the 256 bytes that it had, each strip of a raster was decoded for every tile.
CACHE_BYTES = 256 * 2**20
#: Blocks whose offset in the file is checked when a raster is opened.
N_BLOCK_PROBED = 4096
#: Blocks of which it is listed whether the file stores them: 700 ns each.
N_BLOCK_LISTED = 4_000_000


class RasterSource(Source):
    """Bands of a raster: one, or one of each time.

    Thread-safe (each thread has its own handle). Can be pickled (it reopens by path).

    Parameters
    ----------
    path : str or Path
        A file, or a URL that GDAL reads (s3://, gs://, https://, /vsi...).
    choice : BandChoice, optional
        What is known of the band; by default it is the only one.
    header : RasterHeader, optional
        What replaces the header of the file.

    Raises
    ------
    InputError
        If the file cannot be opened as a raster, or no band fits, or several that differ in more
        than their times.
    """

    def __init__(
        self,
        path: str | Path,
        choice: BandChoice = ANY_BAND,
        header: RasterHeader = AS_IT_IS,
    ) -> None:
        self.path = str(path)
        self._variable = choice.variable
        self._trust = current_trust()  # of who opens it: threads and workers reopen it
        self._local = threading.local()
        with self._reading():
            src = self._open()
            bands = chosen_bands(self.path, src, choice)
            k = bands[0].number - 1  # what differs by band is the same in all of several
            nodata = src.nodatavals[k]
            self._about = Description(
                crs=_crs(src),
                transform=src.transform,
                shape=(src.height, src.width),
                dtype=src.dtypes[k],
                bands=tuple(bands),
                nodata=() if nodata is None else (nodata,),
                scale=src.scales[k],
                offset=src.offsets[k],
                unit=src.units[k] or src.tags(k + 1).get("GRIB_UNIT", "").strip("[]"),
                description=src.descriptions[k] or "",
                trouble=axes_trouble(src),
            ).declared(header, self.path)
            flags = src.mask_flag_enums[k]
            # A stored mask, not one that follows from the nodata value.
            self._masked: bool = MaskFlags.per_dataset in flags or MaskFlags.alpha in flags

    def __getstate__(self) -> dict[str, Any]:
        """Drop the open handles."""
        return {key: value for key, value in self.__dict__.items() if key != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Reopen at the first read."""
        self.__dict__.update(state)
        self._local = threading.local()

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Return the values of a window: see :meth:`geo.sources.source.Source.read`."""
        return self._values(window or Tile(0, 0, *self.shape), self.band_of(time).number)

    def coarse(self, window: Tile, shape: tuple[int, int]) -> np.ndarray:
        """Return single pixels of a window: see :meth:`geo.sources.source.Source.coarse`."""
        return self._values(window, self.band_of().number, shape)

    def _values(self, tile: Tile, band: int, shape: tuple[int, int] | None = None) -> np.ndarray:
        stop_if_asked()
        where = Window(tile.col, tile.row, tile.n_col, tile.n_row)
        with self._reading(where=f" at row {tile.row}, column {tile.col}"):
            src = self._open()
            raw = src.read(band, window=where, out_shape=shape)
            masks = src.read_masks(band, window=where, out_shape=shape) if self._masked else None
        return self._about.values(raw, None if masks is None else masks == 0)

    @property
    def _number(self) -> int:
        return self._about.bands[0].number

    def unwritten(self, window: Tile) -> float | None:
        """Return the value of a window of which a local GeoTIFF stores no block; else None.

        Sparse files store no blocks of seas and deserts. Nothing need be read, or computed, there.

        Returns
        -------
        float or None
            In the band's unit; NaN if such pixels are missing.
        """
        blocks = self._stored_blocks()
        if blocks is None or blocks[0][_blocks_of(window, blocks[1])].any():
            return None
        with self._reading():
            raw = self._open().nodatavals[self._number - 1]  # of the file, whatever is declared
        stored = np.array([0.0 if raw is None else raw]).astype(self._about.dtype)
        return float(self._about.values(stored)[0])

    def _stored_blocks(self) -> tuple[np.ndarray, tuple[int, int]] | None:
        """Return which blocks a local GeoTIFF stores, and their shape; None of other files."""
        if not hasattr(self, "_stored"):
            self._stored: tuple[np.ndarray, tuple[int, int]] | None = None
            with self._reading():
                src = self._open()
                shape = src.block_shapes[self._number - 1]
                n_high, n_wide = (math.ceil(n / m) for n, m in zip(src.shape, shape, strict=True))
                known = src.driver == "GTiff" and Path(self.path).is_file() and not self._masked
                if known and n_high * n_wide <= N_BLOCK_LISTED:
                    offsets = [
                        src.get_tag_item(f"BLOCK_OFFSET_{j}_{i}", "TIFF", bidx=self._number)
                        for i in range(n_high) for j in range(n_wide)
                    ]  # fmt: skip
                    stored = np.array([bool(each) for each in offsets]).reshape(n_high, n_wide)
                    self._stored = stored, shape
        return self._stored

    def squeezed(self) -> float | None:
        """Return the compressed share of a local file's bytes; None if nothing is compressed."""
        if not Path(self.path).is_file():
            return None
        with self._reading():
            src = self._open()
        if src.compression is None:
            return None
        raw = src.width * src.height * sum(np.dtype(kind).itemsize for kind in src.dtypes)
        return float(Path(self.path).stat().st_size / raw)

    def damage(self) -> str:
        """Return a description of a block past the end of a local GeoTIFF, "" if there is none.

        An incomplete download can be opened. Its header has the offset of each block, so that this
        check reads no values.
        """
        path = Path(self.path)
        if not path.is_file():
            return ""
        src, band = self._open(), self._about.bands[0].number
        if src.driver != "GTiff":
            return ""
        size = path.stat().st_size
        n_high, n_wide = (
            math.ceil(n / block) for n, block in zip(src.shape, src.block_shapes[0], strict=True)
        )
        step = max(1, math.ceil(n_high * n_wide / N_BLOCK_PROBED))
        last = n_high * n_wide - 1
        for block in {*range(0, last + 1, step), last}:
            i, j = divmod(block, n_wide)
            begin = src.get_tag_item(f"BLOCK_OFFSET_{j}_{i}", "TIFF", bidx=band)
            length = src.get_tag_item(f"BLOCK_SIZE_{j}_{i}", "TIFF", bidx=band)
            if begin and length and int(begin) + int(length) > size:
                return (
                    f"is truncated: block at row {i}, column {j} should end at byte "
                    f"{int(begin) + int(length)}, the file has {size}"
                )
        return ""

    def _open(self) -> Any:
        if getattr(self._local, "dataset", None) is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotGeoreferencedWarning)
                self._local.dataset = open_dataset(self.path, self._trust, self._variable)
        return self._local.dataset

    def close(self) -> None:
        """Close this thread's handle; the next read opens it anew."""
        dataset = getattr(self._local, "dataset", None)
        if dataset is not None:
            dataset.close()
            self._local.dataset = None

    @contextlib.contextmanager
    def _reading(self, where: str = "") -> Iterator[None]:
        """Convert GDAL's exceptions to an InputError that names the file."""
        try:
            yield
        except (RasterioError, OSError) as error:
            self.close()
            raise InputError(_unreadable(self.path, error, where)) from error


@contextlib.contextmanager
def bounded_cache() -> Iterator[None]:
    """Limit GDAL's block cache to :data:`CACHE_BYTES` within the context."""
    with rasterio.Env(GDAL_CACHEMAX=CACHE_BYTES):
        yield


def _unreadable(path: str, error: BaseException, where: str = "") -> Problem:
    file = file_of(path)
    if file is not None and not Path(file).exists():
        return Problem(path, "no such file", "correct the path")
    if file is not None and Path(file).is_dir():
        return Problem(path, "is a directory", "give a raster file, such as a GeoTIFF")
    cause = str(error).splitlines()[0] if str(error) else type(error).__name__
    if file is None:
        if "not recognized as being in a supported file format" in cause:
            return Problem(path, "is not a raster that GDAL can read", "give a GeoTIFF")
        return web_problem(path, cause, where)
    if "not recognized as being in a supported file format" in cause:
        return Problem(path, *_other_format(file))
    if "does not exist in the file system" in cause:
        return Problem(path, "no such member of the archive", "correct the path")
    found = f"cannot be read{where}: truncated or damaged ({cause})"
    return Problem(path, found, "copy or download the file again")


def _other_format(file: str) -> tuple[str, str]:
    with contextlib.suppress(OSError), open(file, "rb") as stream:
        head = stream.read(1024)
        if not head:
            return "is empty", "copy or download the file again"
        if head.lstrip().startswith(b"<VRTDataset"):
            return "is a VRT by another name", "name it .vrt, so that its sources are checked"
    return "is not a raster that GDAL can read", "give a GeoTIFF"


def _blocks_of(window: Tile, shape: tuple[int, int]) -> tuple[slice, slice]:
    """Return the blocks that a window touches."""
    return (
        slice(window.row // shape[0], -(-(window.row + window.n_row) // shape[0])),
        slice(window.col // shape[1], -(-(window.col + window.n_col) // shape[1])),
    )


def _crs(src: Any) -> CRS | None:
    if src.crs is None:
        return degrees_by_units(src)
    try:
        return CRS.from_user_input(src.crs)
    except CRSError:
        return None
