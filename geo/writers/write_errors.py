"""Find the system's reason for GDAL's write errors.

GDAL caches blocks and reports a full disk late, without an error number, or not at all: a map with
holes then looks complete.
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
    """Return the system's error for a file that could not be written; appends to the drafts.

    Parameters
    ----------
    path : Path
        The file, which the error names; not touched.
    drafts : iterable of Path
        Incomplete files to which this function appends.

    Returns
    -------
    OSError
        With the system's error number (a full disk, a quota, a limit); EIO if writing works again.
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
    """Convert GDAL's exceptions while writing a file to the system's error (`write_error`)."""
    from pyogrio.errors import DataSourceError, FeatureError, GeometryError
    from rasterio.errors import RasterioError

    quiet_libtiff()
    try:
        yield
    except (RasterioError, DataSourceError, FeatureError, GeometryError) as error:
        raise write_error(path, drafts) from error


@functools.cache
def quiet_libtiff() -> None:
    """Stop libtiff from printing its errors: GDAL raises them as well.

    If libtiff is a separate library (as in rasterio's wheels), its messages do not go through GDAL.
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
