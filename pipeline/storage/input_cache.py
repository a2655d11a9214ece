"""Local copies of inputs at addresses: each byte that is read comes once.

A local copy holds one state of its file, whatever becomes of the address during a run.
``<scratch>/inputs`` keeps copies of earlier contents for a week.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from geo.core.trust import is_web_address
from pipeline.storage.chunks import SUFFIX, RemoteStore, begin_store, open_store
from pipeline.storage.location import (
    Location,
    ObjectInfo,
    Storage,
    StorageError,
    changed_while_read,
    is_object_address,
)
from pipeline.storage.lock import SHORT_S, Lock
from pipeline.storage.object_commit import GRACE
from pipeline.storage.web_state import NoPartsError, web_download, web_said, web_state
from pipeline.storage.windows import HEAD_BYTES, WHOLE_BYTES, RemoteFile, begin, open_copy

_LOG = logging.getLogger(__name__)

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
_RASTERS = (
    *(suffix for suffix in SIDECARS if suffix != ".shp"),
    *(".nc", ".nc4", ".h5", ".hdf", ".hdf5", ".grib", ".grb", ".grib2", ".grb2", ".jpeg", ".hgt"),
)
_TIFF = (".tif", ".tiff")
_RASTER_SIDECARS = (".msk", ".aux.xml")


def is_cached(address: str) -> bool:
    """Return whether an input is read from a local copy: objects, and rasters at http(s)."""
    if is_object_address(address):
        return True
    suffix = PurePosixPath(urlsplit(address).path).suffix.lower()
    return is_web_address(address) and suffix in (*_RASTERS, SUFFIX)


def is_store(address: str) -> bool:
    """Return whether an input is a Zarr store at an address."""
    return PurePosixPath(urlsplit(address).path).suffix.lower() == SUFFIX and is_cached(address)


def local_copy(url: str, storage: Storage) -> Path | None:
    """Return a local copy of a file at an address and of its sidecar objects.

    Of a Zarr store it has the chunks that a source reads; of a large GeoTIFF the header, and then
    the windows that a raster source reads.

    Parameters
    ----------
    url : str
        ``s3://bucket/key``, or a raster at ``https://``.
    storage : Storage
        The copy is in its ``scratch_dir``.

    Returns
    -------
    Path or None
        None if there is no such file.

    Raises
    ------
    StorageError
        If the store or server fails.
    """
    above = storage.scratch_dir / "inputs" / _short(url)
    if is_store(url):
        return _store_copy(url, storage, above)
    if is_object_address(url):
        place = Location(url, storage)
        found, name = _objects(place), place.name
        if name not in found:
            return None
        text = "".join(f"{key} {each.size} {each.tag} " for key, each in sorted(found.items()))
        size, state = found[name].size, found[name].tag
    else:
        said = web_said(url, storage)
        if said is None:
            return None
        found, name = {}, PurePosixPath(unquote(urlsplit(url).path)).name
        state, size = said
        text = state = state or web_state(url, storage)
    remote = RemoteFile(url, size, state, storage)
    # Another run may download the same raster.
    with Lock(above / ".lock").hold("a download", wait_s=SHORT_S):
        if size > WHOLE_BYTES and name.lower().endswith(_TIFF) and not state.startswith("bytes"):
            folder = above / _short(f"{text}by windows")
            if folder.is_dir() or _begin(remote, found, folder, name):
                return open_copy(folder / name, remote).path
        folder = above / _short(text)
        if not folder.is_dir():
            _download(remote, found, folder, name)
    return folder / name


def _store_copy(url: str, storage: Storage, above: Path) -> Path | None:
    """Return a copy of a Zarr store that has no chunk yet, or those that were read before."""
    remote = RemoteStore(url, storage)
    state, name = remote.state(), PurePosixPath(unquote(urlsplit(url).path)).name
    if state is None:
        return None
    with Lock(above / ".lock").hold("a download", wait_s=SHORT_S):
        folder = above / _short(state)
        if not folder.is_dir():
            with _new_folder(folder) as partial:
                begin_store(partial / name, state)
    return open_store(folder / name, remote)


def _begin(remote: RemoteFile, found: dict[str, ObjectInfo], folder: Path, name: str) -> bool:
    """Make a copy with the head of a file alone; return False if its server sends no parts."""
    try:
        head = remote.read(0, HEAD_BYTES)
    except NoPartsError:
        _LOG.info("%s: its server sends no parts of files: copied whole", remote.url)
        return False
    with _new_folder(folder) as partial:
        begin(partial / name, remote, head)
        _save_objects(remote, {k: each for k, each in found.items() if k != name}, partial)
    return True


def _download(remote: RemoteFile, found: dict[str, ObjectInfo], folder: Path, name: str) -> None:
    with _new_folder(folder) as partial:
        if found:
            _save_objects(remote, found, partial)
        else:
            web_download(remote.url, partial / name, remote.state, remote.storage)


def _save_objects(remote: RemoteFile, found: dict[str, ObjectInfo], folder: Path) -> None:
    above = Location(remote.url, remote.storage).parent
    for name, each in found.items():
        if (above / name).download(folder / name).tag != each.tag:
            raise StorageError(changed_while_read(remote.url))


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder that takes its name if the block succeeds; remove old ones beside it."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    partial.rename(folder)
    for old in folder.parent.iterdir():  # earlier contents, which a run may still read
        age = time.time() - old.stat().st_mtime
        if old.is_dir() and old != folder and age > GRACE.total_seconds():
            shutil.rmtree(old, ignore_errors=True)


def _objects(place: Location) -> dict[str, ObjectInfo]:
    """Look up an object and its sidecar objects, by name."""
    stem, suffix = Path(place.name).stem, Path(place.name).suffix
    beside = [stem + other for other in SIDECARS.get(suffix.lower(), ())]
    if suffix.lower() in _RASTERS:
        beside += [place.name + other for other in _RASTER_SIDECARS]
    main = place.info()
    if main is None:
        return {}
    # One listing: to look each name up would be ten requests.
    found = {**(place.parent.list(stem) if beside else {}), place.name: main}
    return {name: found[name] for name in (place.name, *beside) if name in found}


def _short(text: str) -> str:
    # SHA-256, as in earlier versions, whose folders stay valid.
    return hashlib.sha256(text.encode()).hexdigest()[:16]
