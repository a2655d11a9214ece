"""Secrets are in a configuration by reference alone: ``${NAME}`` of the environment."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from geo.errors import Problem
from pipeline.config.document import Document, Key

_SECRETS: tuple[Key, ...] = (("notify", "webhook"), ("notify", "email", "password"))
_OWN = ("127.0.0.1", "localhost", "::1")


def check_secrets(document: Document, problems: list[Problem]) -> None:
    """Append a problem for each secret that is written out in the file.

    A configuration is copied, mailed and committed. A webhook of this machine, or one that has
    nothing but a host, is no secret.

    Parameters
    ----------
    document : Document
        As written, before variables are replaced.
    problems : list of Problem
    """
    for key in _SECRETS:
        value = _at(document.data, key)
        if not isinstance(value, str) or "${" in value or _is_plain(value):
            continue
        name = key[-1] if key[-1] == "webhook" else "password"
        variable = f"DISAGG_{str(name).upper()}"
        found = "a secret, written out in a file that may be copied and shared"
        remedy = f'write {name}: "${{{variable}}}" and set {variable} in the environment'
        problems.append(Problem(document.place(key), found, remedy))


def _at(data: Any, key: Key) -> Any:
    for part in key:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _is_plain(value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    bare = not (parts.path.strip("/") or parts.query or parts.username)
    return bool(parts.scheme) and (parts.hostname in _OWN or bare)
