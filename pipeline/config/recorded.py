"""Configurations that earlier versions recorded: keys that they took and did not use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Of configurations with labels: refused since, for they changed nothing.
_IDLE_WITH_LABELS = (("output", "exceedance"), ("gates", "coverage"))


def without_idle(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded configuration without keys that had no effect, and are refused today.

    Parameters
    ----------
    values : mapping
        Of sections, as in ``run.json``.
    """
    found = dict(values)
    for section, key in _IDLE_WITH_LABELS if found.get("labels") else ():
        if isinstance(found.get(section), Mapping):
            found[section] = {k: v for k, v in found[section].items() if k != key}
    return found
