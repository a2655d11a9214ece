"""Copies of Zarr stores at addresses that have the chunks that were asked for.

A copy is of one state of the store: what its server says of its metadata, or, of an object store,
the tags of all objects. A chunk that is read is fetched once, and one that is not there is marked.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from geo.sources.cube import Cube, open_cube
from geo.sources.raster_header import BandChoice, RasterHeader
from geo.sources.registry import SOURCES
from geo.sources.zarr_raw import ReadStore
from pipeline.storage.files import atomic_write, text_digest, write_text
from pipeline.storage.location import Location, Storage, is_object_address
from pipeline.storage.web_state import web_bytes, web_said
from pipeline.storage.windows import state_path

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

SUFFIX = ".zarr"
#: Documents that tell of all arrays of a store: they are written last.
_WHOLE = ("zarr.json", ".zmetadata")
_ABSENT = ".absent"


@dataclass(frozen=True)
class RemoteStore:
    """A Zarr store at an address.

    Attributes
    ----------
    url : str
    storage : Storage
    """

    url: str
    storage: Storage

    def read(self, key: str) -> bytes | None:
        """Return the bytes of a key, None if there is none."""
        if is_object_address(self.url):
            try:
                return (Location(self.url, self.storage) / key).read()
            except FileNotFoundError:
                return None
        return web_bytes(self._of(key), self.storage)

    def state(self) -> str | None:
        """Return a text that changes with the content, None if there is no store."""
        if is_object_address(self.url):
            found = Location(self.url, self.storage).list()
            tags = "".join(f"{key} {each.size} {each.tag} " for key, each in sorted(found.items()))
            return f"objects {text_digest(tags)}" if found else None
        for key in _WHOLE:
            said = web_said(self._of(key), self.storage)
            if said is not None:
                # A server that tells no state: the document itself.
                return said[0] or text_digest(str(web_bytes(self._of(key), self.storage)))
        return None

    def _of(self, key: str) -> str:
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{key}"))


class CopiedStore(ReadStore):
    """A local directory whose missing keys are fetched.

    Parameters
    ----------
    root : Path
    remote : RemoteStore
    """

    def __init__(self, root: Path, remote: RemoteStore) -> None:
        super().__init__(root)
        self._remote = remote

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """See `zarr.abc.store.Store`."""
        await asyncio.to_thread(self._require, key)
        return await super().get(key, prototype, byte_range)

    async def exists(self, key: str) -> bool:
        """See `zarr.abc.store.Store`."""
        await asyncio.to_thread(self._require, key)
        return await super().exists(key)

    def _require(self, key: str) -> None:
        path = Path(self.root) / key
        absent = path.with_name(f".{path.name}{_ABSENT}")
        with _LOCKS[str(path)]:
            if path.exists() or absent.exists():
                return
            data = self._remote.read(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(absent if data is None else path, unique=True) as file:
                file.write(data or b"")


class ChunkedCube(Cube):
    """A cube of which the chunks that are read are fetched."""

    def __init__(self, path: str | Path, choice: BandChoice, header: RasterHeader) -> None:
        self._remote = _REMOTES[str(path)]
        super().__init__(path, choice, header)

    def _opened(self) -> Any:
        return open_cube(self.path, CopiedStore(Path(self.path), self._remote))


def begin_store(path: Path, state: str) -> None:
    """Make the directory of a copy, and say beside it of which state it is."""
    path.mkdir(parents=True)
    write_text(state_path(path), state)


def open_store(path: Path, remote: RemoteStore) -> Path:
    """Read cubes at a path from a copy that was begun; return the path."""
    _REMOTES[str(path)] = remote
    SOURCES.register(ChunkedCube, str(path))  # the longest suffix of a name: all of it
    return path


_REMOTES: dict[str, RemoteStore] = {}
_LOCKS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
