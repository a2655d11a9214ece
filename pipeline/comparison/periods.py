"""What two maps of several periods say differently of the periods that both have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from geo.core.errors import name_first
from pipeline.comparison.sides import Side
from pipeline.products.csv_table import write_csv
from pipeline.products.products import PERIODS_PARQUET

PERIODS_CHANGE = "change_periods.csv"
KEY = ["id", "period"]
COLUMNS = ("observed", "mean", "lower", "upper", "rate")
COUNTS = ("observed", "observed_lower", "observed_upper")
N_LISTED = 20  # corrections of the report
N_NAMED = 3  # areas and periods in the line for a terminal


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
        ``n_new`` counts and ``n_corrected``; ``corrected`` (id, period, before, after) of the
        largest; ``n_estimates``, whose mean in B is outside the interval of A. None where one side
        has no table of periods.
    """
    paths = [side.directory / PERIODS_PARQUET.file for side in (a, b)]
    if not all(path.is_file() for path in paths):
        return None
    # A table without any suppressed count lacks the columns of their ends.
    columns = [*KEY, *COLUMNS, *COUNTS[1:]]
    before, after = (pd.read_parquet(path).reindex(columns=columns) for path in paths)
    both = before.merge(after, on=KEY, suffixes=("_a", "_b"))
    given = [both[[f"{column}_{side}" for column in COUNTS]].to_numpy(float) for side in "ab"]
    known = [np.isfinite(values).any(axis=1) for values in given]
    equal = (given[0] == given[1]) | (np.isnan(given[0]) & np.isnan(given[1]))
    new, corrected = ~known[0] & known[1], known[0] & ~equal.all(axis=1)
    outside = ~both["mean_b"].between(both["lower_a"], both["upper_a"]) & both["mean_b"].notna()
    kept = both[new | corrected | outside]
    names = [f"{column}_{side}" for column in COLUMNS for side in "ab"]
    table = kept[[*KEY, *names]].assign(
        count=np.select([new[kept.index], corrected[kept.index]], ["new", "corrected"], ""),
        estimate=np.where(outside[kept.index], "outside the interval before", ""),
    )
    write_csv(table, directory / PERIODS_CHANGE)
    # Of intervals the middle; a count that was taken back is the largest correction.
    middles = [np.where(np.isnan(v[:, 0]), v[:, 1:].mean(axis=1), v[:, 0]) for v in given]
    moved = pd.Series(np.abs(middles[1] - middles[0]), both.index).fillna(np.inf)[corrected]
    rows = both.loc[moved.sort_values(ascending=False).index[:N_LISTED]]
    told = rows[[*KEY, "observed_a", "observed_b"]].astype(object)
    told = told.where(told.notna(), None).to_dict("records")
    return {
        "n_new": int(new.sum()),
        "n_corrected": int(corrected.sum()),
        "corrected": [{str(k): v for k, v in row.items()} for row in told],
        "n_estimates": int(outside.sum()),
    }


def periods_line(found: dict[str, Any]) -> str:
    """Return what is told of all periods, in one line."""
    text = f"All periods: {found['n_new']:,} new counts, {found['n_corrected']:,} corrected"
    if found["corrected"]:
        each = [
            " ".join([row["id"], row["period"], _count(row["observed_a"]), "->"])
            + f" {_count(row['observed_b'])}"
            for row in found["corrected"]
        ]
        text += f" ({name_first(each, N_NAMED)})"
    n = found["n_estimates"]
    return f"{text}; {n:,} estimates are outside their interval before ({PERIODS_CHANGE})"


def _count(value: float | None) -> str:
    return "no number" if value is None else f"{value:,.0f}"
