"""Figures that are older than the code, and the pages that quote them.

    python -m benchmarks.stale [--rooms models.gp models.aggregate ...]

A file of ``benchmarks/results`` is of this code where every room is as it was when it was measured,
without comments and docstrings. ``--rooms`` looks at some alone: those that a change touched.

Ends with status 1 where a page quotes older figures; ``make bench`` ends with it. It is no test of
every change: one line in ``models`` ages all figures, and to measure them again takes hours, so a
test would always fail and nobody would read it. What every change is held to is
:mod:`benchmarks.guard`, which counts and needs no clock.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import RESULTS, code

ROOT = Path(__file__).parents[1]
UNKNOWN = "of a code that it does not tell"


@dataclass(frozen=True)
class Figures:
    """A file of figures: the rooms that have changed since, and the pages that quote it."""

    name: str
    version: str
    changed: tuple[str, ...]
    pages: tuple[str, ...]


def pages_that_quote(name: str, root: Path = ROOT) -> tuple[str, ...]:
    """Return the pages that name a file of figures, or the command that makes it."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    marks = (f"{name}.json", f"benchmarks.{name}", f"benchmarks/{name}.py")
    texts = ((page, page.read_text(encoding="utf-8")) for page in pages if page.is_file())
    return tuple(
        str(page.relative_to(root)) for page, text in texts if any(mark in text for mark in marks)
    )


def figures(
    now: Mapping[str, str], rooms: Iterable[str] = (), directory: Path = RESULTS, root: Path = ROOT
) -> list[Figures]:
    """Compare all files of figures with the hashes of the rooms.

    Parameters
    ----------
    now : mapping of str to str
        Hash of each room.
    rooms : iterable of str
        Those to look at; all if none.
    directory, root : Path
        Of the figures, and of the pages.
    """
    wanted, found = set(rooms) or set(now), []
    for path in sorted(directory.glob("*.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        then = told.get("code") if isinstance(told, dict) else None
        known = isinstance(then, dict) and "rooms" in then
        changed = [
            each for each in sorted(wanted) if known and then["rooms"].get(each) != now[each]
        ]
        version = then["version"] if known else UNKNOWN
        pages = pages_that_quote(path.stem, root)
        found.append(
            Figures(path.stem, version, tuple(changed if known else sorted(wanted)), pages)
        )
    return found


def quoted_by(rows: Iterable[Figures]) -> dict[str, list[str]]:
    """Return the pages that quote figures of older code, with the names of these."""
    found: dict[str, list[str]] = {}
    for each in rows:
        for page in each.pages if each.changed else ():
            if not page.startswith("docs/changes/"):  # says what a change was, not what is
                found.setdefault(page, []).append(each.name)
    return found


def main() -> None:
    """Print them, the oldest first; end with an error where a page quotes older ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rooms", nargs="*", default=())
    rows = figures(code()["rooms"], parser.parse_args().rooms)
    for each in sorted(rows, key=lambda each: (each.version != UNKNOWN, each.name)):
        state = f"{len(each.changed)} rooms changed since" if each.changed else "of this code"
        pages = ", ".join(each.pages) or "no page"
        print(f"{each.name:20} {each.version:40} {state:28} {pages}")
    if quoted := quoted_by(rows):
        lines = (f"{page}: {', '.join(names)}" for page, names in sorted(quoted.items()))
        raise SystemExit("\npages that quote figures of older code:\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
