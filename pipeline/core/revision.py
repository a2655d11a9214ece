"""The version of the code that runs: the package's, and the commit that it was made from.

A wheel of an image bears the commit in its version (``0.1.0+g10e34c1``). A checkout is asked for
it. ``$DISAGG_REVISION`` names it where there is neither.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_SECONDS = 5.0


def full_version() -> str:
    """Return version and commit: ``0.1.0+g10e34c1``, with ``.dirty`` where files differ from it."""
    try:
        number = importlib.metadata.version("disagg")
    except importlib.metadata.PackageNotFoundError:
        number = "not installed"
    commit = revision()
    return number if commit is None or "+" in number else f"{number}+g{commit}"


@functools.cache
def revision() -> str | None:
    """Return the commit of the code, with ``.dirty`` if files differ from it; None if unknown."""
    given = os.environ.get("DISAGG_REVISION", "").strip()
    if given:
        return given if re.fullmatch(r"[0-9A-Za-z.-]{1,64}", given) else None
    if not (_ROOT / ".git").exists():  # a folder; a file in a worktree
        return None
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--abbrev=7", "--match", "no tag",
               "--dirty=.dirty"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):  # no git, or not our repository
        return None
    return done.stdout.strip() or None
