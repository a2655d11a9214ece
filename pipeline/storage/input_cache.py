"""Inputs on object stores: brought here whole, once for each content, and read as local files.

Fingerprints are of contents, so that every byte is read anyway; and a local copy cannot change, or
break off, while a raster is read by windows. Copies stay in ``<scratch>/inputs``, those of earlier
contents for a week.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path

from pipeline.storage.location import (
    Location,
    ObjectInfo,
    Storage,
    StorageError,
)
from pipeline.storage.lock import SHORT_S, Lock
from pipeline.storage.object_commit import GRACE

#: Files beside a file that change what it means to a reader.
BESIDE_STEM = {
    ".shp": (".shx", ".dbf", ".prj", ".cpg"),
    ".tif": (".tfw", ".prj"),
    ".tiff": (".tfw", ".prj"),
    ".vrt": (),
}
_RASTERS = (".tif", ".tiff")
_BESIDE_RASTER = (".msk", ".aux.xml")


def local_copy(url: str, storage: Storage) -> Path | None:
    """Return a local copy of an object, with those beside it that belong to it.

    Parameters
    ----------
    url : str
        ``s3://bucket/key``.
    storage : Storage
        Its ``scratch_dir`` holds the copy.

    Returns
    -------
    Path or None
        None where there is no such object.

    Raises
    ------
    StorageError
        If the store fails.
    """
    place = Location(url, storage)
    found = _objects(place)
    if place.name not in found:
        return None
    text = "".join(f"{name} {each.size} {each.tag} " for name, each in sorted(found.items()))
    above = storage.scratch_dir / "inputs" / _short(url)
    folder = above / _short(text)
    # Another run may want the same raster.
    with Lock(above / ".lock").hold("a download", wait_s=SHORT_S):
        if not folder.is_dir():
            _download(place, found, folder)
    return folder / place.name


def _download(place: Location, found: dict[str, ObjectInfo], folder: Path) -> None:
    above = folder.parent
    partial = above / f".{folder.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    for name, each in found.items():
        got = (place.parent / name).download(partial / name)
        if got.tag != each.tag:
            shutil.rmtree(partial, ignore_errors=True)
            message = f"{place.url}: changes while it is read; wait until its writer has finished"
            raise StorageError(message)
    partial.rename(folder)
    for old in above.iterdir():  # other contents; a run that began before may still read them
        if (
            old.is_dir()
            and old != folder
            and time.time() - old.stat().st_mtime > GRACE.total_seconds()
        ):
            shutil.rmtree(old, ignore_errors=True)


def _objects(place: Location) -> dict[str, ObjectInfo]:
    """Look up an object and those beside it, by name."""
    stem, suffix = Path(place.name).stem, Path(place.name).suffix
    beside = [stem + other for other in BESIDE_STEM.get(suffix.lower(), ())]
    if suffix.lower() in _RASTERS:
        beside += [place.name + other for other in _BESIDE_RASTER]
    found = {name: (place.parent / name).info() for name in (place.name, *beside)}
    return {name: each for name, each in found.items() if each is not None}


def _short(text: str) -> str:
    # The names of folders that earlier versions made, and that still serve.
    return hashlib.sha256(text.encode()).hexdigest()[:16]
