"""What runs that ended badly leave behind: known by their names, and taken away."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pipeline.fingerprint import fingerprint_value

_ABANDONED = (".predict.partial", "work/.*.zarr.partial-*", "work/.model-*")


def remove_abandoned(directory: Path) -> None:
    """Remove what runs that were killed left half written in an output directory.

    Only for who holds its lock, and so is alone there: also what runs of other hosts left (a pod
    that comes back has another name) is nobody's then.

    Parameters
    ----------
    directory : Path
        ``output.dir``.
    """
    for pattern in _ABANDONED:
        for left in directory.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


def is_sound(entry: Any) -> bool:
    """Say whether an entry of the stages' record is as it was written.

    One without a check is of an earlier version, and is taken as it is.
    """
    if not isinstance(entry, dict):
        return False
    rest = {key: value for key, value in entry.items() if key != "check"}
    return "check" not in entry or bool(entry["check"] == fingerprint_value(rest))
