"""Versions in a local directory.

```
DIR/versions/v0001/   the files of a version, version.json, complete.json (written last)
DIR/current           symbolic link to the current version
DIR/withdrawn.json    fingerprints of maps that were rolled back
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
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

from pipeline.products.products import EDITABLE
from pipeline.publishing.version_store import (
    ABOUT,
    KIND,
    READABLE,
    RESTORE,
    VERSION,
    Version,
    VersionStore,
)
from pipeline.storage.files import fsync, write_json
from pipeline.storage.local_commit import read_marker, staged
from pipeline.storage.location import Place
from pipeline.storage.lock import SHORT_S, Lock, writable

WITHDRAWN = "withdrawn.json"
_NAME = re.compile(r"^v\d{4,}$")


class LocalVersions(VersionStore):
    """Versions in a directory, which a lock lets one publisher change at a time."""

    def __init__(self, place: Path) -> None:
        self.place: Path = place

    def paths(self) -> list[Place]:
        """See `VersionStore`."""
        above = (self.place / "versions").resolve()
        return [path for path in above.glob("v*") if _NAME.match(path.name)]

    def current_name(self) -> str | None:
        """See `VersionStore`."""
        try:
            return Path(os.readlink(self.place / "current")).name
        except OSError:
            return None

    def withdrawn(self) -> Set[str]:
        """See `VersionStore`."""
        try:
            return set(json.loads((self.place / WITHDRAWN).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return set()

    def read(self, path: Place) -> Version:
        """See `VersionStore`."""
        marker = read_marker(path, KIND, READABLE, free=EDITABLE, remedy=RESTORE)
        about = json.loads((cast(Path, path) / ABOUT).read_text(encoding="utf-8"))
        return Version(path, marker.fingerprint, about)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """See `VersionStore`; readers need no lock.

        Raises
        ------
        InputError
            If the directory cannot be written to.
        """
        with ExitStack() as stack:
            with writable(self.place, "publish.dir"):
                held = Lock(self.place / ".lock").hold("a publication", wait_s=SHORT_S)
                stack.enter_context(held)
            yield

    def add(
        self, name: str, files: Mapping[str, Path], about: Mapping[str, Any], fingerprint: str
    ) -> Version:
        """See `VersionStore`; the version is listed at once."""
        path = (self.place / "versions").resolve() / name
        with staged(path, KIND, VERSION, fingerprint) as at:
            partial = cast(Path, at)  # the place is local: versions are renamed into place
            for target, source in files.items():
                (partial / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, partial / target)
            write_json(partial / ABOUT, {"version": name, **about})
        return self.read(path)

    def commit(self, current: Version | None, withdrawn: Set[str] | None = None) -> None:
        """See `VersionStore`: one rename."""
        if withdrawn is not None:
            write_json(self.place / WITHDRAWN, sorted(withdrawn))
        if current is not None:
            link = self.place / f".current-{uuid.uuid4().hex[:8]}"
            link.symlink_to(Path("versions") / current.name)
            os.replace(link, self.place / "current")
            fsync(self.place)

    def drop(self, versions: Sequence[Version]) -> None:
        """See `VersionStore`."""
        for version in versions:
            # Hide it first: a partially removed version must not be listed.
            path = cast(Path, version.path)
            hidden = path.with_name(f".{version.name}.dropped-{uuid.uuid4().hex[:8]}")
            path.rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)

    def copy(self, version: Version) -> Path:
        """See `VersionStore`: the directory itself."""
        return cast(Path, version.path)
