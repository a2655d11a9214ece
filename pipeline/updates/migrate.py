"""The format versions of all that a map has on disk, and their migration to this disagg's.

What can be made again from the inputs (stores, models, checkpoints) is read as it is, or made again
by the next run. What cannot (publications, records of runs) is read as it is, or rewritten here by
a step of :data:`STEPS`: one for each format and version that this disagg no longer reads.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from geo.core.errors import Problem
from models.core import persist
from pipeline.config.schema import Config
from pipeline.publishing import object_versions, version_store
from pipeline.publishing.publish import publish_dir
from pipeline.publishing.versions import open_versions
from pipeline.run import repeat
from pipeline.storage.files import write_json
from pipeline.storage.local_commit import MARKER, staged
from pipeline.storage.location import Location, Place
from pipeline.storage.lock import exclusive
from pipeline.storage.place import read_place
from pipeline.store import aligned_grid, bag_writer
from pipeline.store.earlier_store import migrate_store
from pipeline.training import checkpoint

Step = Callable[[Path], None]
#: Changes a copy of what has this format and version so that it has the next version.
STEPS: dict[tuple[str, int], Step] = {}
#: Rewrite what has this format and an earlier version to the version that is written.
REWRITERS: dict[str, Step] = {bag_writer.FORMAT: migrate_store}


@dataclass(frozen=True)
class Format:
    """A format on disk.

    Attributes
    ----------
    name : str
    readable : tuple of int
        Versions that are read as they are; the last is the one that is written. The others are
        rewritten where there is a rewriter.
    remade : bool
        Whether the next run makes it again if it is of another version.
    """

    name: str
    readable: tuple[int, ...]
    remade: bool


STORE = Format(bag_writer.FORMAT, bag_writer.READABLE, True)
GRID = Format(aligned_grid.FORMAT, (aligned_grid.VERSION,), True)
MODEL = Format(persist.FORMAT, (persist.VERSION,), True)
CHECKPOINT = Format("disagg-checkpoint", (checkpoint.VERSION,), True)
RECORD = Format(repeat.FORMAT, (repeat.VERSION,), False)
PUBLICATION = Format(version_store.KIND, version_store.READABLE, False)
POINTER = Format(object_versions.POINTER_KIND, (object_versions.POINTER_VERSION,), False)
FORMATS = (STORE, GRID, MODEL, CHECKPOINT, RECORD, PUBLICATION, POINTER)


@dataclass(frozen=True)
class Found:
    """A file or directory, and what becomes of it.

    Attributes
    ----------
    path : Path or Location
    format : str
    version : int or None
        None if it cannot be told: damaged.
    state : str
        ``current``; ``read``, of an earlier version that is read as it is; ``made again`` by the
        next run; ``to migrate``; ``migrated``; ``newer`` than this disagg; ``damaged``; ``lost``,
        of an earlier version that nothing reads.
    """

    path: Place
    format: str
    version: int | None
    state: str

    @property
    def problem(self) -> Problem | None:
        """What a user has to do about it; None if nothing."""
        remedies = {
            "newer": (f"version {self.version} of {self.format} is newer", "install that disagg"),
            "damaged": ("damaged", "restore it from a back-up, or remove it"),
            "lost": (f"no step reads version {self.version}", "use the disagg that wrote it"),
        }
        return Problem(str(self.path), *remedies[self.state]) if self.state in remedies else None


def examine_formats(config: Config) -> list[Found]:
    """Return all that a map has on disk, with its format and version."""
    work, found = config.output.dir / "work", []
    published = publish_dir(config)
    places: tuple[tuple[Place, Format, Callable[[Any], Any]], ...] = (
        (work / "bags.zarr", STORE, _marked),
        (work / "grid.zarr", GRID, _marked),
        (work / "model", MODEL, lambda p: _json(p / "model.json")["version"]),
        *((p, CHECKPOINT, _checkpoint) for p in sorted(work.glob("checkpoint/epoch-*.npz"))),
        (config.output.dir / "run.json", RECORD, lambda p: _json(p)["version"]),
        (published / object_versions.POINTER, POINTER, lambda p: _json(p)["version"]),
        *((each.path, PUBLICATION, _marked) for each in open_versions(published).all()),
    )
    for path, kind, read in places:
        if isinstance(path, Location):
            if kind is PUBLICATION or path.info() is not None:
                found.append(_found(path, kind, read))
        elif path.exists():
            found.append(_found(path, kind, read))
    return found


def migrate(config: Config) -> list[Found]:
    """Bring all that needs it to this disagg's formats; return what there is then.

    Each is changed as a copy that then takes its place in one move: a migration that is killed has
    changed nothing. What can be neither read, migrated nor made again has a ``problem``.
    """
    kinds = {kind.name: kind for kind in FORMATS}
    done = []
    with exclusive(config.output.dir):
        for each in examine_formats(config):
            if each.state == "to migrate" and each.version is not None:
                _migrate(each, kinds[each.format])
                done.append(Found(each.path, each.format, kinds[each.format].readable[-1],
                                  "migrated"))  # fmt: skip
            else:
                done.append(each)
    return done


def _found(path: Place, kind: Format, read: Callable[[Any], Any]) -> Found:
    try:
        version = int(read(path))
    except (OSError, ValueError, KeyError, TypeError):
        return Found(path, kind.name, None, "made again" if kind.remade else "damaged")
    if version in kind.readable:
        state = "to migrate" if kind.name in REWRITERS else "read"
        state = "current" if version == kind.readable[-1] else state
    elif version > kind.readable[-1]:
        state = "newer"
    elif isinstance(path, Path) and _steps(kind, version) is not None:
        state = "to migrate"
    else:
        state = "made again" if kind.remade else "lost"
    return Found(path, kind.name, version, state)


def _steps(kind: Format, version: int) -> list[Step] | None:
    """Return the steps from a version to one that is read; None if one is missing."""
    steps = []
    while version not in kind.readable:
        step = STEPS.get((kind.name, version))
        if step is None:
            return None
        steps.append(step)
        version += 1
    return steps


def _migrate(found: Found, kind: Format) -> None:
    if found.version is None or not isinstance(found.path, Path):
        return
    if kind.name in REWRITERS:
        REWRITERS[kind.name](found.path)
        return
    steps = _steps(kind, found.version) or []
    target = found.version + len(steps)
    if kind is RECORD:
        data = _json(found.path)
        copy = found.path.with_name(f".{found.path.name}.migrated")
        write_json(copy, data)
        for step in steps:
            step(copy)
        write_json(copy, {**_json(copy), "version": target})
        copy.replace(found.path)
        return
    marker = _json(found.path / MARKER)
    with staged(found.path, kind.name, target, marker["fingerprint"]) as at:
        copy = cast(Path, at)
        shutil.copytree(found.path, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MARKER))
        for step in steps:
            step(copy)


def _marked(path: Place) -> Any:
    return _json(path / MARKER)["version"]


def _json(path: Place) -> dict[str, Any]:
    return dict(json.loads(read_place(path)))


def _checkpoint(path: Path) -> Any:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return json.loads(file["meta.json"].tobytes())["version"]
    except Exception as error:  # damaged bytes make zipfile and NumPy raise nearly anything
        raise ValueError(str(error)) from error
