"""Paths of STAC assets, as a configuration has them: read without NumPy or GDAL."""

from __future__ import annotations

from geo.sources.gdal_paths import PART


def stac_path(path: str, asset: str | None) -> str:
    """Return the path of an asset of STAC items."""
    return f'STAC:"{path}":{asset or ""}'


def stac_of(path: str) -> tuple[str, str] | None:
    """Return file or address and asset of such a path, None of another one."""
    found = PART.match(path)
    if found is None or found[1].upper() != "STAC":
        return None
    return found[4], (found[5] or "")[1:]
