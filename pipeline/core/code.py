"""The code that made a result: a hash of our sources, and the versions of the libraries.

A changed model does not change the version in ``pyproject.toml``. So every stage depends on a hash
of the packages' source files, from a checkout or from a wheel.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.plugins import registered, source_of_others
from pipeline.core.revision import full_version

PACKAGES = ("geo", "models", "pipeline")
LIBRARIES = (
    *("dask", "exactextract", "geopandas", "numba", "numpy", "openpyxl", "pandas", "pyarrow"),
    *("pyogrio", "pyproj", "rasterio", "scikit-learn", "scipy", "shapely", "zarr"),
)
_CODE, _LIBRARY = "code.", "library."


#: Python, and what makes up the page of a report.
_SUFFIXES = (".py", ".j2", ".css", ".js")


def source_hash(directory: Path) -> str:
    """Hash the names and contents of the sources below a directory.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(p for p in directory.rglob("*") if p.suffix in _SUFFIXES):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(directory).as_posix()} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


@functools.cache
def code_hashes() -> dict[str, str]:
    """Return the hash of each package's sources."""
    hashes = {}
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        paths = [] if found is None else list(found.submodule_search_locations or ())
        hashes[package] = source_hash(Path(paths[0])) if paths else "not installed"
    return hashes


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that affect numbers, and of their C libraries."""
    import pyproj
    import rasterio
    import shapely

    return {
        **{name: installed_version(name) for name in LIBRARIES},
        "GDAL": rasterio.__gdal_version__,
        "GEOS": shapely.geos_version_string,
        "PROJ": pyproj.proj_version_str,
    }


def run_versions() -> dict[str, str]:
    """Return the versions that a run records: Python, disagg and the libraries."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "disagg": full_version(),
        **library_versions(),
    }


def installed_version(package: str) -> str:
    """Return the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def code_inputs(objects: Iterable[Any] = ()) -> dict[str, str]:
    """Return what every stage depends on in addition to data and configuration.

    Parameters
    ----------
    objects : iterable, optional
        Registered objects that this room cannot see. Their source counts if it is outside the
        packages, as that of registered likelihoods, kernels, models and formats does.
    """
    return {
        **{f"{_CODE}{name}": value for name, value in code_hashes().items()},
        f"{_CODE}plugins": source_of_others([*registered(), *objects], PACKAGES),
        **{f"{_LIBRARY}{name}": value for name, value in library_versions().items()},
    }


def describe_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """List the differences between the inputs of two runs of a stage.

    Returns
    -------
    list of str
        Keys of the configuration and files by name; code and libraries with both versions:
        ``code (pipeline 3f2a -> 91bc)``, ``numpy (2.4.1 -> 2.4.2)``.
    """
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    code = [
        f"{key.removeprefix(_CODE)} {before.get(key, 'none')[:4]} -> {now.get(key, 'none')[:4]}"
        for key in changed
        if key.startswith(_CODE)
    ]
    known = any(key.startswith(_CODE) for key in before)
    changes = []
    if not known:
        changes.append("code (none is on record: an earlier version's run)")
    elif code:
        changes.append(f"code ({', '.join(code)})")
    for key in changed:
        if key.startswith(_LIBRARY) and known:
            name = key.removeprefix(_LIBRARY)
            changes.append(f"{name} ({before.get(key, 'none')} -> {now.get(key, 'none')})")
        elif not key.startswith((_CODE, _LIBRARY)) and key != "disagg":
            changes.append(key)
    return changes
