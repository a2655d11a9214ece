"""Places on object stores (``s3://bucket/key``, whatever fsspec reaches), and their failures.

One layer tries again: every operation here is whole, may be repeated, and is repeated with a random
wait that doubles, until it has succeeded or failed for good. Below it nothing retries by itself,
but for the parts of large uploads. What fails for good is a `StorageError`: one clear line.
Credentials are the environment's (``AWS_ACCESS_KEY_ID``, a profile, a role), never ours.
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
from pipeline.storage.files import whole_file

Result = TypeVar("Result")

SCHEMES = ("s3", "s3a", "gs", "gcs", "abfs", "az", "memory")
# One slash is what `Path` leaves of two.
_ADDRESS = re.compile(rf"^({'|'.join(SCHEMES)}):/{{1,2}}(?=[^/])")
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 20.0  # seconds
_CONNECT_SECONDS = 10.0
_PART_BYTES = 16 << 20
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs"}
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, NotImplementedError)
_LOG = logging.getLogger(__name__)


class StorageError(StoreError):
    """An object store cannot be reached, refuses, or goes on failing; nothing is half-written."""


class StorageUnreachableError(StorageError):
    """An object store went on failing through all attempts: it may be back later."""


class _ChangedError(Exception):
    """An object changed while it was read."""


@dataclass(frozen=True)
class Storage:
    """How object stores are spoken to; made of a configuration's ``storage`` and passed down.

    ``Storage()`` has the environment's defaults, for those who have no configuration.

    Attributes
    ----------
    endpoint : str or None
        Address of a store that is not the provider's own; ``$AWS_ENDPOINT_URL`` where not given.
    retries : int
        Further attempts after a failed one.
    timeout : float
        Seconds without a byte after which an attempt has failed.
    scratch : str
        Local directory of copies; ``~/.cache/disagg`` where empty.
    """

    endpoint: str | None = None
    retries: int = 6
    timeout: float = 60.0
    scratch: str = ""

    @property
    def scratch_dir(self) -> Path:
        """Where copies of what lies on object stores are kept."""
        if self.scratch:
            return Path(self.scratch)
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "disagg"

    def place(self, path: str | os.PathLike[str] | Location) -> Place:
        """Say where something lies: an address, what a link leads to, or the local path."""
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
"""In a local directory: it stands for a store elsewhere, as a symbolic link would."""


def is_object_address(path: object) -> bool:
    """Tell whether this is the address of something on an object store."""
    return isinstance(path, Location) or bool(_ADDRESS.match(str(path)))


@dataclass(frozen=True)
class ObjectInfo:
    """An object: its size in bytes, its tag (changes with the content), and when it was written."""

    size: int
    tag: str
    written: datetime | None


@dataclass(frozen=True)
class Location:
    """An object, or all objects under a prefix; small, and pickled to workers with its storage.

    Parameters
    ----------
    url : str
        ``s3://bucket/key``.
    storage : Storage
        How its store is spoken to; by default as the environment says.

    Raises
    ------
    StorageError
        From every method: what the store answered, where, and what to do.
    """

    url: str
    storage: Storage = field(default_factory=Storage)

    def __post_init__(self) -> None:
        whole = _ADDRESS.sub(r"\1://", self.url).rstrip("/")
        object.__setattr__(self, "url", whole)

    def __truediv__(self, name: str) -> Location:
        """Return what lies below."""
        return Location(f"{self.url}/{name}", self.storage) if name else self

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """Last part of the address."""
        return self.url.rsplit("/", 1)[-1]

    @property
    def parent(self) -> Location:
        """The prefix that this lies under."""
        return Location(self.url.rsplit("/", 1)[0], self.storage)

    def read(self, start: int | None = None, stop: int | None = None) -> bytes:
        """Return the object's bytes, or all of ``start:stop``; the last ones where ``start < 0``.

        Raises
        ------
        FileNotFoundError
            If there is none.
        """
        due = None if start is None or (stop is None and start >= 0) else (stop or 0) - start

        def read() -> bytes:
            data: bytes = self._fs().cat_file(self._key, start=start, end=stop)
            if due is not None and len(data) != due:  # a short answer is no answer
                found = f"{len(data)} bytes where {due} were asked for"
                raise OSError(found)
            return data

        return self._try("read", read)

    def write(self, data: bytes, *, if_tag: str | None = None) -> None:
        """Put an object: readers see the old one or the new one, never a part.

        Parameters
        ----------
        data : bytes
        if_tag : str, optional
            Put it only where an object of this tag stands ("": none stands), on stores that can.

        Raises
        ------
        FileExistsError
            If another stands there.
        """
        condition: dict[str, str] = {}
        if if_tag is not None and self.url.startswith("s3"):
            condition = {"IfMatch": if_tag} if if_tag else {"IfNoneMatch": "*"}

        def write() -> None:
            try:
                self._fs().pipe_file(self._key, data, **condition)
            except Exception as error:
                if condition and _code(error) in ("NotImplemented", "InvalidArgument", "501"):
                    condition.clear()  # a store that knows no conditions
                    self._fs().pipe_file(self._key, data)
                    return
                if _code(error) in ("PreconditionFailed", "ConditionalRequestConflict"):
                    raise FileExistsError(str(error)) from error
                raise

        self._try("written", write)

    def upload(self, path: Path) -> None:
        """Put a file of any size, by parts where it is large; it appears when complete."""
        self._try("written", lambda: self._fs(parts=True).put_file(str(path), self._key))

    def download(self, path: Path) -> ObjectInfo:
        """Get an object of any size into a file that appears when complete.

        Raises
        ------
        FileNotFoundError
            If there is none.
        """
        for _ in range(3):
            before = self.info()
            if before is None:
                raise FileNotFoundError(self.url)
            with suppress(_ChangedError), whole_file(path, unique=True) as file:
                for start in range(0, before.size, _PART_BYTES):
                    stop = min(start + _PART_BYTES, before.size)
                    file.write(self.read(start, stop))
                if not self._same(before):  # parts of two versions make no file
                    raise _ChangedError
                return before
        found = f"{self.url}: changes while it is read; wait until its writer has finished"
        raise StorageError(found)

    def info(self) -> ObjectInfo | None:
        """Return size, tag and date; None where there is no such object."""
        try:
            found = self._try("looked up", lambda: self._fs().info(self._key))
        except FileNotFoundError:
            return None
        return _info(found) if found["type"] == "file" else None

    def list(self) -> dict[str, ObjectInfo]:
        """Return all objects under this prefix, by their name relative to it."""

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
        """Name what lies directly under this prefix: objects, and prefixes of others."""

        def names() -> tuple[str, ...]:
            try:
                return tuple(self._fs().ls(f"{self._key}/", detail=False))
            except FileNotFoundError:
                return ()

        found = {name.strip("/") for name in self._try("listed", names)}
        return tuple(sorted(name.rsplit("/", 1)[-1] for name in found - {self._key.strip("/")}))

    def copy_to(self, other: Location) -> None:
        """Copy one object inside the store."""
        self._try("copied", lambda: self._fs(parts=True).cp_file(self._key, other._key))

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects under this prefix; those that are not there are no error."""
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
        # The environment is asked now, and not when the first file system was made.
        server = self.storage.endpoint or os.environ.get("AWS_ENDPOINT_URL")
        scheme = self.url.partition("://")[0]
        return _filesystem(scheme, replace(self.storage, endpoint=server or None), parts)

    def _try(self, done: str, call: Callable[[], Result]) -> Result:
        """Call until it succeeds or fails for good: full jitter, so that workers do not meet."""
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
                self._give_up_on(error)
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

    def _give_up_on(self, error: Exception) -> None:
        """Raise for what another attempt cannot mend."""
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

_GRANT = "give credentials that may read and write there (AWS_ACCESS_KEY_ID, a profile or a role)"
_RETRY = (
    "look after the object store or the network, then run the same command again: what is "
    "finished is kept"
)


def _cause(error: BaseException) -> str:
    """Return what happened on one line that can stand inside a message."""
    said = (str(error).strip().splitlines() or [""])[0].replace("; ", ", ")
    return said[:200] or type(error).__name__


def _code(error: BaseException) -> str:
    """Return what the store itself called its error, "" where it said nothing."""
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
    """Make the file system of a kind of store, once a process."""
    import fsspec

    settings: dict[str, Any] = {"use_listings_cache": False}
    if scheme in ("s3", "s3a"):
        settings |= {
            "endpoint_url": storage.endpoint,
            "config_kwargs": {
                "connect_timeout": min(storage.timeout, _CONNECT_SECONDS),
                "read_timeout": storage.timeout,
                # A part of a large upload fails by itself; else one layer counts the attempts.
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
        found = f"{scheme}://: not known here; install {package}"
        raise StorageError(found) from error
    if scheme in ("s3", "s3a"):
        made.retries = 1
    return made


_REMOTE = re.compile(r"^(/vsi|[A-Za-z][A-Za-z0-9+.-]*://|[A-Z][A-Z0-9_]+:)")


def is_remote(path: str) -> bool:
    """Tell whether a path is a URL or one of GDAL's virtual paths, not a local file."""
    return bool(_REMOTE.match(path))
