"""Zarr stores on object stores, with the retries and errors of `Location`."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)

from pipeline.storage.location import Location

if TYPE_CHECKING:
    from zarr.core.buffer import Buffer, BufferPrototype


# If one of several chunks fails, zarr drops the coroutines of the others and raises the error.
# Python's warning about the dropped coroutines would only be noise.
UNAWAITED = r"coroutine '(set_or_delete|StorePath\.\w+)' was never awaited"
warnings.filterwarnings("ignore", UNAWAITED, RuntimeWarning)


class ObjectStore(Store):
    """A Zarr store of the objects under a prefix.

    Unlike zarr's ``FsspecStore``, it retries, and raises for a chunk that cannot be read instead
    of treating it as missing.

    Parameters
    ----------
    place : Location
    read_only : bool
    """

    supports_writes = True
    supports_deletes = True
    supports_listing = True

    def __init__(self, place: Location, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.place = place

    def with_read_only(self, read_only: bool = False) -> ObjectStore:
        """Return the same store, read-only or writable."""
        return ObjectStore(self.place, read_only=read_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStore) and other.place == self.place

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return self.place.url

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """See `zarr.abc.store.Store`."""
        start, stop = None, None
        if isinstance(byte_range, RangeByteRequest):
            start, stop = byte_range.start, byte_range.end
        elif isinstance(byte_range, OffsetByteRequest):
            start = byte_range.offset
        elif isinstance(byte_range, SuffixByteRequest):
            start = -byte_range.suffix
        try:
            data = await asyncio.to_thread((self.place / key).read, start, stop)
        except FileNotFoundError:
            return None
        return prototype.buffer.from_bytes(data)

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """See `zarr.abc.store.Store`."""
        wanted = (self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
        return list(await asyncio.gather(*wanted))

    async def exists(self, key: str) -> bool:
        """See `zarr.abc.store.Store`."""
        return await asyncio.to_thread((self.place / key).info) is not None

    async def set(self, key: str, value: Buffer) -> None:
        """See `zarr.abc.store.Store`."""
        self._check_writable()
        await asyncio.to_thread((self.place / key).write, value.to_bytes())

    async def delete(self, key: str) -> None:
        """See `zarr.abc.store.Store`."""
        self._check_writable()
        await asyncio.to_thread(self.place.remove, [key])

    async def list(self) -> AsyncIterator[str]:
        """See `zarr.abc.store.Store`."""
        for name in await asyncio.to_thread(self.place.list):
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """See `zarr.abc.store.Store`."""
        async for name in self.list():
            if name.startswith(prefix):
                yield name

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """See `zarr.abc.store.Store`."""
        head = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        seen = set()
        async for name in self.list_prefix(head):
            first = name[len(head) :].split("/", 1)[0]
            if first not in seen:
                seen.add(first)
                yield first
