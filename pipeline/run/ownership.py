"""Whose directory it is: two configurations that write into one replace each other's map.

The first stage that ends, or publication, leaves the map's name and its configuration there. A
second configuration is refused while the first is there; where the first was moved or renamed,
or lies on another machine, the map's name tells.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from geo.core.errors import InputError, Problem
from pipeline.config.schema import Config
from pipeline.storage.files import write_json
from pipeline.storage.location import (
    Location,
    Place,
    StorageError,
    is_object_address,
)
from pipeline.storage.lock import exclusive
from pipeline.storage.place import read_place

OWNER = ".map.json"


def owner_problem(directory: Place, config: Config, key: str) -> Problem | None:
    """Return what is wrong if a directory is another configuration's; None if it is free, or ours.

    Parameters
    ----------
    directory : Path or Location
    config : Config
        One that was not read from a file owns every directory.
    key : str
        Of the configuration, that names the directory: ``output.dir`` or ``publish.dir``.
    """
    try:
        owner = json.loads(read_place(directory / OWNER))
        name, source = str(owner["name"]), str(owner["configuration"])
    except StorageError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if config.source is None:
        return None
    there, same = _place_from(directory, source), _from(directory, config) == source
    # The file of this path may be another one on the machine that published there.
    anywhere = isinstance(directory, Location) and isinstance(config.source, Path)
    if same and (name == config.name or not anywhere):
        return None
    if _exists(there) and not (same and anywhere):
        if _is_same(config.source, there):
            return None
        remedy = f"give one of the two {key} of its own"
    elif name == config.name:
        return None
    else:
        remedy = f"give this one {key} of its own, or remove {directory / OWNER}"
    found = f"{directory} is of another configuration, {there} ({name!r})"
    return Problem(key, found, remedy)


def _from(directory: Place, config: Config) -> str:
    """Return the place of the configuration as seen from a directory: both may be copied."""
    source = config.source
    if isinstance(source, Path) and isinstance(directory, Path):
        return os.path.relpath(source, directory)
    text, above = str(source), str(directory)
    if isinstance(source, Location) and _bucket(text) == _bucket(above):
        return posixpath.relpath(text, above)
    return text


def _bucket(address: str) -> str:
    return "/".join(address.split("/")[:3])


def _place_from(directory: Place, source: str) -> Place:
    """Return the place that :func:`_from` has told."""
    if isinstance(directory, Path):
        return Path(os.path.normpath(directory / source))
    if is_object_address(source):
        return Location(source, directory.storage)
    if os.path.isabs(source):
        return Path(source)
    scheme, _, key = directory.url.partition("://")
    return Location(
        f"{scheme}://{posixpath.normpath(posixpath.join(key, source))}", directory.storage
    )


def _exists(there: Place) -> bool:
    return there.is_file() if isinstance(there, Path) else there.info() is not None


def _is_same(source: Place, there: Place) -> bool:
    if isinstance(source, Path) and isinstance(there, Path):
        return source.samefile(there)
    return str(source) == str(there)


def claim(directory: Place, config: Config, key: str) -> None:
    """Take a directory for a configuration; the caller holds its lock.

    Raises
    ------
    InputError
        If it is another configuration's.
    """
    tag = ""
    if isinstance(directory, Location):  # which has no lock: another may claim it now
        found = (directory / OWNER).info()
        tag = "" if found is None else found.tag
    problem = owner_problem(directory, config, key)
    if problem is not None:
        raise InputError(problem)
    if config.source is None:
        return
    owner = {"name": config.name, "configuration": _from(directory, config)}
    if isinstance(directory, Path):
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / OWNER, owner)
        return
    text = (json.dumps(owner, indent=1, ensure_ascii=False) + "\n").encode()
    with suppress(FileNotFoundError):
        if (directory / OWNER).read() == text:
            return
    try:
        (directory / OWNER).write(text, if_tag=tag, required=True)
    except FileExistsError:  # another was quicker, or an answer was lost
        claim(directory, config, key)


@contextmanager
def owned(config: Config) -> Iterator[None]:
    """Hold the lock of the output directory, which is this configuration's.

    Raises
    ------
    InputError
        If it is another configuration's, or another run writes to it.
    """
    problem = owner_problem(config.output.dir, config, "output.dir")
    if problem is not None:  # before anything is written, a lock included
        raise InputError(problem)
    with exclusive(config.output.dir):
        yield
