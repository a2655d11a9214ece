"""Secrets are in a configuration by reference alone: ``${NAME}`` of the environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import SplitResult, urlsplit

from geo.core.errors import Problem
from pipeline.config.document import Document, Key

_SECRETS: tuple[Key, ...] = (("notify", "webhook"), ("notify", "email", "password"))
_OWN = ("127.0.0.1", "localhost", "::1")


def check_secrets(document: Document, problems: list[Problem]) -> None:
    """Append a problem for each secret that is written out in the file.

    A configuration is copied, mailed and committed. A webhook or a login of this machine, or a
    webhook that has nothing but a host, is no secret. A signature in an address (``?sig=``) ends by
    itself, and has too many names to be known here: it is hidden wherever the address is shown.

    Parameters
    ----------
    document : Document
        As written, before variables are replaced.
    problems : list of Problem
    """
    for key, value in _texts(document.data, ()):
        if "${" in value:
            continue
        if key in _SECRETS and not _is_plain(value):
            name = "webhook" if key[-1] == "webhook" else "password"
            variable = f"DISAGG_{name.upper()}"
            remedy = f'write {name}: "${{{variable}}}" and set {variable} in the environment'
        elif _has_password(value):
            remedy = (
                'write the address as "https://${DISAGG_LOGIN}@HOST/..." and set DISAGG_LOGIN to '
                "USER:PASSWORD in the environment"
            )
        else:
            continue
        found = "a secret, written out in a file that may be copied and shared"
        problems.append(Problem(document.place(key), found, remedy))


def _texts(data: Any, key: Key) -> Iterator[tuple[Key, str]]:
    if isinstance(data, str):
        yield key, data
    elif isinstance(data, dict | list):
        for part, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _texts(value, (*key, part))


def _address(value: str) -> SplitResult | None:
    try:
        return urlsplit(value)
    except ValueError:
        return None


def _has_password(value: str) -> bool:
    parts = _address(value)
    return parts is not None and bool(parts.password) and parts.hostname not in _OWN


def _is_plain(value: str) -> bool:
    parts = _address(value)
    if parts is None:
        return False
    bare = not (parts.path.strip("/") or parts.query or parts.username)
    return bool(parts.scheme) and (parts.hostname in _OWN or bare)
