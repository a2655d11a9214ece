"""Local copies of inputs on object stores: one download for each content.

A fingerprint needs every byte anyway, and a local copy cannot change or become unreachable while a
raster is read by windows. ``<scratch>/inputs`` keeps copies of earlier contents for a week.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path

from pipeline.storage.location import Location, ObjectInfo, Storage, StorageError
from pipeline.storage.lock import SHORT_S, Lock
from pipeline.storage.object_commit import GRACE

#: Sidecar files that change the content of a file for its reader.
SIDECARS = {
    ".shp": (".shx", ".dbf", ".prj", ".cpg"),
    ".tif": (".tfw", ".wld", ".prj"),
    ".tiff": (".tfw", ".wld", ".prj"),
    ".img": (".hdr", ".ige", ".wld", ".prj"),
    ".bil": (".hdr", ".stx", ".blw", ".prj"),
    ".flt": (".hdr", ".prj"),
    ".dat": (".hdr",),
    ".asc": (".prj",),
    ".png": (".pgw", ".wld", ".prj"),
    ".jpg": (".jgw", ".wld", ".prj"),
    ".jp2": (".j2w", ".wld", ".prj"),
    ".sdat": (".sgrd", ".prj"),
}
_RASTERS = (*tuple(suffix for suffix in SIDECARS if suffix != ".shp"), ".nc", ".grib", ".grb2")
_RASTER_SIDECARS = (".msk", ".aux.xml")


def local_copy(url: str, storage: Storage) -> Path | None:
    """Return a local copy of an object and of its sidecar objects.

    Parameters
    ----------
    url : str
        ``s3://bucket/key``.
    storage : Storage
        The copy is in its ``scratch_dir``.

    Returns
    -------
    Path or None
        None if there is no such object.

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
    # Another run may download the same raster.
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
            message = (
                f"{place.url}: changed during the download; wait until its writer has finished"
            )
            raise StorageError(message)
    partial.rename(folder)
    for old in above.iterdir():  # earlier contents, which a run may still read
        if (
            old.is_dir()
            and old != folder
            and time.time() - old.stat().st_mtime > GRACE.total_seconds()
        ):
            shutil.rmtree(old, ignore_errors=True)


def _objects(place: Location) -> dict[str, ObjectInfo]:
    """Look up an object and its sidecar objects, by name."""
    stem, suffix = Path(place.name).stem, Path(place.name).suffix
    beside = [stem + other for other in SIDECARS.get(suffix.lower(), ())]
    if suffix.lower() in _RASTERS:
        beside += [place.name + other for other in _RASTER_SIDECARS]
    found = {name: (place.parent / name).info() for name in (place.name, *beside)}
    return {name: each for name, each in found.items() if each is not None}


def _short(text: str) -> str:
    # SHA-256, as in earlier versions, whose folders stay valid.
    return hashlib.sha256(text.encode()).hexdigest()[:16]
