"""What is opened in a folder, by inotify, which sees what GDAL and SQLite open as well."""

import ctypes
import os
import struct
from contextlib import contextmanager

IN_OPEN, IN_ISDIR = 0x20, 0x40000000


@contextmanager
def opened_names(folder):
    """Yield a set that has the names of the files opened within the context, at its end."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(handle, os.fsencode(folder), IN_OPEN) >= 0
    found = set()
    yield found
    try:
        data = os.read(handle, 1 << 20)
    except BlockingIOError:
        data = b""
    finally:
        os.close(handle)
    at = 0
    while at < len(data):
        _, mask, _, length = struct.unpack_from("iIII", data, at)
        name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
        if name and not mask & IN_ISDIR:
            found.add(name)
        at += 16 + length
