"""Servers on loopback, in a thread of the test."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
