"""Requests to http(s) addresses, with the user name and password that stand in them."""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit, urlunsplit


def web_request(
    url: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> urllib.request.Request:
    """Return a request; user name and password are sent as basic authentication.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://``.
    method : str, optional
    headers : mapping of str to str, optional
    """
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    plain = urlunsplit(parts._replace(netloc=host, fragment=""))
    sent = {"User-Agent": "disagg", "Accept-Encoding": "identity", **(headers or {})}
    request = urllib.request.Request(plain, headers=sent, method=method)
    if user:
        token = base64.b64encode(unquote(user).encode()).decode()
        # Not sent on to another server by a redirect.
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return request
