"""Hide the secrets in addresses before they are shown or stored."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"

# User info ends at the last @ before the path: a password may contain one. It may not contain a
# slash, but careless ones do: then what follows the scheme is no host with a port, or a second @
# comes later.
_USER = re.compile(
    r"([A-Za-z][A-Za-z0-9+.\-]*://)"
    r"(?:[^/\s?#'\"<>]*@(?:[^\s?#'\"<>]*@)?|[^/\s?#'\"<>:]+:(?!\d+(?:/|$))[^\s?#'\"<>]*@)"
)
# The query of a URL, or of GDAL's /vsicurl?...: signatures, tokens and keys have many names, so
# that every value is hidden. The names stay, to tell addresses apart.
_QUERY = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.\-]*://|/vsi\w+)[^\s?#'\"<>]*\?)([^\s#'\"<>]+)")
_VALUE = re.compile(r"=[^&]*")
# "PG:host=h password=p": keys and values as databases write them.
_KEY = re.compile(
    r"(?i)\b(pass(?:word|wd)?|pwd|user|uid|secret|token)(\s*=\s*)('[^']*'|[^\s;,'\"]+?(?=\)?(?:[\s;,'\"]|$)))"
)


def redacted(text: str) -> str:
    """Replace user names, passwords and values of queries in all addresses of a text.

    Parameters
    ----------
    text : str
        An address, or a message with addresses in it.

    Returns
    -------
    str
        ``https://***@host/a.tif?X-Amz-Signature=***`` for an address with both.
    """
    if ":" in text:
        text = _KEY.sub(rf"\1\2{HIDDEN}", text)
    if "://" not in text and "/vsi" not in text:
        return text
    text = _USER.sub(rf"\1{HIDDEN}@", text)
    return _QUERY.sub(lambda found: found[1] + _hide_values(found[2]), text)


def _hide_values(query: str) -> str:
    # A remark after the address ("...?a=b: HTTP 404") is not part of it.
    # Nor is the bracket of "population (https://h/a.tif?b=c): ...".
    query, mark = re.fullmatch(r"(.*?)(\)?:?)", query, re.DOTALL).groups()  # type: ignore[union-attr]
    if "=" not in query:
        return HIDDEN + mark
    return _VALUE.sub(f"={HIDDEN}", query) + mark


def redacted_values(value: Any) -> Any:
    """Apply `redacted` to every text of a JSON-able value."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: redacted_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_values(item) for item in value]
    return value
