"""Where the header and the blocks of a GeoTIFF lie in its file.

GDAL can open a file of which only these bytes are there. TIFF 6.0, and BigTIFF.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from geo.grids.grid import Tile

#: Returns the bytes from a first up to, not including, a last one.
Read = Callable[[int, int], bytes]

_HEADS = {b"II*\0": "<", b"MM\0*": ">", b"II+\0": "<", b"MM\0+": ">"}
_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4,
               16: 8, 17: 8, 18: 8}  # fmt: skip
_INTEGERS = {1: "u1", 3: "u2", 4: "u4", 16: "u8"}
_KIND, _WIDTH, _HEIGHT, _COMPRESSION, _SAMPLES, _ROWS, _PLANAR = 254, 256, 257, 259, 277, 278, 284
_STRIPS, _STRIP_BYTES, _TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_BYTES = 273, 279, 322, 323, 324, 325
# Their values are offsets of further structures, which a reader may follow.
_POINTERS = frozenset((330, 34665, 34853, 40965))
# None, LZW, Deflate (twice), PackBits, LERC, LZMA, Zstandard, WebP: a block is read alone. To open
# one with JPEG, a reader looks at the first block.
_COMPRESSIONS = frozenset((1, 5, 8, 32946, 32773, 34887, 34925, 50000, 50001))
_REDUCED, _MASK = 1, 4  # bits of _KIND
_AROUND = 4  # bytes before and after a block of a cloud-optimised GeoTIFF repeat its length or end
N_IMAGE_MAX, N_TAG_MAX, HEADER_BYTES_MAX = 512, 4096, 1 << 26


@dataclass(frozen=True)
class _Image:
    shape: tuple[int, int]
    block: tuple[int, int]
    separate: bool  # each band has blocks of its own
    begin: np.ndarray
    length: np.ndarray

    def spans(self, window: Tile, band: int) -> np.ndarray:
        """Return first byte and end of the blocks that a window meets."""
        high, wide = self.block
        row = np.arange(window.row // high, -(-(window.row + window.n_row) // high))
        col = np.arange(window.col // wide, -(-(window.col + window.n_col) // wide))
        n_down, n_across = (-(-n // b) for n, b in zip(self.shape, self.block, strict=True))
        index = (row[:, None] * n_across + col[None, :]).ravel()
        index = index + self.separate * (band - 1) * n_down * n_across
        begin, length = self.begin[index], self.length[index]
        begin, length = begin[length > 0], length[length > 0]  # others are empty
        return np.column_stack([begin - _AROUND, begin + length + _AROUND])


@dataclass(frozen=True)
class TiffBlocks:
    """The blocks of a GeoTIFF, of its full resolution and its mask.

    Attributes
    ----------
    shape : tuple of int
        Rows, columns.
    block : tuple of int
        Rows and columns of a block.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    _images: tuple[_Image, ...]

    def spans(self, window: Tile, band: int = 1) -> np.ndarray:
        """Return where the pixels of a window are.

        Parameters
        ----------
        window : Tile
            Inside the raster.
        band : int, optional
            From 1.

        Returns
        -------
        (n, 2) int64 array
            First byte and end of each piece of the file.
        """
        main, *masks = self._images
        return np.concatenate([main.spans(window, band), *(m.spans(window, 1) for m in masks)])


def tiff_blocks(read: Read, size: int) -> TiffBlocks | None:
    """Read all that opening a GeoTIFF reads, and return where its blocks lie.

    Parameters
    ----------
    read : callable
        Of the file's bytes.
    size : int
        Bytes of the file.

    Returns
    -------
    TiffBlocks or None
        None for another format, a damaged file, and what readers look for in further places.
    """
    try:
        images = _images(_Bounded(read, size))
    except (_OddError, struct.error, KeyError, ValueError, OverflowError):
        return None
    return TiffBlocks(images[0].shape, images[0].block, images)


class _OddError(Exception):
    """Not a GeoTIFF that can be read by windows."""


@dataclass
class _Bounded:
    """Reads within a file, and no more than a header may have."""

    read: Read
    size: int
    n_byte: int = 0

    def __call__(self, start: int, n_byte: int) -> bytes:
        self.n_byte += n_byte
        if start < 0 or start + n_byte > self.size or self.n_byte > HEADER_BYTES_MAX:
            raise _OddError
        return self.read(start, start + n_byte)


def _images(read: _Bounded) -> tuple[_Image, ...]:
    head = read(0, 16)
    order = _HEADS[head[:4]]
    big = b"+" in head[:4]
    (at,) = struct.unpack_from(f"{order}Q", head, 8) if big else struct.unpack_from(
        f"{order}I", head, 4
    )  # fmt: skip
    found: list[_Image] = []
    seen: set[int] = set()
    while at:
        if at in seen or len(seen) >= N_IMAGE_MAX:
            raise _OddError
        seen.add(at)
        tags, at = _directory(read, at, order, big)
        kind = int(tags.get(_KIND, np.zeros(1, np.int64))[0])
        if not found or (kind & _MASK and not kind & _REDUCED):
            image = _image(tags)
            if found and image.shape != found[0].shape:
                raise _OddError
            found.append(image)
    if not found:
        raise _OddError
    return tuple(found)


def _directory(read: _Bounded, at: int, order: str, big: bool) -> tuple[dict[int, np.ndarray], int]:
    """Read a directory and everything that it refers to; return integers by tag, and the next."""
    count, entry, where = ("Q", "HHQ", "Q") if big else ("H", "HHI", "I")
    n_count, n_entry, n_where = (struct.calcsize(f"<{form}") for form in (count, entry, where))
    (n_tag,) = struct.unpack(order + count, read(at, n_count))
    if n_tag > N_TAG_MAX:
        raise _OddError
    text = read(at + n_count, n_tag * (n_entry + n_where) + n_where)
    tags: dict[int, np.ndarray] = {}
    for k in range(n_tag):
        start = k * (n_entry + n_where)
        tag, kind, n = struct.unpack_from(order + entry, text, start)
        if tag in _POINTERS:
            raise _OddError
        n_byte = n * _TYPE_BYTES[kind]
        value = text[start + n_entry : start + n_entry + n_where]
        if n_byte > n_where:
            value = read(struct.unpack(order + where, value)[0], n_byte)
        if kind in _INTEGERS and n:
            numbers = np.frombuffer(value[:n_byte], order + _INTEGERS[kind])
            tags[tag] = numbers.astype(np.int64)
    (after,) = struct.unpack_from(order + where, text, n_tag * (n_entry + n_where))
    return tags, after


def _image(tags: dict[int, np.ndarray]) -> _Image:
    width, height = int(tags[_WIDTH][0]), int(tags[_HEIGHT][0])
    one = np.ones(1, np.int64)
    if int(tags.get(_COMPRESSION, one)[0]) not in _COMPRESSIONS:
        raise _OddError
    if _TILES in tags:
        block = int(tags[_TILE_HEIGHT][0]), int(tags[_TILE_WIDTH][0])
        begin, length = tags[_TILES], tags[_TILE_BYTES]
    else:
        block = min(int(tags.get(_ROWS, height * one)[0]), height), width
        begin, length = tags[_STRIPS], tags[_STRIP_BYTES]
    separate = int(tags.get(_PLANAR, one)[0]) == 2
    n_plane = int(tags.get(_SAMPLES, one)[0]) if separate else 1
    if min(width, height, *block, n_plane) < 1:
        raise _OddError
    n_block = math.ceil(height / block[0]) * math.ceil(width / block[1]) * n_plane
    if begin.size != n_block or length.size != n_block:
        raise _OddError
    return _Image((height, width), block, separate, begin, length)
