"""Servers on loopback, in a thread of the test."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(server: socketserver.BaseServer) -> Iterator[int]:
    """Let a server answer within the context; yield its port."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
