"""The versions of a published map, wherever they are: see :mod:`version_store`."""

from __future__ import annotations

from pathlib import Path

from pipeline.publishing.local_versions import LocalVersions
from pipeline.publishing.object_versions import ObjectVersions
from pipeline.publishing.version_store import Version, VersionStore
from pipeline.storage.location import Place


def open_versions(place: Place) -> VersionStore:
    """Return the versions in a directory or under a prefix; there need not be any."""
    return LocalVersions(place) if isinstance(place, Path) else ObjectVersions(place)


def list_versions(place: Place) -> list[Version]:
    """List the complete versions, the oldest first."""
    return open_versions(place).list()


def current_version(place: Place) -> Version | None:
    """Return the current version; None if there is none, or it cannot be read."""
    return open_versions(place).current()
