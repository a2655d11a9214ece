"""Places that an input may refer to: a VRT's sources, and nothing else outside its own folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Trust:
    """What a run's user has named: folders, files and servers.

    Attributes
    ----------
    folders : tuple of str
        Local directories, with everything below them.
    files : tuple of str
        Local files.
    addresses : tuple of str
        ``https://host/`` or a longer prefix that ends with a slash.
    """

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, folders: Iterator[str] | tuple[str, ...], inputs: Iterator[str] | tuple[str, ...]
    ) -> Trust:
        """Trust folders or address prefixes, the listed inputs, and the servers of their URLs."""
        places, listed = list(folders), list(inputs)
        servers = [
            f"{urlsplit(p).scheme}://{urlsplit(p).netloc}/" for p in listed if is_web_address(p)
        ]
        given = [p if p.endswith("/") else f"{p}/" for p in places if is_web_address(p)]
        return cls(
            tuple(os.path.realpath(p) for p in places if "://" not in p),
            tuple(os.path.realpath(p) for p in listed if "://" not in p),
            (*given, *dict.fromkeys(servers)),
        )

    def allows_file(self, path: str, own: str) -> bool:
        """Return whether an input of the folder ``own`` may refer to a local file.

        Links are followed first: a link inside the folder to a file outside it is outside.
        """
        real = os.path.realpath(path)
        return real in self.files or any(
            is_below(real, folder) for folder in (os.path.realpath(own), *self.folders)
        )

    def allows_address(self, url: str) -> bool:
        """Return whether an input may refer to a URL."""
        plain = urlsplit(url)
        if "@" in plain.netloc or "/../" in f"{plain.path}/" or "\\" in url:
            return False
        return any(url.startswith(prefix) for prefix in self.addresses)


def is_web_address(path: str) -> bool:
    """Return whether a path is an http(s) URL."""
    return path.lower().startswith(("http://", "https://"))


def is_below(path: str, folder: str) -> bool:
    """Return whether a resolved path lies in a resolved folder, at any depth."""
    return os.path.commonpath([path, folder]) == folder


_NOTHING_ELSE = Trust()
_TRUST: ContextVar[Trust] = ContextVar("trust", default=_NOTHING_ELSE)


def current_trust() -> Trust:
    """Return the places that inputs opened here may refer to; by default only their own folder."""
    return _TRUST.get()


@contextlib.contextmanager
def trusting(trust: Trust) -> Iterator[None]:
    """Open inputs with these places within the context; what is opened keeps them."""
    token = _TRUST.set(trust)
    try:
        yield
    finally:
        _TRUST.reset(token)
