"""Locations on object stores (``s3://bucket/key``, all schemes of fsspec), and their errors.

All retries happen here: every operation is idempotent, and is repeated with exponential back-off
and jitter. The libraries below retry only the parts of large uploads. A final failure raises
StorageError. Credentials come from the environment (``AWS_ACCESS_KEY_ID``, a profile, a role).
"""

from __future__ import annotations

import errno
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
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pipeline.core.errors import StoreError
from pipeline.core.sources import cache_dir
from pipeline.storage.files import atomic_write
from pipeline.storage.object_info import ObjectInfo, object_info

Result = TypeVar("Result")

SCHEMES = ("s3", "s3a", "gs", "gcs", "abfs", "az", "memory")
# `Path` reduces two slashes to one.
_ADDRESS = re.compile(rf"^({'|'.join(SCHEMES)}):/{{1,2}}(?=[^/])")
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 20.0  # seconds
_CONNECT_SECONDS = 10.0
PART_BYTES, _BYTES_AT_ONCE = 16 << 20, 32 << 20
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs"}
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, NotImplementedError)
#: What a store answers if an object has another ETag than asked for, or has become shorter.
_CHANGED = ("PreconditionFailed", "412", "InvalidRange", "416")
_LOG = logging.getLogger(__name__)


class StorageError(StoreError):
    """An object store is unreachable, denies access, or keeps failing; nothing is half-written."""


class StorageUnreachableError(StorageError):
    """All attempts failed: the object store may be available later."""


class ChangedError(Exception):
    """An object changed while it was read."""


def changed_while_read(address: str) -> str:
    """Return the message of an address whose content changed between two of its parts."""
    return f"{address}: changed while it was read; wait until its writer has finished, then repeat"


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
        return cache_dir()

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

    def read_of(self, tag: str, start: int, stop: int) -> bytes:
        """Return the bytes ``start:stop`` of the object that has an ETag.

        Raises
        ------
        StorageError
            If it has another one by now, or is gone.
        """
        from fsspec.asyn import sync

        def read() -> bytes:
            fs = self._fs()
            if not self.url.startswith("s3"):  # no conditions
                data, now = fs.cat_file(self._key, start=start, end=stop), self.info()
                found = "" if now is None else now.tag
            else:
                try:
                    data, found = sync(fs.loop, _s3_part, fs, self._key, tag, start, stop)
                except Exception as error:
                    if _code(error) in _CHANGED:
                        raise FileNotFoundError(self.url) from error
                    raise
            if found != tag:
                raise FileNotFoundError(self.url)
            if len(data) != stop - start:
                message = f"received {len(data)} bytes instead of {stop - start}"
                raise OSError(message)
            return bytes(data)

        try:
            return self._try("read", read)
        except FileNotFoundError as error:
            raise StorageError(changed_while_read(self.url)) from error

    def write(self, data: bytes, *, if_tag: str | None = None, required: bool = False) -> None:
        """Put an object atomically.

        Parameters
        ----------
        data : bytes
        if_tag : str, optional
            Put only if the object has this ETag ("": if it is absent), if the store can check it.
        required : bool
            Raise StorageError if the store cannot check it.

        Raises
        ------
        FileExistsError
            If the object has another ETag, or is gone.
        """
        condition: dict[str, str] = {}
        if if_tag is not None and self.url.startswith("s3"):
            condition = {"IfMatch": if_tag} if if_tag else {"IfNoneMatch": "*"}
        unable = f"{self.url}: the store refuses conditional writes; {CONDITIONS}"
        if required and not condition:
            raise StorageError(unable)

        def write() -> None:
            try:
                self._fs().pipe_file(self._key, data, **condition)
            except Exception as error:
                code = _code(error)
                if condition and code in ("NotImplemented", "InvalidArgument", "501"):
                    if required:
                        raise StorageError(unable) from error
                    condition.clear()  # the store does not support conditions
                    self._fs().pipe_file(self._key, data)
                    return
                if code in ("PreconditionFailed", "ConditionalRequestConflict") or (
                    if_tag and isinstance(error, FileNotFoundError)
                ):
                    raise FileExistsError(str(error)) from error
                raise

        self._try("written", write)

    def put(self, path: Path) -> int:
        """Put a file atomically, in parts if it is large; return its size in bytes."""
        size = path.stat().st_size
        if size <= _BYTES_AT_ONCE:
            self.write(path.read_bytes())
        else:
            self._try("written", lambda: self._fs(parts=True).put_file(str(path), self._key))
        return size

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
            with suppress(ChangedError), atomic_write(path, unique=True) as file:
                for start in range(0, before.size, PART_BYTES):
                    stop = min(start + PART_BYTES, before.size)
                    file.write(self.read(start, stop))
                if not self._same(before):  # do not mix parts of two versions
                    raise ChangedError
                return before
        raise StorageError(changed_while_read(self.url))

    def info(self) -> ObjectInfo | None:
        """Return size, ETag and time; None if there is no such object."""

        def look() -> Any:
            try:
                return self._fs().info(self._key)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    # An answer without a body tells no reason, such as an expired credential.
                    self._fs().cat_file(self._key, start=0, end=1)
                raise

        try:
            found = self._try("looked up", look)
        except FileNotFoundError:
            return None
        return object_info(found) if found["type"] == "file" else None

    def list(self, start: str = "") -> dict[str, ObjectInfo]:
        """Return all objects under this prefix whose relative name has a start, by this name."""

        def find() -> dict[str, Any]:
            # Without the slash, "map" would find the objects of "map-2".
            try:
                return dict(self._fs().find(f"{self._key}/", detail=True, prefix=start))
            except FileNotFoundError:
                return {}

        found = self._try("listed", find)
        base = len(self._key.strip("/")) + 1
        return {
            name.strip("/")[base:]: object_info(each)
            for name, each in sorted(found.items())
            if each["type"] == "file"
            and len(name.strip("/")) > base
            and name.strip("/")[base:].startswith(start)
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

    @property
    def _server(self) -> str | None:
        # Read at each call: the environment may change after the first file system was made.
        return self.storage.endpoint or os.environ.get("AWS_ENDPOINT_URL") or None

    @property
    def _host(self) -> str:
        return urlsplit(self._server or "").netloc.rpartition("@")[2]

    def _fs(self, *, parts: bool = False) -> Any:
        scheme = self.url.partition("://")[0]
        return _filesystem(scheme, replace(self.storage, endpoint=self._server), parts)

    def _try(self, done: str, call: Callable[[], Result]) -> Result:
        """Call until it succeeds or fails for good; full jitter spreads the workers' retries."""
        began = time.monotonic()
        for attempt in range(self.storage.retries + 1):
            try:
                return call()
            except _FINAL as error:
                if isinstance(error, PermissionError):
                    at = f" by {self._host}" if self._host else ""
                    remedy = _GRANT if "expired" not in str(error) else _RENEW
                    found = f"{self.url}: access denied{at} ({_cause(error)}); {remedy}"
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
_RENEW = "renew the credentials (log in again, or ask for a new token), then repeat the command"
CONDITIONS = (
    "give a local directory, or an s3:// address of a store that honours If-Match and "
    "If-None-Match of PUT (Amazon S3, MinIO, Ceph, R2)"
)
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


async def _s3_part(fs: Any, key: str, tag: str, start: int, stop: int) -> tuple[bytes, str]:
    bucket, name, _ = fs.split_path(key)
    found = await fs._call_s3(
        "get_object", Bucket=bucket, Key=name, Range=f"bytes={start}-{stop - 1}", IfMatch=f'"{tag}"'
    )
    async with found["Body"] as body:
        return await body.read(), str(found["ETag"]).strip('"')


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
