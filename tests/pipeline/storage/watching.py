"""What is opened in folders, by inotify, which sees what GDAL and SQLite open as well."""

import ctypes
import os
import struct
from contextlib import contextmanager

IN_OPEN, IN_ISDIR = 0x20, 0x40000000


@contextmanager
def opened(paths):
    """Yield a list that has, once the context ends, what was opened within it.

    Each entry is one of the files and folders ``paths``, the name of the file opened in the folder
    ("" for the path itself), and whether that is a folder.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.inotify_init1(os.O_NONBLOCK)
    watched, found = {}, []
    for path in paths:
        number = libc.inotify_add_watch(handle, os.fsencode(path), IN_OPEN)
        assert number >= 0
        watched.setdefault(number, []).append(path)  # several names of a file have one number
    yield found
    try:
        data = os.read(handle, 1 << 20)
    except BlockingIOError:
        data = b""
    finally:
        os.close(handle)
    at = 0
    while at < len(data):
        number, mask, _, length = struct.unpack_from("iIII", data, at)
        name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
        found += [(path, name, bool(mask & IN_ISDIR)) for path in watched[number]]
        at += 16 + length


@contextmanager
def opened_names(folder):
    """Yield a set that has, once the context ends, the names of the files opened within it."""
    found = set()
    with opened([folder]) as events:
        yield found
    found.update(name for _, name, is_folder in events if name and not is_folder)
