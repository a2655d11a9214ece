"""What an http(s) address holds: its state, as its server tells it, and its bytes."""

from __future__ import annotations

import hashlib
import http.client
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from geo.core.web_errors import status_passes
from geo.core.web_request import web_request
from pipeline.storage.files import atomic_write
from pipeline.storage.location import (
    ChangedError,
    Storage,
    StorageError,
    StorageUnreachableError,
    changed_while_read,
)

Result = TypeVar("Result")

_CHUNK_BYTES = 1 << 20
_ABSENT = (404, 410)
_NO_HEAD = (400, 403, 405, 501)  # servers that answer GET alone, and signed addresses
_REFUSED = ("refused", 0)
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 20.0  # seconds


class NoPartsError(Exception):
    """A server sends files as a whole."""


def web_state(url: str, storage: Storage) -> str:
    """Return a text that changes with the content of a URL.

    It is the ETag with the length, or the time of the last change with the length. Of a server
    that gives neither, all bytes are read and hashed.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://``.
    storage : Storage
        Retries and timeout.

    Returns
    -------
    str
        ``"absent"`` if the server has no such file.

    Raises
    ------
    StorageError
        If the server cannot be reached, or refuses: it is then unknown whether the content changed.
    """
    said = web_said(url, storage)
    if said is None:
        return "absent"
    if said[0]:
        return said[0]

    def digest(reply: Any) -> str:
        found = hashlib.blake2b(digest_size=16)
        for chunk in _chunks(reply):
            found.update(chunk)
        return f"bytes {found.hexdigest()}"

    return _ask(url, "GET", storage, digest) or "absent"


def web_said(url: str, storage: Storage) -> tuple[str, int] | None:
    """Return what a server says of a URL, and its length; no content is read.

    Returns
    -------
    (str, int) or None
        ETag or time of the last change, with the length: "" where the server tells neither. A
        length that is not told is 0. None if there is no such file.
    """
    said = _ask(url, "HEAD", storage, lambda reply: _said(reply.headers))
    if said != _REFUSED:
        return said
    try:
        return _ask(url, "GET", storage, lambda reply: _said(reply.headers), _part(0, 1))
    except ChangedError:  # an empty file has no first byte
        return "", 0


def web_part(url: str, start: int, stop: int, state: str, storage: Storage) -> bytes:
    """Return bytes of a URL whose state is known.

    Raises
    ------
    NoPartsError
        If the server sends the whole file instead.
    StorageError
        If the state is another one by now, or the server cannot be reached.
    """

    def part(reply: Any) -> bytes:
        if _said(reply.headers)[0] != state:
            raise ChangedError
        if reply.status != http.client.PARTIAL_CONTENT:
            raise NoPartsError
        data: bytes = reply.read()
        if len(data) != stop - start:
            raise OSError(f"received {len(data)} bytes instead of {stop - start}")  # noqa: EM102
        return data

    return _unchanged(url, lambda: _ask(url, "GET", storage, part, _part(start, stop)))


def web_bytes(url: str, storage: Storage) -> bytes | None:
    """Return all bytes of a small file at a URL; None if there is no such file.

    Raises
    ------
    StorageError
        If the server cannot be reached.
    """
    return _ask(url, "GET", storage, lambda reply: b"".join(_chunks(reply)))


def web_download(url: str, path: Path, state: str, storage: Storage) -> None:
    """Download a URL, whose state is known, to a file atomically.

    Raises
    ------
    StorageError
        If the state is another one by now, or the server cannot be reached.
    """

    def save(reply: Any) -> bool:
        if not state.startswith("bytes") and _said(reply.headers)[0] != state:
            raise ChangedError
        with atomic_write(path, unique=True) as file:
            for chunk in _chunks(reply):
                file.write(chunk)
            # A server may send a part, and say so, where the whole was asked for.
            n_byte, whole = file.tell(), _said(reply.headers)[1]
            if whole and n_byte != whole:
                raise OSError(f"received {n_byte} bytes instead of {whole}")  # noqa: EM102
        return True

    _unchanged(url, lambda: _ask(url, "GET", storage, save))


def without_password(url: str) -> str:
    """Return a URL without user name, password and query."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


def _ask(
    url: str,
    method: str,
    storage: Storage,
    read: Callable[[Any], Result],
    headers: Mapping[str, str] | None = None,
) -> Result | None:
    """Send a request; repeat it where that may help; None if there is no such file."""
    shown, cause = without_password(url), ""
    for attempt in range(storage.retries + 1):
        try:
            request = web_request(url, method, {"Cache-Control": "no-cache", **(headers or {})})
            with urllib.request.urlopen(request, timeout=storage.timeout) as reply:
                return read(reply)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _ABSENT:
                return None
            if method == "HEAD" and error.code in _NO_HEAD:
                return _REFUSED  # type: ignore[return-value]
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise ChangedError from error
            cause = f"HTTP {error.code} {error.reason}"
            if not status_passes(error.code):
                found = f"{shown}: access denied or refused ({cause}); correct or renew the address"
                raise StorageError(found) from error
        except ValueError as error:
            msg = f"{shown}: no valid address ({error}); correct it"
            raise StorageError(msg) from error
        except (OSError, http.client.HTTPException) as error:  # refused, reset, timed out, cut off
            cause = str(getattr(error, "reason", error))
        if attempt < storage.retries:
            time.sleep(random.uniform(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2**attempt)))
    found = (
        f"{shown}: cannot be reached after {storage.retries + 1} attempts ({cause}); check the "
        "server and the network, then repeat the command: finished results are kept"
    )
    raise StorageUnreachableError(found)


def _unchanged(url: str, ask: Callable[[], Result | None]) -> Result:
    with suppress(ChangedError):
        found = ask()
        if found is not None:
            return found
    raise StorageError(changed_while_read(without_password(url)))


def _part(start: int, stop: int) -> dict[str, str]:
    return {"Range": f"bytes={start}-{stop - 1}"}


def _said(headers: Any) -> tuple[str, int]:
    """Return the state that the header of an answer tells, and the length of the whole file."""
    tag, changed = headers.get("ETag"), headers.get("Last-Modified")
    whole = str(headers.get("Content-Range") or "").rpartition("/")[2]
    length = whole or headers.get("Content-Length") or ""
    size = int(length) if length.isdecimal() else 0
    if tag:
        return f"etag {tag} {length}", size
    # A time alone is that of its second: with the length, a change within it is mostly seen.
    return (f"changed {changed} {length}" if changed and length else ""), size


def _chunks(reply: Any) -> Iterator[bytes]:
    n_byte = 0
    while chunk := reply.read(_CHUNK_BYTES):
        n_byte += len(chunk)
        yield chunk
    length = reply.headers.get("Content-Length")
    if length and int(length) != n_byte:
        raise OSError(f"received {n_byte} bytes instead of {length}")  # noqa: EM102
