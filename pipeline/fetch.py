"""Inputs on object stores: brought here whole, once for each content, and read as local files.

Fingerprints are of contents, so that every byte is read anyway; and a local copy cannot change, or
break off, while a raster is read by windows. Copies stay in ``<scratch>/inputs``, those of earlier
contents for a week.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from geo.errors import InputError, Problem
from pipeline.config import Config, Section
from pipeline.places import GRACE
from pipeline.storage import Location, ObjectInfo, StorageError, is_object_address, storage_options

#: Files beside a file that change what it means to a reader.
BESIDE_STEM = {
    ".shp": (".shx", ".dbf", ".prj", ".cpg"),
    ".tif": (".tfw", ".prj"),
    ".tiff": (".tfw", ".prj"),
    ".vrt": (),
}
_RASTERS = (".tif", ".tiff")
_BESIDE_RASTER = (".msk", ".aux.xml")


def local_copy(url: str) -> Path | None:
    """Return a local copy of an object, with those beside it that belong to it.

    Parameters
    ----------
    url : str
        ``s3://bucket/key``.

    Returns
    -------
    Path or None
        None where there is no such object.

    Raises
    ------
    StorageError
        If the store fails.
    """
    place = Location(url)
    found = _objects(place)
    if place.name not in found:
        return None
    text = "".join(f"{name} {each.size} {each.tag} " for name, each in sorted(found.items()))
    above = storage_options().scratch_dir / "inputs" / _short(url)
    folder = above / _short(text)
    above.mkdir(parents=True, exist_ok=True)
    with (above / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may want the same raster
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


@contextlib.contextmanager
def local_inputs(config: Config) -> Iterator[Config]:
    """Give a configuration whose inputs are local; what is said of them names their addresses.

    Raises
    ------
    InputError
        With every object that is not there.
    StorageError
        If the store fails.
    """
    copies, problems = {}, []
    for key, url in config.input_paths().items():
        if not is_object_address(url) or url in copies:
            continue
        copy = local_copy(url)
        if copy is None:
            problems.append(Problem(f"{key} ({url})", "no such object", "correct the address"))
        else:
            copies[url] = str(copy)
    if problems:
        raise InputError(problems)
    if not copies:
        yield config
        return
    try:
        yield _with_paths(config, copies)
    except InputError as error:
        raise InputError([_renamed(problem, copies) for problem in error.problems]) from error


def _objects(place: Location) -> dict[str, ObjectInfo]:
    """Look up an object and those beside it, by name."""
    stem, suffix = Path(place.name).stem, Path(place.name).suffix
    beside = [stem + other for other in BESIDE_STEM.get(suffix.lower(), ())]
    if suffix.lower() in _RASTERS:
        beside += [place.name + other for other in _BESIDE_RASTER]
    found = {name: (place.parent / name).info() for name in (place.name, *beside)}
    return {name: each for name, each in found.items() if each is not None}


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _with_paths(section: Any, copies: dict[str, str]) -> Any:
    """Copy a section with some of its texts replaced, at any depth."""
    if isinstance(section, str):
        return copies.get(section, section)
    if isinstance(section, dict):
        return {key: _with_paths(value, copies) for key, value in section.items()}
    if not isinstance(section, Section):
        return section
    now = {name: getattr(section, name) for name in type(section).model_fields}
    new = {name: _with_paths(value, copies) for name, value in now.items()}
    # Only what differs: which keys were given stays known.
    return section.model_copy(update={k: v for k, v in new.items() if v != now[k]})


def _renamed(problem: Problem, copies: dict[str, str]) -> Problem:
    parts = [problem.place, problem.found, problem.remedy]
    for url, copy in copies.items():
        parts = [part.replace(copy, url) for part in parts]
    return Problem(*parts)
