"""An S3 server on loopback for the tests, and a proxy before it that fails as real ones do."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def moto_server() -> Iterator[str]:
    """Run moto's server; give its address.

    It answers If-Match and If-None-Match of a PUT, but checks first and puts then: a lock makes one
    step of the two, as Amazon's S3 and others do. At each request it would look up all services
    that it has on disk, and write a line.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    put, one = S3Response.put_object, threading.Lock()

    def put_alone(self: Any) -> Any:
        with one:
            return put(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Response, "put_object", put_alone)
        found = cache(DomainDispatcherApplication.get_backend_for_host)
        patch.setattr(DomainDispatcherApplication, "get_backend_for_host", found)
        patch.setattr(MotoRequestHandler, "log_request", lambda *_: None)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        try:
            yield "http://{}:{}".format(*server.get_host_and_port())
        finally:
            server.stop()


def request(endpoint: str, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Speak to the server without any of what is tested."""
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=30)
    # moto checks no signature, but wants to see one.
    headers = {
        "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"
    }
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def new_bucket(endpoint: str) -> str:
    """Make a bucket that no other test has."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    status, _ = request(endpoint, "PUT", f"/{name}")
    assert status == 200
    return name


KINDS = ("error", "reset", "late_reset", "short", "flip", "denied", "slow")


@dataclass
class Weather:
    """What the proxy does to requests, drawn from a seed: shares of each failure.

    ``only`` says which requests are met, by method and path; all by default. ``deaf`` is a server
    that takes no notice of conditions.
    """

    error: float = 0.0
    reset: float = 0.0
    late_reset: float = 0.0
    short: float = 0.0
    flip: float = 0.0
    denied: float = 0.0
    slow: float = 0.0
    slow_seconds: float = 0.3
    only: Callable[[str, str], bool] = lambda method, path: True
    deaf: bool = False
    seed: int = 0
    sent: int = 0  # bytes of bodies
    log: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng, self._lock = random.Random(self.seed), threading.Lock()

    def strike(self, method: str, path: str) -> str:
        """Draw what happens to a request."""
        with self._lock:
            drawn, what = self._rng.random(), "pass"
            if self.only(method, path):
                for kind in KINDS:
                    drawn -= getattr(self, kind)
                    if drawn < 0:
                        what = kind
                        break
            self.log.append((method, path, what))
        return what

    def count(self, what: str) -> int:
        """Return how many requests met a failure."""
        return sum(each[2] == what for each in self.log)


@contextmanager
def stormy(upstream: str, weather: Weather) -> Iterator[str]:
    """Run a proxy before a server; give its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits 40 ms between header and body

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

        def _serve(self) -> None:
            body = self._body()
            what = weather.strike(self.command, self.path)
            if what == "slow":
                time.sleep(weather.slow_seconds)
            if what == "reset":
                self._reset()
                return
            if what == "error":
                status = 500 if len(weather.log) % 2 else 503
                text = b"<Error><Code>InternalError</Code><Message>storm</Message></Error>"
                self._answer(status, [("Content-Type", "application/xml")], text)
                return
            if what == "denied":
                text = b"<Error><Code>AccessDenied</Code><Message>not yours</Message></Error>"
                self._answer(403, [("Content-Type", "application/xml")], text)
                return
            connection = http.client.HTTPConnection(upstream.removeprefix("http://"), timeout=60)
            try:
                connection.putrequest(
                    self.command, self.path, skip_host=True, skip_accept_encoding=True
                )
                for name, value in self.headers.items():
                    if weather.deaf and name.lower() in ("if-match", "if-none-match"):
                        continue
                    if name.lower() not in ("expect", "transfer-encoding", "content-length"):
                        connection.putheader(name, value)
                connection.putheader("Content-Length", str(len(body)))
                connection.endheaders(body)
                answer = connection.getresponse()
                data = answer.read()
                headers = [
                    (name, value)
                    for name, value in answer.getheaders()
                    if name.lower() not in ("connection", "transfer-encoding")
                ]
            finally:
                connection.close()
            if what == "late_reset":  # done, and the answer lost
                self._reset()
                return
            if what == "flip" and data:
                middle = len(data) // 2
                data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            self._answer(answer.status, headers, data, short=what == "short")

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve

        def _body(self) -> bytes:
            if self.headers.get("Expect", "").lower() == "100-continue":
                pass  # http.server has said "go on" already
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _answer(
            self, status: int, headers: list[tuple[str, str]], data: bytes, short: bool = False
        ) -> None:
            self.send_response_only(status)
            told = False
            for name, value in headers:
                told |= name.lower() == "content-length"
                self.send_header(name, value)
            if not told:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            weather.sent += len(data)
            if short and len(data) > 1:
                self.wfile.write(data[: len(data) // 2])
                self.close_connection = True
                return
            self.wfile.write(data)

        def _reset(self) -> None:
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # a reset, not an end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True

        def handle(self) -> None:
            with contextlib.suppress(OSError):  # the client has gone
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def set_keys() -> None:
    """Give credentials, for processes that tests start too."""
    os.environ.update(KEYS)


if __name__ == "__main__":  # a server of its own, for trials: until standard input ends
    import sys

    with moto_server() as address:
        print(address, flush=True)
        sys.stdin.read()
