"""A run whose ``output.dir`` is an address: it works in a local folder, the bucket is the truth.

What stages leave is put under ``.versions/<id>/``, and one object, ``manifest.json``, put last,
says which objects are the run: readers that follow it see the old run or all of the new one.
After that each map is copied to its plain name (``rate_mean.tif``), for those who just open it.
Checkpoints and finished folds go up the moment they are written, each by one PUT, outside the
manifest: each of them says itself what it is of, and whether it is whole.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.core.errors import StoreError
from pipeline.storage.files import file_digest
from pipeline.storage.location import LINK, Location, Storage, StorageError
from pipeline.storage.object_commit import GRACE, new_version, write_link

MANIFEST, VERSIONS = "manifest.json", ".versions"
FORMAT, VERSION = "disagg-output", 1
MARK = ".disagg-copy"  # in the local folder: of which address it is a copy
#: Written directly on the object store; here stands a link.
STORES = ("work/bags.zarr", "work/grid.zarr")
#: Folders whose files are put up one by one, as they are written.
KEPT = ("work/checkpoint", "work/evaluate")
_BYTES_AT_ONCE = 32 << 20

_open: dict[Path, Mirror] = {}


class Mirror:
    """The local folder of a run on an object store.

    Parameters
    ----------
    local : Path
    place : Location
        The run's address.
    """

    def __init__(self, local: Path, place: Location) -> None:
        self.local, self.place = local, place
        self._manifest: dict[str, Any] = {"id": "", "files": {}, "dropped": []}
        self._tag = ""
        # Of each checkpoint on the store, size and time of the local file that is the same.
        self._kept: dict[str, tuple[int, int]] = {}
        self._previous: dict[str, Any] = {}
        # Of each file of the folder, its digest as of a size and time: made once.
        self._digests: dict[str, tuple[tuple[int, int], str]] = {}

    def pull(self) -> None:
        """Make the folder what the manifest says, and add the checkpoints that are on the store.

        Raises
        ------
        StorageError
            If the store fails, or holds damaged objects.
        """
        self._claim()
        for name in STORES:
            if not (self.local / name / LINK).is_file():
                shutil.rmtree(self.local / name, ignore_errors=True)
            write_link(self.local / name, self.place / name)
        self._manifest, self._tag = self._read_manifest()
        files = self._manifest["files"]
        for name, each in files.items():
            self._fetch(name, each)
        for name in self._names():
            if name not in files:  # of a stage that did not reach the manifest
                (self.local / name).unlink()
        self._kept = {}
        for folder in KEPT:
            for name, each in (self.place / folder).list().items():
                path = self.local / folder / name
                if not path.is_file() or path.stat().st_size != each.size:
                    (self.place / folder / name).download(path)
                self._kept[f"{folder}/{name}"] = _stamp(path)
        self._publish()

    def push(self) -> None:
        """Make what stands in the folder the run that readers see, in one step.

        Raises
        ------
        StorageError
            If the store fails, or another run has written there since `pull`.
        """
        files, version = {}, new_version()
        old = self._manifest["files"]
        for name in self._names():
            digest = self._digest(name)
            if name in old and old[name]["sha256"] == digest:
                files[name] = old[name]
                continue
            files[name] = {
                "object": f"{VERSIONS}/{version}/{name}",
                "size": self._put(name, f"{VERSIONS}/{version}/{name}"),
                "sha256": digest,
            }
        if files != old:
            self._commit(files, version)
        self._publish()
        for folder in KEPT:
            self.keep(self.local / folder)
        self._sweep()

    def keep(self, folder: Path) -> None:
        """Put up what is new in a folder of checkpoints, then remove what is gone from it."""
        head = folder.relative_to(self.local).as_posix()
        here = {
            path.relative_to(self.local).as_posix(): _stamp(path)
            for path in folder.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        }
        for name, stamp in here.items():
            if self._kept.get(name) != stamp:  # new, or made again in the place of a damaged one
                self._put(name, name)
                self._kept[name] = stamp
        gone = [name for name in self._kept if name.startswith(f"{head}/") and name not in here]
        self.place.remove(gone)
        for name in gone:
            del self._kept[name]

    def _claim(self) -> None:
        """Refuse a folder that is not a copy of this run: what is not in it would be removed."""
        self.local.mkdir(parents=True, exist_ok=True)
        mark = self.local / MARK
        known = mark.read_text(encoding="utf-8").strip() if mark.is_file() else ""
        if known != self.place.url:
            if known or self._names():
                what = "is of another run than" if known else "holds other files than those of"
                found = (
                    f"{self.local}: {what} {self.place}; give another storage.scratch, and no "
                    "output.dir but the address"
                )
                raise StorageError(found)
            mark.write_text(f"{self.place.url}\n", encoding="utf-8")

    def _read_manifest(self) -> tuple[dict[str, Any], str]:
        where = self.place / MANIFEST
        for _ in range(5):
            before = where.info()
            if before is None:
                return {"id": "", "files": {}, "dropped": []}, ""
            with contextlib.suppress(FileNotFoundError):
                text = where.read()
                after = where.info()
                if after is not None and after.tag == before.tag:
                    return _parse(where, text), before.tag
        found = f"{where}: changes while it is read; wait until its writer has finished"
        raise StorageError(found)

    def _fetch(self, name: str, each: dict[str, Any]) -> None:
        path = self.local / name
        if path.is_file() and file_digest(path) == each["sha256"]:
            return
        source = self.place / each["object"]
        for _ in range(2):  # what was damaged on its way is fetched once more
            try:
                source.download(path)
            except FileNotFoundError as error:
                found = f"{source}: gone, and the manifest names it; {_AGAIN}"
                raise StorageError(found) from error
            if file_digest(path) == each["sha256"]:
                return
        path.unlink()
        found = f"{source}: damaged (its SHA-256 is not the manifest's); {_AGAIN}"
        raise StorageError(found)

    def _digest(self, name: str) -> str:
        path = self.local / name
        stamp = _stamp(path)
        if self._digests.get(name, ((0, 0), ""))[0] != stamp:
            self._digests[name] = (stamp, file_digest(path))
        return self._digests[name][1]

    def _names(self) -> list[str]:
        """Name the files of the folder that belong into the manifest."""
        # What is published from here, and what a watch has seen, are this machine's.
        apart = (*(f"{name}/" for name in (*STORES, *KEPT)), "published/", "work/seen.json")
        names = (p.relative_to(self.local) for p in self.local.rglob("*") if p.is_file())
        return sorted(
            name.as_posix()
            for name in names
            if not name.as_posix().startswith(apart)
            and not any(part.startswith(".") for part in name.parts)
        )

    def _put(self, name: str, key: str) -> int:
        path = self.local / name
        size = path.stat().st_size
        if size <= _BYTES_AT_ONCE:
            (self.place / key).write(path.read_bytes())
        else:
            (self.place / key).upload(path)
        return size

    def _commit(self, files: dict[str, Any], version: str) -> None:
        old = self._manifest
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "id": version,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "files": files,
            "dropped": sorted({*old["files"], *old["dropped"]} - set(files)),
        }
        where = self.place / MANIFEST
        try:
            where.write(json.dumps(manifest, indent=1).encode(), if_tag=self._tag)
        except FileExistsError as error:
            # The answer to an attempt that went well may have been lost.
            if self._read_manifest()[0]["id"] != version:
                found = (
                    f"{self.place}: another run has written here meanwhile; give this run another "
                    "output.dir, or run it again to go on from there"
                )
                raise StorageError(found) from error
        self._previous = old["files"]
        self._manifest, self._tag = self._read_manifest()

    def _publish(self) -> None:
        """Copy the manifest's files to their plain names, unless that has been done."""
        if not self._manifest["id"]:
            return
        mark = self.place / VERSIONS / "published.json"
        try:
            done = json.loads(mark.read())
        except (FileNotFoundError, ValueError):
            done = {}
        files = {k: v["object"] for k, v in self._manifest["files"].items() if "/" not in k}
        if done == files:
            return
        for name, key in files.items():
            if done.get(name) != key:
                (self.place / key).copy_to(self.place / name)
        self.place.remove(name for name in self._manifest["dropped"] if "/" not in name)
        mark.write(json.dumps(files, indent=1).encode())

    def _sweep(self) -> None:
        """Remove what no manifest has named for a while."""
        named = [*self._manifest["files"].values(), *self._previous.values()]
        used = {each["object"].partition("/")[2] for each in named}
        now = datetime.now(UTC)
        above = self.place / VERSIONS
        above.remove(
            name
            for name, each in above.list().items()
            if name not in used and "/" in name and each.written and now - each.written > GRACE
        )


@contextlib.contextmanager
def mirrored(local: Path, url: str | None, storage: Storage) -> Iterator[Mirror | None]:
    """Keep a folder and an address the same while a run goes on; nothing without an address."""
    if url is None:
        yield None
        return
    mirror = Mirror(local, Location(url, storage))
    mirror.pull()
    _open[local] = mirror
    try:
        yield mirror
    finally:
        del _open[local]


def keep(folder: Path) -> None:
    """Say that files of a folder must outlive this machine; nothing where the run is local."""
    for local, mirror in list(_open.items()):
        if folder.is_relative_to(local):
            mirror.keep(folder)


def _parse(where: Location, text: bytes) -> dict[str, Any]:
    try:
        manifest = dict(json.loads(text))
        if (manifest["format"], manifest["version"]) != (FORMAT, VERSION):
            found = f"{where}: not the manifest of a run that this version reads; give another dir"
            raise StoreError(found)
    except (ValueError, TypeError, KeyError) as error:
        found = f"{where}: damaged; {_AGAIN}"
        raise StorageError(found) from error
    return manifest


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


_AGAIN = "remove manifest.json there, and run again"
