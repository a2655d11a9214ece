"""What made a result, beside data and configuration: code, and the versions of the libraries.

A changed model does not change the version in ``pyproject.toml``. So every stage depends on a hash
of the code that it reaches (:mod:`pipeline.core.sources`), from a checkout or from a wheel.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from collections.abc import Container, Iterable, Mapping
from typing import Any

from pipeline.core.plugins import source_of_others
from pipeline.core.revision import full_version
from pipeline.core.sources import PACKAGES, own_sources

LIBRARIES = (
    *("dask", "exactextract", "geopandas", "numba", "numpy", "openpyxl", "pandas", "pyarrow"),
    *("pyogrio", "pyproj", "rasterio", "scikit-learn", "scipy", "shapely", "zarr"),
)
_CODE, _LIBRARY = "code.", "library."


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


def code_inputs(module: str, objects: Iterable[Any] = ()) -> dict[str, str]:
    """Return what a stage depends on in addition to data and configuration.

    Parameters
    ----------
    module : str
        Of the stage's function: what it reaches by imports counts.
    objects : iterable, optional
        Classes and functions that the stage takes from a registry, by name. Their modules count,
        and what these reach. Outside the packages their source counts, as does that of what users
        registered where the stage looks for likelihoods, kernels or formats.
    """
    objects = list(objects)
    sources = own_sources()
    roots = {module, *(each.__module__ for each in objects)}
    others = [*_registered(sources.reached(roots)), *objects]
    return {
        **{f"{_CODE}{name}": value for name, value in sources.hashes(roots).items()},
        f"{_CODE}plugins": source_of_others(others, PACKAGES),
        # The tree of a module, which is hashed, differs between minor versions.
        f"{_LIBRARY}Python": ".".join(platform.python_version_tuple()[:2]),
        **{f"{_LIBRARY}{name}": value for name, value in library_versions().items()},
    }


def _registered(modules: Container[str]) -> list[Any]:
    """Return what the registries among some modules of ``geo`` and ``models`` hold."""
    from geo.sources.boundary_formats import BOUNDARIES
    from geo.sources.registry import SOURCES
    from geo.tables.registry import TABLES
    from models.gp.kernel_text import FACTORS
    from models.gp.shapes import SHAPES
    from models.likelihoods.registry import LIKELIHOODS

    held: dict[str, Iterable[Any]] = {
        "geo.sources.boundary_formats": BOUNDARIES.by_suffix.values(),
        "geo.sources.registry": SOURCES.by_suffix.values(),
        "geo.tables.registry": TABLES.by_suffix.values(),
        "models.gp.kernel_text": [each.build for each in FACTORS.values()],
        "models.gp.shapes": SHAPES.values(),
        "models.likelihoods.registry": LIKELIHOODS.values(),
    }
    return [each for name, objects in held.items() if name in modules for each in objects]


def describe_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """List the differences between the inputs of two runs of a stage.

    Returns
    -------
    list of str
        Keys of the configuration and files by name; code and libraries with both versions:
        ``code (pipeline.ingest 3f2a -> 91bc)``, ``numpy (2.4.1 -> 2.4.2)``.
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
