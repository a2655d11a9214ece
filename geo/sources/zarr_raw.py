"""Zarr stores of version 3 whose arrays name no codecs, as GDAL 3.10 writes them.

The specification asks for at least one, so that zarr-python lists no such array. Without one the
numbers are as they are, the low byte first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zarr.storage import LocalStore

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

_METADATA = "zarr.json"
_RAW = [{"name": "bytes", "configuration": {"endian": "little"}}]


class ReadStore(LocalStore):
    """A store on this machine that is read alone."""

    def __init__(self, root: str | Path) -> None:
        super().__init__(root, read_only=True)

    def with_read_only(self, read_only: bool = False) -> Self:
        """Return the same store."""
        del read_only
        return self


class RawStore(ReadStore):
    """Such a store, whose arrays that name no codecs hold their numbers as they are."""

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """See `zarr.abc.store.Store`."""
        found = await super().get(key, prototype, byte_range)
        if found is None or not key.endswith(_METADATA):
            return found
        metadata = json.loads(found.to_bytes())
        if not _is_raw(metadata):
            return found
        return type(found).from_bytes(json.dumps(metadata | {"codecs": _RAW}).encode())


def raw_store(path: str | Path) -> RawStore | None:
    """Return a store on this machine as such, if an array directly in it names no codecs."""
    for file in Path(path).glob(f"*/{_METADATA}"):
        try:
            if _is_raw(json.loads(file.read_bytes())):
                return RawStore(path)
        except (OSError, ValueError):
            continue
    return None


def _is_raw(metadata: Any) -> bool:
    """Return whether metadata are those of an array without codecs."""
    known = isinstance(metadata, dict) and metadata.get("node_type") == "array"
    return known and "codecs" not in metadata
