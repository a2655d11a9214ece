"""Copy a table at a web address to a file, so that it is read and bounded as a local one."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from geo.core.errors import InputError, Problem
from geo.core.temporary import temporary_directory
from geo.core.trust import is_web_address
from geo.core.web_request import web_request

#: Bytes of a table: more than the counts of any country's districts have.
BYTES_MAX = 1 << 30
TIMEOUT_S = 20.0
_PIECE_BYTES = 1 << 20


@contextmanager
def local_table(path: str | Path) -> Iterator[str | Path]:
    """Yield a local copy of a table at an http(s) address; another path as it is.

    User name and password in the address are sent as basic authentication.

    Raises
    ------
    InputError
        If the table has more than `BYTES_MAX`.
    OSError
        If it cannot be fetched (urllib.error.HTTPError, URLError).
    """
    if not is_web_address(str(path)):
        yield path
        return
    parts = urlsplit(str(path))
    with temporary_directory("disagg-table-") as directory:
        copy = directory / (Path(unquote(parts.path)).name or "table")
        with (
            urllib.request.urlopen(web_request(str(path)), timeout=TIMEOUT_S) as answer,
            copy.open("wb") as file,
        ):
            while piece := answer.read(_PIECE_BYTES):
                if file.tell() + len(piece) > BYTES_MAX:
                    found = f"has more than {BYTES_MAX:,} bytes"
                    raise InputError(Problem(str(path), found, "give a smaller table"))
                file.write(piece)
        yield copy
