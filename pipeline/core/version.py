"""The version of this software."""

from __future__ import annotations

import importlib.metadata


def software_version() -> str:
    """Return the version of this software, as installed."""
    try:
        return importlib.metadata.version("disagg")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
