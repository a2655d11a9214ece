"""A DHIS2 server: requests to its Web API, repeated where that may help.

The login is read from the environment for each command, and is in no file, log or message.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from geo.core.errors import InputError, Problem
from geo.core.text_safety import one_line_text
from geo.core.web_errors import status_passes
from geo.core.web_request import web_request
from pipeline.config.dhis2_schema import PASSWORD, TOKEN, USER

BYTES_MAX = 1 << 30
PAGE_SIZE = 1000
#: Items of a request that lists identifiers: its address has to stay below servers' 8 KiB.
LISTED = 200
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0  # seconds
_LOCAL = ("localhost", "127.0.0.1", "::1")

Query = Sequence[tuple[str, str]]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would turn a POST into a GET, and a missing login into a page of HTML."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


class RefusedError(InputError):
    """The server refused a request.

    Attributes
    ----------
    status : int
    body : Any
        Its answer, where it was JSON; else None.
    """

    def __init__(self, problem: Problem, status: int, body: Any) -> None:
        super().__init__(problem)
        self.status, self.body = status, body


@dataclass(frozen=True)
class Server:
    """A server, and how long to wait for it.

    Parameters
    ----------
    url : str
        Without ``/api``.
    retries : int
        After a failure that may pass: 429, 5xx, a connection that breaks off, no answer.
    timeout : float
        Seconds without data.

    Waits before a retry double, unless the server says how long (Retry-After).
    """

    url: str
    retries: int = 6
    timeout: float = 60.0

    @property
    def open_login(self) -> bool:
        """Whether the login goes over the network as plain text."""
        parts = urlsplit(self.url)
        return parts.scheme == "http" and parts.hostname not in _LOCAL

    def get(self, resource: str, query: Query = ()) -> Any:
        """Return the JSON of a resource, such as ``analytics.json``."""
        return self._ask(resource, query)

    def pages(self, resource: str, key: str, query: Query = ()) -> Iterator[Any]:
        """Yield the items of a resource that comes in pages."""
        page, n_page = 1, 1
        while page <= n_page:
            numbers = [("page", str(page)), ("pageSize", str(PAGE_SIZE))]
            answer = self._ask(resource, [*query, *numbers])
            yield from _part(answer, key, self._place(resource))
            pager = answer.get("pager") or {}
            n_page, page = int(pager.get("pageCount", 1)), page + 1

    def post(self, resource: str, query: Query, value: Any) -> Any:
        """Send JSON, and return the answer, of a conflict (409) too."""
        try:
            return self._ask(resource, query, json.dumps(value).encode())
        except RefusedError as refused:
            if refused.status == http.client.CONFLICT and isinstance(refused.body, Mapping):
                return refused.body
            raise

    def version(self) -> str:
        """Return the server's version."""
        return str(self.get("system/info.json").get("version", "unknown"))

    def _place(self, resource: str) -> str:
        return f"{self.url}/api/{resource}"

    def _ask(self, resource: str, query: Query, body: bytes | None = None) -> Any:
        place, wait, login = self._place(resource), 0.0, _login()
        address = f"{place}?{urlencode(query)}" if query else place
        for attempt in range(self.retries + 1):
            request = web_request(
                address,
                "GET" if body is None else "POST",
                {"Accept": "application/json, */*;q=0.1"},
            )
            request.add_unredirected_header("Authorization", login)
            if body is not None:
                request.data = body
                request.add_header("Content-Type", "application/json")
            try:
                text = _reply(request, self.timeout)
            except urllib.error.HTTPError as error:
                with error:
                    said, wait = _answer(error), _retry_after(error)
                if not status_passes(error.code):
                    raise _refusal(place, error, said) from None
                cause = f"HTTP {error.code}"
            except (OSError, http.client.HTTPException) as error:
                cause, wait = str(getattr(error, "reason", error)) or type(error).__name__, 0.0
            else:
                return _json(text, place)
            if attempt < self.retries:
                doubled = min(_LONGEST_WAIT, _FIRST_WAIT * 2**attempt)
                time.sleep(wait or random.uniform(doubled / 2, doubled))
        found = f"cannot be reached after {self.retries + 1} attempts ({cause})"
        remedy = "check the server and the network, then repeat the command"
        raise InputError(Problem(place, found, remedy, transient=True))


def _reply(request: urllib.request.Request, timeout: float) -> bytes:
    with _OPENER.open(request, timeout=timeout) as reply:
        text: bytes = reply.read(BYTES_MAX + 1)
        if reply.length and len(text) <= BYTES_MAX:  # read(n) does not say so
            raise http.client.IncompleteRead(text, reply.length)
        return text


def _login() -> str:
    """Return the header of the login in the environment."""
    token, user, password = (os.environ.get(name, "") for name in (TOKEN, USER, PASSWORD))
    if token:
        return f"ApiToken {token}"
    if user and password:
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    remedy = f"set {TOKEN}, or {USER} and {PASSWORD}"
    raise InputError(Problem("dhis2.url", "no login in the environment", remedy))


def _part(answer: Any, key: str, place: str) -> list[Any]:
    found = answer.get(key) if isinstance(answer, Mapping) else None
    if not isinstance(found, list):
        raise InputError(Problem(place, f"has no list {key!r}", "check dhis2.url"))
    return found


def _json(text: bytes, place: str) -> Any:
    if len(text) > BYTES_MAX:
        remedy = "ask for fewer periods at a time"
        raise InputError(Problem(place, f"has more than {BYTES_MAX:,} bytes", remedy))
    try:
        return json.loads(text)
    except ValueError:
        raise InputError(Problem(place, "answered without JSON", "check dhis2.url")) from None


def _answer(error: urllib.error.HTTPError) -> Any:
    try:
        return json.loads(error.read(1 << 24))
    except (OSError, ValueError, http.client.HTTPException):
        return None


def _retry_after(error: urllib.error.HTTPError) -> float:
    said = str(error.headers.get("Retry-After") or "")
    return min(float(said), _LONGEST_WAIT) if said.isdecimal() else 0.0


def _refusal(place: str, error: urllib.error.HTTPError, said: Any) -> RefusedError:
    status, text = error.code, str(said.get("message", "")) if isinstance(said, Mapping) else ""
    code = f" {said['errorCode']}" if isinstance(said, Mapping) and said.get("errorCode") else ""
    found = f"HTTP {status}{code}" + (f": {one_line_text(text)[:300]}" if text else "")
    remedy = "correct what the server says"
    if status == http.client.UNAUTHORIZED:
        found, remedy = (
            f"the login is refused ({found})",
            f"renew {TOKEN}, or {USER} and {PASSWORD}",
        )
    elif status == http.client.FORBIDDEN:
        found, remedy = f"access denied ({found})", "give the user the authority (docs/dhis2.md)"
    elif status == http.client.NOT_FOUND:
        remedy = "check dhis2.url, and the identifiers"
    elif 300 <= status < 400:
        there = str(error.headers.get("Location") or "elsewhere").partition("?")[0]
        found, remedy = f"leads to {there} (HTTP {status})", "give the address of the server itself"
    return RefusedError(Problem(place, found, remedy), status, said)
