"""Versions of a published map: each complete or invisible, one of them current.

```
DIR/versions/v0001/   the files of a version, version.json, complete.json (written last)
DIR/current           symbolic link to the current version
DIR/withdrawn.json    fingerprints of maps that were rolled back: published again only by force
```

A version is written under a hidden name and renamed after its last byte is on disk
(:mod:`local_commit`). Publishing renames the link. A reader that resolves the link once reads one
version to the end, even if another is published meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from geo.errors import InputError, Problem
from pipeline.core.errors import StoreError
from pipeline.prediction.products import EDITABLE
from pipeline.storage.files import file_digest, fsync, write_json
from pipeline.storage.local_commit import read_marker, staged
from pipeline.storage.lock import SHORT_S, Lock, writable

KIND, VERSION = "disagg-version", 1
READABLE = (VERSION,)  # earlier formats that are read as they are come first
ABOUT = "version.json"
WITHDRAWN = "withdrawn.json"
_RESTORE = "restore it from a back-up, or remove its directory"
_NAME = re.compile(r"^v(\d{4,})$")


@dataclass(frozen=True)
class Version:
    """A complete version.

    Attributes
    ----------
    path : Path
        Its directory.
    fingerprint : str
        Fingerprint of its files.
    about : dict
        ``version.json``: name, period, when, gates, checksums of its files.
    trouble : str
        Why it cannot be read; only :func:`list_all_versions` gives such ones.
    """

    path: Path
    fingerprint: str
    about: dict[str, Any] = field(compare=False)
    trouble: str = ""

    @property
    def name(self) -> str:
        """``v0012``."""
        return self.path.name

    @property
    def number(self) -> int:
        """12."""
        return int(self.name[1:])

    @property
    def period(self) -> str | None:
        """Period of a time series."""
        period: str | None = self.about.get("period")
        return period


def list_versions(directory: Path) -> list[Version]:
    """List the complete versions, the oldest first."""
    found = []
    for path in (directory / "versions").glob("v*"):
        if _NAME.match(path.name):
            version = _read(path)
            if version is not None:
                found.append(version)
    return sorted(found, key=lambda version: version.number)


def list_all_versions(directory: Path) -> list[Version]:
    """List all versions, those as well that cannot be read: damaged, or of another format.

    What was published once stays in the list, whatever became of its files.
    """
    found = []
    for path in (directory / "versions").glob("v*"):
        if _NAME.match(path.name):
            try:
                found.append(_read_version(path))
            except (StoreError, OSError, ValueError) as error:
                about = _about_or_nothing(path)
                found.append(Version(path.resolve(), "", about, str(error) or "damaged"))
    return sorted(found, key=lambda version: version.number)


def faults(version: Version) -> list[str]:
    """Read every file of a version; return what is wrong with each that is not as it was written.

    Styles and the QGIS project may be edited where they lie: of these only the presence is checked.
    """
    found = []
    for name, digest in (version.about.get("files") or {}).items():
        path = version.path / name
        try:
            same = (name.endswith(EDITABLE) and path.is_file()) or file_digest(path) == digest
        except FileNotFoundError:
            found.append(f"{path}: missing")
        except OSError as error:
            found.append(f"{path}: cannot be read ({error.strerror})")
        else:
            if not same:
                found.append(f"{path}: its content is not what was published (checksum)")
    return found


def _about_or_nothing(path: Path) -> dict[str, Any]:
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def current_version(directory: Path) -> Version | None:
    """Return the current version, or None."""
    try:
        target = os.readlink(directory / "current")
    except OSError:
        return None
    return _read(directory / target)


def add_version(
    directory: Path, files: Mapping[str, Path], about: Mapping[str, Any], fingerprint: str
) -> Version:
    """Write a new version, complete but not yet current.

    Parameters
    ----------
    directory : Path
        Created if absent.
    files : mapping of str to Path
        Files to copy, by name in the version.
    about : mapping
        Content of ``version.json``.
    fingerprint : str
        Fingerprint of the files.
    """
    numbers = [
        int(match[1])
        for path in (directory / "versions").glob("*")
        if (match := _NAME.match(path.name))
    ]
    name = f"v{max(numbers, default=0) + 1:04d}"
    path = directory / "versions" / name
    with staged(path, KIND, VERSION, fingerprint) as at:
        partial = cast(Path, at)  # `directory` is local: versions are renamed into place
        for target, source in files.items():
            (partial / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, partial / target)
        write_json(partial / ABOUT, {"version": name, **about})
    made = _read(path)
    if made is None:
        message = f"{path}: cannot be read after writing; check the disk"
        raise StoreError(message)
    return made


def make_current(directory: Path, version: Version) -> None:
    """Make a version current, by one rename."""
    link = directory / f".current-{uuid.uuid4().hex[:8]}"
    link.symlink_to(Path("versions") / version.name)
    os.replace(link, directory / "current")
    fsync(directory)


def roll_back(directory: Path, to: str | None = None) -> tuple[Version | None, Version]:
    """Make an earlier version current again.

    Parameters
    ----------
    directory : Path
    to : str, optional
        Name of a version, ``v0007``; by default the one before the current one.

    Returns
    -------
    (Version or None, Version)
        The previous and the new current version.

    Raises
    ------
    InputError
        If there is no such version.
    """
    with versions_locked(directory):
        versions, current = list_versions(directory), current_version(directory)
        names = ", ".join(version.name for version in versions) or "none"
        if to is None:
            shown = [v for v in versions if not v.about.get("superseded")]
            before = [v for v in shown if current is None or v.number < current.number]
            if not before:
                found = "there is no version before the current one"
                raise InputError(Problem(str(directory), found, f"versions: {names}; give --to"))
            target = before[-1]
        else:
            wanted = [version for version in versions if version.name == to]
            if not wanted:
                raise InputError(Problem(str(directory), f"no version {to}", f"one of: {names}"))
            target = wanted[0]
        later = {v.fingerprint for v in versions if v.number > target.number}
        _write_withdrawn(directory, (read_withdrawn(directory) | later) - {target.fingerprint})
        make_current(directory, target)
    return current, target


def read_withdrawn(directory: Path) -> set[str]:
    """Return the fingerprints of the maps that were rolled back."""
    try:
        return set(json.loads((directory / WITHDRAWN).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return set()


def _write_withdrawn(directory: Path, fingerprints: set[str]) -> None:
    write_json(directory / WITHDRAWN, sorted(fingerprints))


def remove_old_versions(directory: Path, keep: int) -> list[str]:
    """Remove all but the newest ``keep`` versions; keep the current one and its predecessor.

    Returns
    -------
    list of str
        Names of those removed.
    """
    versions, current = list_versions(directory), current_version(directory)
    shown = [version for version in versions if not version.about.get("superseded")]
    at = next((n for n, version in enumerate(shown) if version == current), len(shown))
    spared = {version.name for version in shown[max(0, at - 1) : at + 1]}
    dropped = [version for version in versions[: max(0, len(versions) - keep)]]
    dropped = [version for version in dropped if version.name not in spared]
    for version in dropped:
        # Hide it first: a partially removed version must not be listed.
        hidden = version.path.with_name(f".{version.name}.dropped-{uuid.uuid4().hex[:8]}")
        version.path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)
    return [version.name for version in dropped]


@contextmanager
def versions_locked(directory: Path) -> Iterator[None]:
    """Hold the lock for changes of the versions; readers need no lock.

    Raises
    ------
    InputError
        If the directory cannot be written to.
    """
    with ExitStack() as stack:
        with writable(directory, "publish.dir"):
            stack.enter_context(Lock(directory / ".lock").hold("a publication", wait_s=SHORT_S))
        yield


def _read(path: Path) -> Version | None:
    try:
        return _read_version(path)
    except (StoreError, OSError, ValueError):
        return None


def _read_version(path: Path) -> Version:
    marker = read_marker(path, KIND, READABLE, free=EDITABLE, remedy=_RESTORE)
    about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
    return Version(path.parent.resolve() / path.name, marker.fingerprint, about)
