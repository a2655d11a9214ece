"""Locations on object stores (``s3://bucket/key``, all schemes of fsspec), and their errors.

All retries happen here: every operation is idempotent, and is repeated with exponential back-off
and jitter. The libraries below retry only the parts of large uploads. A final failure raises
StorageError. Credentials come from the environment (``AWS_ACCESS_KEY_ID``, a profile, a role).
"""

from __future__ import annotations

import functools
import json
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pipeline.core.errors import StoreError
from pipeline.storage.files import atomic_write

Result = TypeVar("Result")

SCHEMES = ("s3", "s3a", "gs", "gcs", "abfs", "az", "memory")
# `Path` reduces two slashes to one.
_ADDRESS = re.compile(rf"^({'|'.join(SCHEMES)}):/{{1,2}}(?=[^/])")
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 20.0  # seconds
_CONNECT_SECONDS = 10.0
_PART_BYTES = 16 << 20
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs"}
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, NotImplementedError)
_LOG = logging.getLogger(__name__)


class StorageError(StoreError):
    """An object store is unreachable, denies access, or keeps failing; nothing is half-written."""


class StorageUnreachableError(StorageError):
    """All attempts failed: the object store may be available later."""


class _ChangedError(Exception):
    """An object changed while it was read."""


@dataclass(frozen=True)
class Storage:
    """Connection settings of object stores, from a configuration's ``storage``.

    ``Storage()`` has the defaults of the environment.

    Attributes
    ----------
    endpoint : str or None
        Address of an S3-compatible server; ``$AWS_ENDPOINT_URL`` by default.
    retries : int
        Number of retries after a failure.
    timeout : float
        Seconds without a byte after which an attempt has failed.
    scratch : str
        Directory of local copies; ``~/.cache/disagg`` if empty.
    """

    endpoint: str | None = None
    retries: int = 6
    timeout: float = 60.0
    scratch: str = ""

    @property
    def scratch_dir(self) -> Path:
        """Directory of local copies."""
        if self.scratch:
            return Path(self.scratch)
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "disagg"

    def place(self, path: str | os.PathLike[str] | Location) -> Place:
        """Resolve an address, a link file, or a local path."""
        if isinstance(path, Location):
            return path
        if is_object_address(path):
            return Location(str(path), self)
        local = Path(path)
        try:
            return Location(json.loads((local / LINK).read_text(encoding="utf-8"))["url"], self)
        except (FileNotFoundError, NotADirectoryError):
            return local


LINK = "at.json"
"""File that makes a local directory a link to a store on an object store."""


def is_object_address(path: object) -> bool:
    """Return whether this is an address on an object store."""
    return isinstance(path, Location) or bool(_ADDRESS.match(str(path)))


def absolute(path: str | Path) -> str:
    """Return the absolute path of a file, or an address as it is: others have another directory."""
    return str(Location(str(path))) if is_object_address(path) else str(Path(path).resolve())


@dataclass(frozen=True)
class ObjectInfo:
    """An object: size in bytes, ETag (changes with the content), and time of writing."""

    size: int
    tag: str
    written: datetime | None


@dataclass(frozen=True)
class Location:
    """An object, or a prefix; picklable, with its connection settings.

    Parameters
    ----------
    url : str
        ``s3://bucket/key``.
    storage : Storage
        Connection settings; the environment's by default.

    Raises
    ------
    StorageError
        From every method, if the store fails for good.
    """

    url: str
    storage: Storage = field(default_factory=Storage)

    def __post_init__(self) -> None:
        whole = _ADDRESS.sub(r"\1://", self.url).rstrip("/")
        object.__setattr__(self, "url", whole)

    def __truediv__(self, name: str) -> Location:
        """Return the location of a name under this prefix."""
        return Location(f"{self.url}/{name}", self.storage) if name else self

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rsplit("/", 1)[-1]

    @property
    def parent(self) -> Location:
        """The prefix of this location."""
        return Location(self.url.rsplit("/", 1)[0], self.storage)

    def read(self, start: int | None = None, stop: int | None = None) -> bytes:
        """Return the object's bytes, or ``start:stop`` of them; ``start`` may be negative.

        Raises
        ------
        FileNotFoundError
            If there is none.
        """
        expected = None if start is None or (stop is None and start >= 0) else (stop or 0) - start

        def read() -> bytes:
            data: bytes = self._fs().cat_file(self._key, start=start, end=stop)
            if expected is not None and len(data) != expected:
                found = f"received {len(data)} bytes instead of {expected}"
                raise OSError(found)
            return data

        return self._try("read", read)

    def write(self, data: bytes, *, if_tag: str | None = None) -> None:
        """Put an object atomically.

        Parameters
        ----------
        data : bytes
        if_tag : str, optional
            Put only if the object has this ETag ("": if it is absent), if the store can check it.

        Raises
        ------
        FileExistsError
            If the object has another ETag.
        """
        condition: dict[str, str] = {}
        if if_tag is not None and self.url.startswith("s3"):
            condition = {"IfMatch": if_tag} if if_tag else {"IfNoneMatch": "*"}

        def write() -> None:
            try:
                self._fs().pipe_file(self._key, data, **condition)
            except Exception as error:
                if condition and _code(error) in ("NotImplemented", "InvalidArgument", "501"):
                    condition.clear()  # the store does not support conditions
                    self._fs().pipe_file(self._key, data)
                    return
                if _code(error) in ("PreconditionFailed", "ConditionalRequestConflict"):
                    raise FileExistsError(str(error)) from error
                raise

        self._try("written", write)

    def upload(self, path: Path) -> None:
        """Put a file atomically, in parts if it is large."""
        self._try("written", lambda: self._fs(parts=True).put_file(str(path), self._key))

    def download(self, path: Path) -> ObjectInfo:
        """Download an object atomically, in parts if it is large.

        Raises
        ------
        FileNotFoundError
            If there is none.
        """
        for _ in range(3):
            before = self.info()
            if before is None:
                raise FileNotFoundError(self.url)
            with suppress(_ChangedError), atomic_write(path, unique=True) as file:
                for start in range(0, before.size, _PART_BYTES):
                    stop = min(start + _PART_BYTES, before.size)
                    file.write(self.read(start, stop))
                if not self._same(before):  # do not mix parts of two versions
                    raise _ChangedError
                return before
        found = f"{self.url}: changed during the download; wait until its writer has finished"
        raise StorageError(found)

    def info(self) -> ObjectInfo | None:
        """Return size, ETag and time; None if there is no such object."""
        try:
            found = self._try("looked up", lambda: self._fs().info(self._key))
        except FileNotFoundError:
            return None
        return _info(found) if found["type"] == "file" else None

    def list(self) -> dict[str, ObjectInfo]:
        """Return all objects under this prefix, by relative name."""

        def find() -> dict[str, Any]:
            # Without the slash, "map" would find the objects of "map-2".
            try:
                return dict(self._fs().find(f"{self._key}/", detail=True))
            except FileNotFoundError:
                return {}

        found = self._try("listed", find)
        base = len(self._key.strip("/")) + 1
        return {
            name.strip("/")[base:]: _info(each)
            for name, each in sorted(found.items())
            if each["type"] == "file" and len(name.strip("/")) > base
        }

    def children(self) -> tuple[str, ...]:
        """Return the names of objects and prefixes directly under this prefix."""

        def names() -> tuple[str, ...]:
            try:
                return tuple(self._fs().ls(f"{self._key}/", detail=False))
            except FileNotFoundError:
                return ()

        found = {name.strip("/") for name in self._try("listed", names)}
        return tuple(sorted(name.rsplit("/", 1)[-1] for name in found - {self._key.strip("/")}))

    def copy_to(self, other: Location) -> None:
        """Copy an object within the store."""
        self._try("copied", lambda: self._fs(parts=True).cp_file(self._key, other._key))

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects under this prefix; ignore absent ones."""
        keys = [f"{self._key}/{name}" for name in names]

        def remove() -> None:
            with suppress(FileNotFoundError):
                self._fs().rm(keys)

        if keys:
            self._try("removed", remove)

    def _same(self, before: ObjectInfo) -> bool:
        now = self.info()
        return now is not None and (now.size, now.tag) == (before.size, before.tag)

    @property
    def _key(self) -> str:
        return self.url.partition("://")[2]

    def _fs(self, *, parts: bool = False) -> Any:
        # Read at each call: the environment may change after the first file system was made.
        server = self.storage.endpoint or os.environ.get("AWS_ENDPOINT_URL")
        scheme = self.url.partition("://")[0]
        return _filesystem(scheme, replace(self.storage, endpoint=server or None), parts)

    def _try(self, done: str, call: Callable[[], Result]) -> Result:
        """Call until it succeeds or fails for good; full jitter spreads the workers' retries."""
        began = time.monotonic()
        for attempt in range(self.storage.retries + 1):
            try:
                return call()
            except _FINAL as error:
                if isinstance(error, PermissionError):
                    found = f"{self.url}: access denied ({_cause(error)}); {_GRANT}"
                    raise StorageError(found) from error
                if done == "written" and isinstance(error, FileNotFoundError):
                    found = f"{self.url}: no such bucket; create it, or correct the address"
                    raise StorageError(found) from error
                raise
            except Exception as error:
                self._raise_if_final(error)
                if attempt == self.storage.retries:
                    seconds = time.monotonic() - began
                    found = (
                        f"{self.url}: cannot be {done} after {attempt + 1} attempts in "
                        f"{seconds:.0f} s ({_cause(error)}); {_RETRY}"
                    )
                    raise StorageUnreachableError(found) from error
                _LOG.info("%s: not %s (%s), trying again", self.url, done, _cause(error))
                wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2**attempt)
                time.sleep(random.uniform(0, wait))
        raise AssertionError  # the loop returns or raises

    def _raise_if_final(self, error: Exception) -> None:
        """Raise StorageError if a retry cannot help."""
        if isinstance(error, StorageError):
            raise error
        kind = type(error).__name__
        if kind in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
            found = f"{self.url}: no credentials were found; {_GRANT}"
        elif kind in ("ParamValidationError", "InvalidRegionError") or isinstance(
            error, ValueError | TypeError
        ):
            found = f"{self.url}: no valid address ({_cause(error)}); correct it"
        else:
            return
        raise StorageError(found) from error


Place = Path | Location

_GRANT = "set credentials with read and write access (AWS_ACCESS_KEY_ID, a profile or a role)"
_RETRY = (
    "check the object store and the network, then repeat the command: finished results are kept"
)


def _cause(error: BaseException) -> str:
    """Return an error's first line, for use in a message."""
    line = (str(error).strip().splitlines() or [""])[0].replace("; ", ", ")
    return line[:200] or type(error).__name__


def _code(error: BaseException) -> str:
    """Return the store's error code, or ""."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    return ""


def _info(found: dict[str, Any]) -> ObjectInfo:
    written = found.get("LastModified") or found.get("updated") or found.get("created")
    tag = str(found.get("ETag") or found.get("etag") or written or "")
    return ObjectInfo(
        int(found["size"]), tag.strip('"'), written if isinstance(written, datetime) else None
    )


@functools.cache
def _filesystem(scheme: str, storage: Storage, parts: bool) -> Any:
    """Return the file system of a scheme, created once a process."""
    import fsspec

    settings: dict[str, Any] = {"use_listings_cache": False}
    if scheme in ("s3", "s3a"):
        settings |= {
            "endpoint_url": storage.endpoint,
            "config_kwargs": {
                "connect_timeout": min(storage.timeout, _CONNECT_SECONDS),
                "read_timeout": storage.timeout,
                # Only parts of large uploads are retried here; `_try` retries all else.
                "retries": {"mode": "standard", "total_max_attempts": 4 if parts else 1},
                "max_pool_connections": 32,
            },
            "max_concurrency": 4 if parts else 1,
            "skip_instance_cache": True,
        }
    try:
        made = fsspec.filesystem(scheme, **settings)
    except ImportError as error:
        package = _PACKAGES.get(scheme, "its fsspec package")
        found = f"{scheme}://: no support for this scheme; install {package}"
        raise StorageError(found) from error
    if scheme in ("s3", "s3a"):
        made.retries = 1
    return made


_REMOTE = re.compile(r"^(/vsi|netcdf:|[A-Za-z][A-Za-z0-9+.-]*://|[A-Z][A-Z0-9_]+:)")


def is_remote(path: str) -> bool:
    """Return whether a path is a URL or a virtual path of GDAL, not a local file."""
    return bool(_REMOTE.match(path))
