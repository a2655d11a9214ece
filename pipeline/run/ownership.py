"""Whose directory it is: two configurations that write into one replace each other's map.

The first stage that ends, or publication, leaves the map's name and its configuration there. A
second configuration is refused while the first is there; where the first was moved or renamed,
or lies on another machine, the map's name tells.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from geo.errors import InputError, Problem
from pipeline.config.schema import Config
from pipeline.storage.files import write_json
from pipeline.storage.lock import exclusive

OWNER = ".map.json"


def owner_problem(directory: Path, config: Config, key: str) -> Problem | None:
    """Return what is wrong if a directory is another configuration's; None if it is free, or ours.

    Parameters
    ----------
    directory : Path
    config : Config
        One that was not read from a file owns every directory.
    key : str
        Of the configuration, that names the directory: ``output.dir`` or ``publish.dir``.
    """
    try:
        owner = json.loads((directory / OWNER).read_text(encoding="utf-8"))
        name, source = str(owner["name"]), str(owner["configuration"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if config.source is None or _from(directory, config) == source:
        return None
    there = Path(os.path.normpath(directory / source))
    if there.is_file():
        if isinstance(config.source, Path) and config.source.samefile(there):
            return None
        remedy = f"give one of the two {key} of its own"
    elif name == config.name:
        return None
    else:
        remedy = f"give this one {key} of its own, or remove {directory / OWNER}"
    found = f"{directory} is of another configuration, {there} ({name!r})"
    return Problem(key, found, remedy)


def _from(directory: Path, config: Config) -> str:
    """Return the place of the configuration as seen from a directory: both may be copied."""
    source = config.source
    return os.path.relpath(source, directory) if isinstance(source, Path) else str(source)


def claim(directory: Path, config: Config, key: str) -> None:
    """Take a directory for a configuration; the caller holds its lock.

    Raises
    ------
    InputError
        If it is another configuration's.
    """
    problem = owner_problem(directory, config, key)
    if problem is not None:
        raise InputError(problem)
    if config.source is not None:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(
            directory / OWNER, {"name": config.name, "configuration": _from(directory, config)}
        )


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
