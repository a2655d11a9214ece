"""What an object store tells of an object."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class ObjectInfo:
    """An object: size in bytes, ETag (changes with the content), and time of writing."""

    size: int
    tag: str
    written: datetime | None


def object_info(found: dict[str, Any]) -> ObjectInfo:
    """Read the entry of a listing, whichever store wrote it."""
    written = found.get("LastModified") or found.get("updated") or found.get("created")
    tag = str(found.get("ETag") or found.get("etag") or written or "")
    return ObjectInfo(
        int(found["size"]), tag.strip('"'), written if isinstance(written, datetime) else None
    )
