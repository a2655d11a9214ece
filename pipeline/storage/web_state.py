"""The state of what an http(s) address holds: what its server says of it, or its bytes."""

from __future__ import annotations

import base64
import hashlib
import random
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from geo.web_errors import status_passes
from pipeline.storage.location import Storage, StorageError, StorageUnreachableError

_CHUNK_BYTES = 1 << 20
_ABSENT = (404, 410)
_NO_HEAD = (400, 403, 405, 501)  # servers that answer GET alone
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 20.0  # seconds


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
    said = _ask(url, "HEAD", storage)
    if said is None:
        return "absent"
    tag, changed, length = (said.get(key, "") for key in ("ETag", "Last-Modified", "length"))
    if tag:
        return f"etag {tag} {length}"
    # A time alone is that of its second: with the length, a change within it is mostly seen.
    if changed and length:
        return f"changed {changed} {length}"
    said = _ask(url, "GET", storage)
    return "absent" if said is None else f"bytes {said['digest']}"


def _ask(url: str, method: str, storage: Storage) -> dict[str, str] | None:
    """Send a request; repeat it where that may help; None if there is no such file."""
    shown, cause = _without_password(url), ""
    for attempt in range(storage.retries + 1):
        try:
            with urllib.request.urlopen(_request(url, method), timeout=storage.timeout) as reply:
                return _read(reply, method)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _ABSENT:
                return None
            if method == "HEAD" and error.code in _NO_HEAD:
                return {}
            cause = f"HTTP {error.code} {error.reason}"
            if not status_passes(error.code):
                found = f"{shown}: access denied or refused ({cause}); correct the address"
                raise StorageError(found) from error
        except ValueError as error:
            msg = f"{shown}: no valid address ({error}); correct it"
            raise StorageError(msg) from error
        except OSError as error:  # refused, reset, timed out, no such host
            cause = str(getattr(error, "reason", error))
        if attempt < storage.retries:
            time.sleep(random.uniform(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2**attempt)))
    found = (
        f"{shown}: cannot be reached after {storage.retries + 1} attempts ({cause}); check the "
        "server and the network, then repeat the command: finished results are kept"
    )
    raise StorageUnreachableError(found)


def _read(reply: Any, method: str) -> dict[str, str]:
    if method == "HEAD":
        said = {key: reply.headers.get(key) or "" for key in ("ETag", "Last-Modified")}
        return {**said, "length": reply.headers.get("Content-Length") or ""}
    digest, n_byte = hashlib.blake2b(digest_size=16), 0
    while chunk := reply.read(_CHUNK_BYTES):
        digest.update(chunk)
        n_byte += len(chunk)
    length = reply.headers.get("Content-Length")
    if length and int(length) != n_byte:
        raise OSError(f"received {n_byte} bytes instead of {length}")  # noqa: EM102
    return {"digest": digest.hexdigest()}


def _request(url: str, method: str) -> urllib.request.Request:
    parts = urlsplit(url)
    headers = {"User-Agent": "disagg", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}
    if "@" in parts.netloc:
        login, _, host = parts.netloc.rpartition("@")
        headers["Authorization"] = "Basic " + base64.b64encode(unquote(login).encode()).decode()
        url = urlunsplit(parts._replace(netloc=host))
    return urllib.request.Request(url, headers=headers, method=method)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
