"""Figures in pages that are typed and in no file of figures: none may be added unseen.

    python -m benchmarks.typed            # pages, their figures, and how many no file has
    python -m benchmarks.typed --write    # take what the pages have now into the record

A figure is a number with decimals, with thousands or with a unit, of two digits and more, outside
code, formulas and parts that a command makes. It is traced where a file of ``benchmarks/results``
that its page quotes (:func:`benchmarks.stale.pages_that_quote`) holds a value that rounds to it,
its hundredth if it is a percentage; after ``<!-- figures: NAME, NAME -->`` the paragraph or table
that follows may quote these files, and no others. Of records of single grids and folds the means
count at most: among many thousand numbers any number is found.

``benchmarks/typed.json`` has by page the figures that no file has: settings and defaults, figures
of others, and measurements of the day of a decision whose records were not kept. A test holds the
pages against it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, parsed
from benchmarks.stale import ROOT, pages_that_quote

RECORD = Path(__file__).with_name("typed.json")
#: Pages that a command makes of files; tests make them again.
MADE = (
    "docs/evidence.md",
    "docs/performance.md",
    "docs/mil-benchmarks.md",
    "docs/mil-papers.md",
    "docs/vbagg-paper.md",
)
MOST_RECORDS, MOST_VALUES = 12, 100  # of a list that is no table of records
_ASIDE = re.compile(
    r"^```.*?^```|<!-- (designs|noise|trust|sbc|plan): (\w+) -->.*?<!-- \1: end \2 -->|<!--.*?-->"
    r"|\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]*`|\]\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)
_NUMBER = re.compile(r"(?<![\w.,/-])-?(\d{1,3}(?:,\d{3})+|\d*\.?\d+)(?![\w.]*\w)(?!\.\d)")
_UNIT = re.compile(
    r"\s?(%|s\b|ms\b|h\b|min\b|minutes\b|hours\b|seconds\b|[kKMG]i?B\b|nats?\b|times\b)"
)
_NAMED = re.compile(r"<!-- figures: ([\w, ]+) -->")


def pages() -> list[Path]:
    """Return the pages whose figures people type."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        page
        for page in found
        if str(page.relative_to(ROOT)) not in MADE and "changes" not in page.parts
    ]


def figures_in(text: str) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield each figure of a text without asides, and the values that it may stand for.

    Values come with half of their last digit.
    """
    for found in _NUMBER.finditer(text):
        digits = found[1].replace(",", "")
        places = len(digits.partition(".")[2])
        unit = _UNIT.match(text, found.end())
        told = "." in digits or "," in found[1] or unit is not None
        if told and len(digits.replace(".", "").lstrip("0")) >= 2:
            value, half = float(digits), 0.5001 * 10.0**-places
            each = [(value, half)]
            if unit is not None and unit[1] == "%":
                each.append((value / 100, half / 100))
            yield found[1], each


def values_of(told: Any) -> Iterator[float]:
    """Yield the sizes of the values of a file of figures, without records of single runs."""
    if isinstance(told, dict) and "scores_by_repetition" in told:
        # Until all methods have more repetitions, what is quoted is of the first.
        yield from values_of({**told["scores_by_repetition"][0], "seconds": told["seconds"]})
    elif isinstance(told, dict):
        for name, each in told.items():
            if name not in ("machine", "code", "each", "fits"):
                yield from values_of(each)
    elif isinstance(told, list):
        most = MOST_RECORDS if told and isinstance(told[0], dict | list) else MOST_VALUES
        for each in told if len(told) <= most else ():
            yield from values_of(each)
    elif isinstance(told, int | float) and not isinstance(told, bool):
        yield abs(float(told))


def means_of(records: list[dict[str, Any]]) -> Iterator[float]:
    """Yield what pages tell of the grids of each design, fitted with the defaults: means."""
    groups: dict[str, list[tuple[float, ...]]] = {}
    for row in records:
        if row.get("label") == "now" and "pixels" in row:
            of = row["pixels"]
            cover = of["coverage"]["0.9"], of["coverage_people"]["0.9"]
            scores = (*cover, of["correlation"], of["rmse"], of["crps"])
            groups.setdefault(row["design"], []).append(scores)
    for rows in groups.values():
        yield from np.mean(rows, axis=0).tolist()


@cache
def _values(name: str) -> np.ndarray:
    told = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    records = told.get("records", []) if isinstance(told, dict) else []
    return np.array([*values_of(told), *means_of(records)])


@cache
def _quoted() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        for page in pages_that_quote(path.stem):
            found.setdefault(page, []).append(path.stem)
    return found


def blocks_of(page: Path, text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the paragraphs and tables of a page, and the files that each may quote."""
    quoted = tuple(_quoted().get(str(page.relative_to(ROOT)), []))
    named: tuple[str, ...] | None = None
    for block in re.split(r"\n\s*\n", _ASIDE.sub(_kept, text)):
        found = _NAMED.fullmatch(block.strip())
        if found is None:
            yield block, quoted if named is None else named
            named = None
        else:
            named = tuple(each.strip() for each in found[1].split(","))


def _kept(aside: re.Match[str]) -> str:
    return aside[0] if _NAMED.fullmatch(aside[0]) else " "


def untraced(page: Path, text: str | None = None) -> tuple[list[str], int]:
    """Return the figures of a page that no file has, once each and in order; how many it has."""
    n, missing = 0, set()
    for block, names in blocks_of(page, page.read_text(encoding="utf-8") if text is None else text):
        known = np.concatenate([np.zeros(0), *map(_values, names)])
        for figure, each in figures_in(block):
            n += 1
            if not any(np.any(np.abs(known - value) <= half) for value, half in each):
                missing.add(figure)
    return sorted(missing), n


def on_record() -> dict[str, list[str]]:
    """Return the figures that are known to be in no file, by page."""
    found: dict[str, list[str]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Print them, or write the record."""
    options = parsed(__doc__, write=False)
    found = {str(page.relative_to(ROOT)): untraced(page) for page in pages()}
    for name, (missing, n) in found.items():
        if n:
            print(f"{n:5} figures, {len(missing):4} in no file  {name}")
    if options.write:
        kept = {name: missing for name, (missing, _) in found.items() if missing}
        lines = ",\n".join(f' "{name}": {json.dumps(each)}' for name, each in kept.items())
        RECORD.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
