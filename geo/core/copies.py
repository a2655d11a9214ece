"""Where copies of files at addresses are: what keeps them says it to what opens them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Copy = Callable[[str], str]


def _as_it_is(address: str) -> str:
    return address


_COPY: ContextVar[Copy] = ContextVar("copy", default=_as_it_is)


def current_copy() -> Copy:
    """Return what makes an address the path of its copy; the address itself where none is kept.

    It can be pickled, and serves other threads as well.
    """
    return _COPY.get()


@contextlib.contextmanager
def copying(copy: Copy) -> Iterator[None]:
    """Open what inputs refer to as copies within the context."""
    token = _COPY.set(copy)
    try:
        yield
    finally:
        _COPY.reset(token)
