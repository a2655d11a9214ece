"""Why GDAL could not write a file.

GDAL keeps blocks in memory and reports a full disk late, without an error number, or not at all: a
map with holes then looks finished.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PROBE_BYTES = 1 << 20


def write_error(path: Path, drafts: Iterable[Path] = ()) -> OSError:
    """Find out from the system why a file could not be written, by writing on.

    Parameters
    ----------
    path : Path
        What was to be written; the error names it.
    drafts : iterable of Path
        Half-written files, which get longer; ``path`` itself is left alone.

    Returns
    -------
    OSError
        With the system's error number (a full disk, a quota, a limit); EIO where writing works
        again by now.
    """
    for draft in [d for d in drafts if d.exists()] or [path.with_name(f".{path.name}.probe")]:
        fresh = not draft.exists()
        try:
            with draft.open("ab") as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return OSError(error.errno, os.strerror(error.errno or errno.EIO), str(path))
        finally:
            if fresh:
                draft.unlink(missing_ok=True)
    return OSError(errno.EIO, "could not be written whole", str(path))


@contextmanager
def explained_write_errors(path: Path, drafts: Iterable[Path] = ()) -> Iterator[None]:
    """Turn what GDAL raises while it writes a file into the system's own error.

    Raises
    ------
    OSError
        See :func:`write_error`.
    """
    from pyogrio.errors import DataSourceError, FeatureError, GeometryError
    from rasterio.errors import RasterioError

    quiet_libtiff()
    try:
        yield
    except (RasterioError, DataSourceError, FeatureError, GeometryError) as error:
        raise write_error(path, drafts) from error


@functools.cache
def quiet_libtiff() -> None:
    """Stop libtiff from printing its errors: GDAL raises them as well, and one line is enough.

    Where libtiff is a library of its own (as in the wheels of rasterio), its messages do not go
    through GDAL. Nothing happens where it cannot be found.
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return
    for name in {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "libtiff" in line}:
        try:
            library = ctypes.CDLL(name)
            for setter in ("TIFFSetErrorHandler", "TIFFSetErrorHandlerExt"):
                getattr(library, setter)(ctypes.c_void_p(None))
        except (OSError, AttributeError):
            continue
