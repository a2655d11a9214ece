"""Servers that never answer, for processes that a signal must end all the same."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def silent_server(on_request: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Accept connections, read what comes, and answer nothing; yield the port.

    ``on_request`` is called at each connection.
    """
    with _serving(lambda _: b"", on_request) as port:
        yield port


@contextlib.contextmanager
def breaking_off(
    content: Path, n_byte: int, on_silence: Callable[[], None] = lambda: None
) -> Iterator[int]:
    """Serve the first bytes of a file at any address, and fall silent at a request for others.

    GDAL opens a raster of such a server, and waits in its first read of pixels.
    """
    data = content.read_bytes()
    assert len(data) > n_byte

    def reply(request: bytes) -> bytes:
        head = f"Content-Type: image/tiff\r\nAccept-Ranges: bytes\r\nETag: {len(data)}\r\n"
        if request.startswith(b"HEAD"):
            return f"HTTP/1.1 200 OK\r\n{head}Content-Length: {len(data)}\r\n\r\n".encode()
        wanted = request.lower().partition(b"range: bytes=")[2].split(b"\r\n")[0]
        first, last = (int(part or 0) for part in (wanted or b"0-").split(b"-"))
        if first >= n_byte:
            on_silence()
            return b""
        part = data[first : min(last + 1, n_byte) if last else n_byte]
        return (
            f"HTTP/1.1 206 Partial Content\r\n{head}Content-Length: {len(part)}\r\n"
            f"Content-Range: bytes {first}-{first + len(part) - 1}/{len(data)}\r\n\r\n"
        ).encode() + part

    with _serving(reply, lambda: None) as port:
        yield port


@contextlib.contextmanager
def _serving(reply: Callable[[bytes], bytes], on_request: Callable[[], None]) -> Iterator[int]:
    open_ones: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def talk(client: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while request := client.recv(65536):
                    on_request()
                    answer = reply(request)
                    if not answer:
                        return  # and keep the connection open
                    client.sendall(answer)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    open_ones.append(client)
                    threading.Thread(target=talk, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listening.getsockname()[1]
        finally:
            # A thread that waits in accept() would keep the socket.
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            for client in open_ones:
                client.close()
