"""Pages of the documentation that tests type: their blocks, and a folder to type them in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def page(name: str) -> str:
    """Return the text of a page of ``docs``."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def typed_blocks(text: str) -> list[str]:
    """Return what a page lets its reader type, block by block."""
    return re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def typist(folder: Path) -> Callable[..., str]:
    """Return what types a block in ``folder/work``, on the small country, and says what it said."""
    programs, work = folder / "bin", folder / "work"
    programs.mkdir()
    work.mkdir()
    for name, words in (("disagg", "-m tests.small_months"), ("python", "")):
        command = programs / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        command.chmod(0o755)
    (work / "examples").symlink_to(ROOT / "examples")
    environ = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }

    def type_block(block: str, status: int = 0) -> str:
        done = subprocess.run(
            ["sh", "-eu", "-c", block], cwd=work, env=environ, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == status, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    return type_block
