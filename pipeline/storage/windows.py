"""Copies of GeoTIFFs at addresses that have the header and the blocks that were asked for.

The file has its full length from the start, and holes (which take no space) for what is still at
its address. Every reader of it must ask first: a hole reads as zeros.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from geo.core.stopping import stop_if_asked
from geo.grids.grid import Tile
from geo.sources.raster import RasterSource
from geo.sources.raster_header import BandChoice, RasterHeader
from geo.sources.registry import SOURCES
from geo.sources.source import Source
from geo.sources.tiff_blocks import TiffBlocks, tiff_blocks
from pipeline.storage.files import atomic_write, write_text
from pipeline.storage.location import Location, Storage, is_object_address
from pipeline.storage.web_state import web_part

#: A smaller file is copied whole: its parts would be about as many requests.
WHOLE_BYTES = 1 << 20
#: Of a file's first request: most headers end within it.
HEAD_BYTES = 1 << 16
_PAGE = 4096  # bytes that are present or absent together
_GAP = 16  # pages between two parts that are fetched with them rather than by a second request
_PART = 4096  # pages of one request


@dataclass(frozen=True)
class RemoteFile:
    """A file at an address, in one state.

    Attributes
    ----------
    url : str
    size : int
        Bytes.
    state : str
        ETag of an object; of http(s), see :func:`pipeline.storage.web_state.web_state`.
    storage : Storage
    """

    url: str
    size: int
    state: str
    storage: Storage

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes; StorageError if the state is another one by now."""
        if is_object_address(self.url):
            return Location(self.url, self.storage).read_of(self.state, start, stop)
        return web_part(self.url, start, stop, self.state, self.storage)


class WindowCopy:
    """A local copy of a GeoTIFF, of which parts are present.

    Parameters
    ----------
    path : Path
        The file; beside it lies a table of the pages that are present. See :func:`begin`.
    remote : RemoteFile
        Where the rest is.

    Attributes
    ----------
    blocks : TiffBlocks or None
        None for a file that is read whole.
    """

    def __init__(self, path: Path, remote: RemoteFile) -> None:
        self.path, self.remote = path, remote
        self._there = np.memmap(_pages_path(path), np.uint8, "r+")
        self._inode = _pages_path(path).stat().st_ino
        self._busy = np.zeros(self._there.size, bool)  # on their way to another thread
        self._turn = threading.Condition()
        self.blocks: TiffBlocks | None = tiff_blocks(self._read, remote.size)
        if self.blocks is None:
            self._fetch(self._pages([(0, remote.size)]))

    def is_there(self) -> bool:
        """Return whether the file is still the one that was opened."""
        return _pages_path(self.path).stat().st_ino == self._inode

    def require(self, window: Tile, band: int) -> None:
        """Fetch what is missing of a window.

        Raises
        ------
        StorageError
            If the file cannot be reached, or has changed.
        """
        self._fetch(self._pages_of([window], band))

    def n_bytes(self, read: Iterable[tuple[Iterable[Tile], int]]) -> tuple[int, int]:
        """Return the bytes of the copy once windows of bands are present, and the missing ones."""
        wanted = np.zeros(self._there.size, bool)
        for windows, band in read:
            wanted[self._pages_of(windows, band)] = True
        there = self._there > 0
        return _PAGE * int((wanted | there).sum()), _PAGE * int((wanted & ~there).sum())

    def _pages_of(self, windows: Iterable[Tile], band: int) -> np.ndarray:
        if self.blocks is None:
            return np.zeros(0, np.int64)
        parts = [self.blocks.spans(window, band) for window in windows]
        return self._pages(np.concatenate([np.empty((0, 2), np.int64), *parts]).tolist())

    def _pages(self, spans: Iterable[tuple[int, int]]) -> np.ndarray:
        last = self._there.size
        parts = [
            np.arange(max(start // _PAGE, 0), min(-(-stop // _PAGE), last)) for start, stop in spans
        ]
        return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))

    def _read(self, start: int, stop: int) -> bytes:
        self._fetch(self._pages([(start, stop)]))
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def _fetch(self, pages: np.ndarray) -> None:
        """Fetch the missing ones of some pages; each by one thread."""
        while True:
            with self._turn:
                missing = pages[self._there[pages] == 0]
                if missing.size == 0:
                    return
                mine = missing[~self._busy[missing]]
                if mine.size == 0:
                    self._turn.wait()
                    continue
                self._busy[mine] = True
            try:
                self._copy(mine)
            finally:
                with self._turn:
                    self._busy[mine] = False
                    self._turn.notify_all()

    def _copy(self, pages: np.ndarray) -> None:
        parts = []
        for run in np.split(pages, np.flatnonzero(np.diff(pages) > _GAP) + 1):
            first, last = int(run[0]), int(run[-1]) + 1
            parts += [(at, min(at + _PART, last)) for at in range(first, last, _PART)]
        file = os.open(self.path, os.O_WRONLY)
        try:
            for first, last in parts:
                stop_if_asked()
                start, stop = first * _PAGE, min(last * _PAGE, self.remote.size)
                os.pwrite(file, self.remote.read(start, stop), start)
            os.fdatasync(file)  # a page that is marked is on the disk
        finally:
            os.close(file)
        for first, last in parts:
            self._there[first:last] = 1


class WindowedSource(RasterSource):
    """A raster of which the windows that are read are fetched."""

    def __init__(self, path: str | Path, choice: BandChoice, header: RasterHeader) -> None:
        self._remote = _COPIES[str(path)].remote
        super().__init__(path, choice, header)

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Fetch what is missing of a window, and return its values: see `RasterSource.read`."""
        # Another process, to which this source was sent, has not opened the copy.
        copy = copy_at(self.path) or open_copy(Path(self.path), self._remote)
        copy.require(window or Tile(0, 0, *self.shape), self.band_of(time).number)
        return super().read(window, time)

    def coarse(self, window: Tile, shape: tuple[int, int]) -> np.ndarray:
        """Return single pixels of what is fetched: see `Source.coarse`."""
        return Source.coarse(self, window, shape)


def begin(path: Path, remote: RemoteFile, head: bytes) -> None:
    """Make the file of a copy with its first bytes, and the table of pages."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(remote.size)
        os.fsync(file.fileno())
    there = np.zeros(-(-remote.size // _PAGE), np.uint8)
    there[: len(head) // _PAGE] = 1
    with atomic_write(_pages_path(path)) as file:
        file.write(there.tobytes())
    write_text(state_path(path), f"{remote.state} {remote.size}")


def open_copy(path: Path, remote: RemoteFile) -> WindowCopy:
    """Open a copy that was begun; rasters at its path are fetched as they are read.

    Raises
    ------
    StorageError
        If the header cannot be read.
    """
    with _OPENING:
        copy = _COPIES.get(str(path))
        # The folder may have been removed and begun anew.
        if copy is None or copy.remote != remote or not copy.is_there():
            copy = _COPIES[str(path)] = WindowCopy(path, remote)
    SOURCES.register(WindowedSource, str(path))  # the longest suffix of a name: all of it
    return copy


def copy_at(path: str | Path) -> WindowCopy | None:
    """Return the copy that was opened at a path; None for another file."""
    return _COPIES.get(str(path))


def copied_state(path: Path) -> str | None:
    """Return the state of which a file is a copy by windows; None for a whole file."""
    try:
        return state_path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None


_COPIES: dict[str, WindowCopy] = {}
_OPENING = threading.Lock()


def _pages_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.pages")


def state_path(path: Path) -> Path:
    """Return the file that says of which state a copy is."""
    return path.with_name(f".{path.name}.state")
