"""What two maps of several periods say differently of the areas that both have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from geo.core.errors import name_first
from geo.core.suppressed import interval_text
from pipeline.comparison.sides import Side
from pipeline.products.csv_table import write_csv
from pipeline.products.products import PERIODS_PARQUET
from pipeline.products.suppressed import LOWER, UPPER

PERIODS_CHANGE = "change_periods.csv"
KEY = ["id", "period"]
COLUMNS = ("observed", "mean", "lower", "upper", "rate")
COUNTS = ("observed", LOWER, UPPER)
N_LISTED = 20  # corrections of the report
N_NAMED = 3  # areas and periods in the line for a terminal
#: What became of a count, by the word for it.
NEW, CORRECTED, WITHDRAWN, SUPPRESSED = "new", "corrected", "withdrawn", "suppressed"
LEFT_OUT = "left out"  # of a period that B lacks: its series may begin later


def write_periods_change(a: Side, b: Side, directory: Path) -> dict[str, Any] | None:
    """Write ``change_periods.csv``: areas and periods whose count or estimate has changed.

    Parameters
    ----------
    a, b : Side
        Before and after.
    directory : Path

    Returns
    -------
    dict or None
        ``n_new``, ``n_corrected``, ``n_withdrawn``, ``n_suppressed`` and ``n_left_out`` counts:
        those that B alone has, that differ, that A alone has, numbers of A that B gives as an
        interval around them, and those of periods that B does not have. ``corrected``,
        ``withdrawn`` and ``suppressed``: the largest of each (id, period, observed_a, observed_b,
        and as texts before and after). ``n_estimates``, whose mean in B is outside the interval of
        A. None where one side has no table of periods.
    """
    paths = [side.directory / PERIODS_PARQUET.file for side in (a, b)]
    if not all(path.is_file() for path in paths):
        return None
    # A table without any suppressed count lacks the columns of their ends.
    columns = [*KEY, *COLUMNS, *COUNTS[1:]]
    before, after = (pd.read_parquet(path).reindex(columns=columns) for path in paths)
    both = _beside(before, after)
    given = [both[[f"{column}_{side}" for column in COUNTS]].to_numpy(float) for side in "ab"]
    word = _what_became(*given)
    word[(word == WITHDRAWN) & ~both["period"].isin(after["period"])] = LEFT_OUT
    estimated = both["mean_b"].notna() & both["lower_a"].notna()
    outside = ~both["mean_b"].between(both["lower_a"], both["upper_a"]) & estimated
    kept = both[(word != "") | outside]
    hidden = any(np.isfinite(values[:, 1:]).any() for values in given)
    shown = [*COUNTS, *COLUMNS[1:]] if hidden else COLUMNS
    names = [f"{column}_{side}" for column in shown for side in "ab"]
    table = kept[[*KEY, *names]].assign(
        count=word[kept.index],
        estimate=np.where(outside[kept.index], "outside the interval before", ""),
    )
    write_csv(table, directory / PERIODS_CHANGE)
    # Of intervals the middle; of a count that was taken back it is the whole.
    middles = [np.where(np.isnan(v[:, 0]), v[:, 1:].mean(axis=1), v[:, 0]) for v in given]
    moved = np.abs(np.nan_to_num(middles[1]) - middles[0])
    told = both[[*KEY, "observed_a", "observed_b"]].astype(object)
    told = told.where(told.notna(), None)
    told["before"], told["after"] = (_texts(values) for values in given)
    found: dict[str, Any] = {
        "n_new": int((word == NEW).sum()),
        "n_left_out": int((word == LEFT_OUT).sum()),
    }
    for name in (CORRECTED, WITHDRAWN, SUPPRESSED):
        chosen = np.flatnonzero(word == name)
        largest = chosen[np.argsort(-moved[chosen], kind="stable")][:N_LISTED]
        found[f"n_{name}"] = int(chosen.size)
        found[name] = [
            {str(k): v for k, v in row.items()} for row in told.iloc[largest].to_dict("records")
        ]
    return {**found, "n_estimates": int(outside.sum())}


def _beside(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """Return the areas that both have, in all periods of either."""
    ids = set(before["id"]) & set(after["id"])
    tables = [table[table["id"].isin(ids)] for table in (before, after)]
    keys = pd.concat([table[KEY] for table in tables]).drop_duplicates()
    for letter, table in zip("ab", tables, strict=True):
        own = table.rename(columns={name: f"{name}_{letter}" for name in (*COLUMNS, *COUNTS[1:])})
        keys = keys.merge(own, on=KEY, how="left")
    return keys


def _what_became(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return what became of each count, "" where it is the same.

    Parameters
    ----------
    a, b : (n, 3) float64 arrays
        Before and after: the number, or the ends of the interval of a suppressed count.
    """
    known = [np.isfinite(values).any(axis=1) for values in (a, b)]
    equal = ((a == b) | (np.isnan(a) & np.isnan(b))).all(axis=1)
    return np.select(
        [
            equal,
            ~known[0],
            ~known[1],
            (b[:, 1] <= a[:, 0]) & (a[:, 0] <= b[:, 2]),
        ],
        ["", NEW, WITHDRAWN, SUPPRESSED],
        CORRECTED,
    )


def _texts(values: np.ndarray) -> list[str]:
    """Return counts as a table gives them, ``60`` or ``<5``; "none" where there is none."""
    return [_text(*row) for row in values.tolist()]


def _text(count: float, low: float, high: float) -> str:
    if np.isfinite(low):
        return interval_text(low, high)
    if not np.isfinite(count):
        return "none"
    return f"{count:,.0f}" if count == round(count) else f"{count:,.4g}"


def periods_line(found: dict[str, Any]) -> str:
    """Return what is told of all periods, in one line."""
    text = f"All periods: {found['n_new']:,} new counts"
    for name in (CORRECTED, WITHDRAWN, SUPPRESSED):
        n = found[f"n_{name}"]
        if n or name == CORRECTED:
            text += f", {n:,} {name}"
        each = [
            f"{row['id']} {row['period']} {row['before']}"
            + ("" if name == WITHDRAWN else f" -> {row['after']}")
            for row in found[name]
        ]
        text += f" ({name_first(each, N_NAMED)})" if each else ""
    if n := found["n_left_out"]:
        text += f", {n:,} of periods that B lacks"
    n = found["n_estimates"]
    moved = "1 estimate is outside its" if n == 1 else f"{n:,} estimates are outside their"
    return f"{text}; {moved} interval before ({PERIODS_CHANGE})"
