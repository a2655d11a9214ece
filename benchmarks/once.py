"""Run a benchmark unless its figures are of this code already.

    python -m benchmarks.once [--force] benchmarks.NAME [ARGUMENT ...]

``make bench`` runs each benchmark so: after an interruption it goes on with the one that was broken
off. A benchmark is passed over where a run of it with these arguments ended with this code, which a
file in ``build/bench`` says; or where no run is on record here and its file of
``benchmarks/results`` tells this code. One that was broken off is run again: it may have written
half of its figures.
"""

from __future__ import annotations

import hashlib
import json
import runpy
import sys
from pathlib import Path

from benchmarks.report import RESULTS, code

STATES = Path(__file__).parents[1] / "build/bench"
BEGUN, ENDED = "begun", "ended"


def version_of(rooms: dict[str, str], arguments: list[str]) -> str:
    """Return a hash of the code and of a benchmark's arguments."""
    text = json.dumps([rooms, arguments], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def is_done(
    name: str,
    arguments: list[str],
    rooms: dict[str, str],
    states: Path = STATES,
    results: Path = RESULTS,
) -> bool:
    """Say whether a benchmark's figures are of this code.

    Parameters
    ----------
    name : str
        Of the module, without its package.
    arguments : list of str
    rooms : dict of str
        Hash of each room of the code, :func:`benchmarks.report.code`.
    states, results : Path
        Folders of what is on record, and of figures.
    """
    state = states / name
    if state.is_file():
        return state.read_text(encoding="utf-8") == f"{ENDED} {version_of(rooms, arguments)}"
    path = results / f"{name}.json"
    told = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    then = told.get("code") if isinstance(told, dict) else None
    return isinstance(then, dict) and then.get("rooms") == rooms


def main() -> None:
    """Run it, or say why not."""
    force = sys.argv[1:2] == ["--force"]
    module, *arguments = sys.argv[1 + force :]
    name, rooms = module.removeprefix("benchmarks."), code()["rooms"]
    if not force and is_done(name, arguments, rooms):
        print(f"{name}: of this code already; FORCE=1 runs it again")
        return
    state, version = STATES / name, version_of(rooms, arguments)
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text(f"{BEGUN} {version}", encoding="utf-8")
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    state.write_text(f"{ENDED} {version}", encoding="utf-8")


if __name__ == "__main__":
    main()
