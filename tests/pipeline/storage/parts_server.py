"""A server of a folder over HTTP that counts, and fails as a test asks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.servers import running


@dataclass
class Parts:
    """What a server of a folder has sent, and how it behaves.

    ``cut`` is a number of answers of which half is sent before the connection breaks.
    """

    folder: Path
    url: str = ""
    ranges: bool = True
    tags: bool = True
    cut: int = 0
    status: int = 0
    sent: int = 0
    log: list[tuple[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)  # of what was got, with folders

    def reset(self) -> None:
        """Count anew."""
        self.sent, self.log, self.paths = 0, [], []


@contextmanager
def serving_parts(folder: Path) -> Iterator[Parts]:
    """Serve a folder on loopback."""
    state = Parts(folder)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            path = state.folder / self.path.partition("?")[0].strip("/")
            state.log.append((self.command, path.name))
            if self.command == "GET":
                state.paths.append(path.relative_to(state.folder).as_posix())
            if state.status or not path.is_file():
                self.send_response(state.status or 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data = path.read_bytes()
            tag, size = hashlib.md5(data).hexdigest(), len(data)
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            part = bool(wanted) and state.ranges
            self.send_response(206 if part else 200)
            if part:
                first, last = int(wanted[1]), min(int(wanted[2]), size - 1)
                data = data[first : last + 1]
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("Content-Length", str(len(data)))
            if state.tags:
                self.send_header("ETag", f'"{tag}"')
                self.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
            self.end_headers()
            if self.command == "HEAD":
                return
            if state.cut > 0:
                state.cut -= 1
                data = data[: len(data) // 2]
                self.close_connection = True
            state.sent += len(data)
            self.wfile.write(data)

        do_HEAD = do_GET

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        state.url = f"http://127.0.0.1:{port}"
        yield state
