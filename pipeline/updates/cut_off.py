"""Hold new counts that look cut off: a copy that broke off, an export that ended early."""

from __future__ import annotations

import csv
import io
import json
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from geo.core.addresses import redacted
from pipeline.config.schema import Config
from pipeline.storage.files import write_json
from pipeline.updates.arrivals import Arrival, counts_before, seen_key
from pipeline.updates.attended import notify_end

#: Share of the rows of the period before. A month of 28 days has 0.90 of one of 31; four weeks have
#: 0.80 of five.
FEWER = 0.75
MOST = 1 << 28  # bytes of a table that is looked at
TEXT = (".csv", ".tsv", ".txt")  # a workbook or Parquet file that is cut off cannot be opened


def held_back(config: Config, arrival: Arrival, now: float | None = None) -> list[str] | None:
    """Return None if new counts may be taken; else lines about them, each file told once.

    A file on a disk that looks cut off is held until it has been the same for ``update.doubt_s``
    seconds, or `take` has been called. The lines are also sent as a notification.

    Parameters
    ----------
    config : Config
    arrival : Arrival
    now : float, optional
        Seconds since the epoch.
    """
    path, state, key = Path(arrival.address), _read(config), seen_key(arrival.address)
    if path.suffix.lower() not in TEXT or not path.is_file() or path.stat().st_size > MOST:
        return None  # an address on a server, too
    before = counts_before(config, arrival)
    rows_before = state["rows"].get(key) if before is None else _n_row(_lines(Path(before)))
    column = None if config.counts is None else config.counts.period
    lines = _lines(path)
    found = looks_cut_off(lines, rows_before, column)
    age = (time.time() if now is None else now) - path.stat().st_mtime
    if not found or age >= config.update.doubt_s or state["taken"].get(key) == arrival.token:
        _write(config, {**state, "rows": {**state["rows"], key: _n_row(lines)}})
        return None
    if state["told"].get(key) == arrival.token:
        return []
    source = config.source if config.source is not None else "CONFIG"
    text = (
        f"{redacted(arrival.address)}: looks cut off: {found}; no run is started until it has been "
        f"the same for {config.update.doubt_s:g} s (update.doubt_s); complete it, or take it as it "
        f"is by `python -m flows.watch {source} --take`"
    )
    _write(config, {**state, "told": {**state["told"], key: arrival.token}})
    return [text, *notify_end(config, "failure", "New counts are held", text)]


def take(config: Config, arrival: Arrival) -> None:
    """Take new counts as they are, though they look cut off."""
    state = _read(config)
    _write(config, {**state, "taken": {**state["taken"], seen_key(arrival.address): arrival.token}})


def looks_cut_off(lines: list[str], rows_before: int | None, period: str | None) -> str:
    """Return what of a table of text looks cut off; "" if nothing does.

    Parameters
    ----------
    lines : list of str
        With their line ends.
    rows_before : int or None
        Rows of the file before, if there was one.
    period : str or None
        Column of the periods.
    """
    if len(lines) < 3:
        return "" if not rows_before else f"{_n_row(lines)} rows, where there were {rows_before}"
    delimiter = max(",;\t|", key=lines[0].count)
    try:
        rows = list(csv.reader(lines, delimiter=delimiter))
    except csv.Error:  # the run tells
        return ""
    if len(rows[-1]) < min((len(row) for row in rows[:-1] if row), default=0):
        return f"its last line has {len(rows[-1])} of {len(rows[0])} columns"
    if not lines[-1].endswith(("\n", "\r")):
        return "its last line has no line end"
    n_row = _n_row(lines)
    if rows_before and n_row < FEWER * rows_before:
        return f"{n_row} rows, where there were {rows_before}"
    if period in rows[0]:
        at = rows[0].index(period)
        named = [row[at] for row in rows[1:] if len(row) > at]
        by_period = Counter(named)
        last = by_period.pop(named[-1])
        if by_period and last < FEWER * statistics.median(by_period.values()):
            usual = statistics.median(by_period.values())
            return f"{last} rows of {named[-1]}, where other periods have {usual:g}"
    return ""


def _lines(path: Path) -> list[str]:
    raw = path.read_bytes()
    wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
    text = raw.decode("utf-16" if wide else "latin-1", "replace")
    return io.StringIO(text, newline="").readlines()


def _n_row(lines: list[str]) -> int:
    """Return the rows below the header."""
    return max(sum(1 for line in lines if line.strip()) - 1, 0)


def _path(config: Config) -> Path:
    return config.shared_dir / "work" / "held.json"


def _read(config: Config) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(_path(config).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    return {key: dict(found.get(key, {})) for key in ("rows", "told", "taken")}


def _write(config: Config, state: dict[str, dict[str, Any]]) -> None:
    if state != _read(config):
        write_json(_path(config), state, unique=True)
