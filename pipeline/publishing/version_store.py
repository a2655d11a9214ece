"""Versions of a published map: each complete or invisible, one of them current.

What is a version, which ones stay, which one a rollback chooses: the same on a disk
(:mod:`local_versions`) and on an object store (:mod:`object_versions`), which only say how a
version is written and how the current one is named.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from geo.core.errors import InputError, Problem
from pipeline.core.errors import StoreError
from pipeline.products.products import EDITABLE
from pipeline.storage.location import Place, StorageError
from pipeline.storage.lock import LockedError
from pipeline.storage.place import place_digest, read_place
from pipeline.storage.pointer import MovedError

Result = TypeVar("Result")

KIND, VERSION = "disagg-version", 1
READABLE = (VERSION,)  # earlier formats that are read as they are come first
ABOUT = "version.json"
RESTORE = "restore it from a back-up, or remove its directory"
_TRIES = 8  # of a change that another publisher's came before


@dataclass(frozen=True)
class Version:
    """A complete version.

    Attributes
    ----------
    path : Path or Location
        Its directory, or prefix.
    fingerprint : str
        Fingerprint of its files.
    about : dict
        ``version.json``: name, period, when, gates, checksums of its files.
    trouble : str
        Why it cannot be read; only :meth:`VersionStore.all` gives such ones.
    """

    path: Place
    fingerprint: str
    about: dict[str, Any] = field(compare=False)
    trouble: str = ""

    @property
    def name(self) -> str:
        """``v0012``; on an object store its prefix has more: ``v0012-3f9a1c07``."""
        return self.path.name.partition("-")[0]

    @property
    def number(self) -> int:
        """12."""
        return int(self.name[1:])

    @property
    def period(self) -> str | None:
        """Period of a time series."""
        period: str | None = self.about.get("period")
        return period

    def faults(self) -> list[str]:
        """Read every file; return what is wrong with each that is not as it was written.

        What :attr:`trouble` says already is left out.
        Styles and the QGIS project may be edited where they lie: only their presence is checked.
        """
        found = []
        for name, digest in (self.about.get("files") or {}).items():
            if f": {name} " in self.trouble:
                continue
            path = self.path / name
            try:
                same = place_digest(path) == digest or name.endswith(EDITABLE)
            except FileNotFoundError:
                found.append(f"{path}: missing")
            except StorageError:
                raise  # the store is away: nothing is known of the file
            except OSError as error:
                found.append(f"{path}: cannot be read ({error.strerror})")
            else:
                if not same:
                    found.append(f"{path}: its content is not what was published (checksum)")
        return found


class VersionStore(ABC):
    """The versions of a map.

    Attributes
    ----------
    place : Path or Location
        ``publish.dir``.
    """

    place: Place

    @abstractmethod
    def paths(self) -> list[Place]:
        """Return the place of every version, damaged ones too, in any order."""

    @abstractmethod
    def current_name(self) -> str | None:
        """Return the name of the current version, whether it can be read or not."""

    @abstractmethod
    def withdrawn(self) -> Set[str]:
        """Return the fingerprints of maps that were rolled back: published again only by force."""

    @abstractmethod
    def read(self, path: Place) -> Version:
        """Read a version; raise StoreError, OSError or ValueError if it is damaged."""

    @abstractmethod
    def changing(self) -> AbstractContextManager[None]:
        """Admit changes while the block runs: all of them see one state."""

    @abstractmethod
    def add(
        self, name: str, files: Mapping[str, Path], about: Mapping[str, Any], fingerprint: str
    ) -> Version:
        """Write a version; readers have it after the next :meth:`commit`."""

    @abstractmethod
    def commit(self, current: Version | None, withdrawn: Set[str] | None = None) -> None:
        """Make a version current (None: the one that is), and replace what is withdrawn.

        Raises
        ------
        MovedError
            If another publisher has changed the versions meanwhile: nothing was changed.
        """

    @abstractmethod
    def drop(self, versions: Sequence[Version]) -> None:
        """Remove versions: none of them is listed in part."""

    @abstractmethod
    def copy(self, version: Version) -> Path:
        """Return a local directory with the files of a version, named by it."""

    def settled(self, read: Callable[[], Result], whole: Callable[[Result], bool]) -> Result:  # noqa: ARG002
        """Read, again where a version went away meanwhile: on a disk, it is read once."""
        return read()

    def all(self) -> list[Version]:
        """List all versions, the oldest first; those as well that cannot be read.

        What was published once stays in the list, whatever became of its files.
        """

        def read() -> list[Version]:
            return sorted(map(self._look, self.paths()), key=lambda version: version.number)

        return self.settled(read, lambda found: not any(each.trouble for each in found))

    def list(self) -> list[Version]:
        """List the complete versions, the oldest first."""
        return [version for version in self.all() if not version.trouble]

    def current(self) -> Version | None:
        """Return the current version; None if there is none, or it cannot be read."""

        def read() -> tuple[str | None, Version | None]:
            name = self.current_name()
            path = next((each for each in self.paths() if Version(each, "", {}).name == name), None)
            version = None if path is None else self._look(path)
            return name, None if version is None or version.trouble else version

        return self.settled(read, lambda found: found[0] is None or found[1] is not None)[1]

    def new_name(self) -> str:
        """Return the name of the next version."""
        numbers = (Version(path, "", {}).number for path in self.paths())
        return f"v{max(numbers, default=0) + 1:04d}"

    def changed(self, change: Callable[[], Result]) -> Result:
        """Make a change; from the start where another publisher's came before it.

        Raises
        ------
        LockedError
            If others came first each time.
        """
        for _ in range(_TRIES):
            with self.changing():
                try:
                    return change()
                except MovedError:
                    continue
        message = f"other publishers, whose versions came first {_TRIES} times"
        raise LockedError(message)

    def roll_back(self, to: str | None = None) -> tuple[Version | None, Version]:
        """Make an earlier version current again.

        Parameters
        ----------
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

        def change() -> tuple[Version | None, Version]:
            versions, current = self.list(), self.current()
            names = ", ".join(version.name for version in versions) or "none"
            if to is None:
                shown = [v for v in versions if not v.about.get("superseded")]
                before = [v for v in shown if current is None or v.number < current.number]
                found = "there is no version before the current one"
                remedy = f"versions: {names}; give --to"
            else:
                before = [version for version in versions if version.name == to]
                found, remedy = f"no version {to}", f"one of: {names}"
            if not before:
                raise InputError(Problem(str(self.place), found, remedy))
            target = before[-1]
            later = {v.fingerprint for v in versions if v.number > target.number}
            self.commit(target, (self.withdrawn() | later) - {target.fingerprint})
            return current, target

        return self.changed(change)

    def remove_old(self, keep: int) -> tuple[str, ...]:
        """Remove all but the newest ``keep``; keep the current one and its predecessor.

        Returns
        -------
        tuple of str
            Names of those removed.
        """
        versions, current = self.list(), self.current()
        shown = [version for version in versions if not version.about.get("superseded")]
        at = next((n for n, version in enumerate(shown) if version == current), len(shown))
        spared = {version.name for version in shown[max(0, at - 1) : at + 1]}
        old = versions[: max(0, len(versions) - keep)]
        dropped = [version for version in old if version.name not in spared]
        self.drop(dropped)
        return tuple(version.name for version in dropped)

    def _look(self, path: Place) -> Version:
        try:
            return self.read(path)
        except StorageError:
            raise  # the store is away: nothing is known of the version
        except (StoreError, OSError, ValueError) as error:
            return Version(path, "", _about_or_nothing(path), str(error) or "damaged")


def _about_or_nothing(path: Place) -> dict[str, Any]:
    try:
        about = json.loads(read_place(path / ABOUT))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}
