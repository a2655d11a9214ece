"""The content of ``compare.json``, and the table of areas that it and ``change.csv`` have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from pipeline.comparison.alarms import RATE, find_changes
from pipeline.comparison.differences import what_differed
from pipeline.comparison.pixels import PixelChange
from pipeline.comparison.sides import Side
from pipeline.comparison.words import headline
from pipeline.core.json_values import jsonable
from pipeline.products.suppressed import LOWER, UPPER
from pipeline.reporting.tables import name_column
from pipeline.responses.response import Response

N_LISTED = 10  # areas that rose, or fell, most


def change_report(
    a: Side,
    b: Side,
    method: dict[str, Any],
    pixels: PixelChange,
    table: pd.DataFrame,
    total: dict[str, Any],
    noise: float | None,
    sure: float,
    notes: list[str],
    unit: str,
) -> dict[str, Any]:
    """Return the content of ``compare.json``.

    Parameters
    ----------
    a, b : Side
    method : dict
        How pixels and areas were compared.
    pixels : PixelChange
    table : DataFrame
        From :func:`described_table`.
    total : dict
        Of the areas that both have.
    noise : float or None
        Between areas; None of labels.
    sure : float
        Probability from which on something has risen.
    notes : list of str
    unit : str
        Of differences.
    """
    probability = table["change_probability"]
    areas = {
        "n_common": int((table["in_maps"] == "A and B").sum()),
        "n_rose": int((probability >= sure).sum()),
        "n_fell": int((probability <= 1 - sure).sum()),
        "n_rose_independent": int((table["change_probability_independent"] >= sure).sum()),
        "n_counts": None if noise is None else int(table["change_p_value"].notna().sum()),
        "n_counts_rose": None if noise is None else int((table["changed"] == "rose").sum()),
        "n_counts_fell": None if noise is None else int((table["changed"] == "fell").sum()),
        "counts_rose": _told(table, "rose"),
        "counts_fell": _told(table, "fell"),
        "false_discovery_rate": RATE,
        "noise_between_areas": noise,
        "n_fell_independent": int((table["change_probability_independent"] <= 1 - sure).sum()),
        "largest_rises": _largest(table, up=True),
        "largest_falls": _largest(table, up=False),
        "only_in_a": list(table.index[table["in_maps"] == "A"]),
        "only_in_b": list(table.index[table["in_maps"] == "B"]),
    }
    if total:  # of the areas that the expected totals are of
        known = table[[f"{name}_{x}" for name in ("expected", "observed") for x in "ab"]]
        chosen = known[known.notna().all(axis=1)]
        if len(chosen) == total["n_areas"]:
            sums = {x: float(chosen[f"observed_{x}"].sum()) for x in "ab"}
            total = {**total, "observed": sums}
    words = b.response
    report = {
        "format": "disagg-comparison",
        "version": 1,
        "a": a.summary(),
        "b": b.summary(),
        "unit": unit,
        "words": {
            "quantity": words.quantity,
            "rates": words.rates,
            "noun": words.noun,
            "expected": words.fitted,
            "observed": f"observed {words.total}",
        },
        "interval": b.config.output.interval,
        "sure": round(sure, 6),
        "method": method,
        "notes": notes,
        "pixels": asdict(pixels),
        "areas": areas,
        "total": total,
        "differed": what_differed(a.run, b.run),
    }
    report["headline"] = headline(report)
    found: dict[str, Any] = jsonable(report)
    return found


def _told(table: pd.DataFrame, word: str) -> list[str]:
    """Return the areas that are told, the surest first, with their names."""
    if "changed" not in table:
        return []
    told = table[table["changed"] == word].sort_values("change_p_value", kind="stable")
    names = told["name"] if "name" in told else pd.Series(None, told.index, dtype=object)
    return [
        f"{code} ({name})" if isinstance(name, str) else str(code) for code, name in names.items()
    ]


def _largest(table: pd.DataFrame, *, up: bool) -> list[dict[str, Any]]:
    ordered = table["difference"].dropna().sort_values(ascending=not up, kind="stable")
    ordered = ordered[ordered > 0] if up else ordered[ordered < 0]
    return [
        {
            "id": str(name),
            "difference": float(value),
            "ratio": float(table.loc[name, "ratio"]),
            "probability": float(table.loc[name, "change_probability"]),
        }
        for name, value in ordered.head(N_LISTED).items()
    ]


def moments(frame: pd.DataFrame, response: Response) -> pd.DataFrame:
    """Return mean and standard deviation of the rates of a table of areas."""
    nothing = np.full(len(frame), np.nan)
    if not response.drawn:
        columns = {"rate": frame[response.level], "sd": frame[f"{response.level}_sd"]}
        return pd.DataFrame({**columns, "exposure": nothing, "expected": nothing}, frame.index)
    # Per person, by the table's own rates: also where they are per person tested.
    per = frame["fitted_rate"] / frame["fitted"]
    exposure = frame["tested"] if "tested" in frame else frame["people"]
    return pd.DataFrame(
        {
            "rate": frame["fitted_rate"],
            "sd": frame["fitted_sd"] * per,
            "exposure": exposure,
            "expected": frame["fitted"],
        }
    )


def described_table(
    table: pd.DataFrame, layers: Sequence[pd.DataFrame], of_a: Side, side: Side
) -> tuple[pd.DataFrame, float | None]:
    """Add names, observed values, the areas that changed beyond chance; areas without pixels too.

    Also return the noise between areas, None of labels.
    """
    a, b = layers
    exposed = side.response.exposure_column  # as in areas.csv
    table = table.rename(columns={f"exposure_{x}": f"{exposed}_{x}" for x in "ab"})
    ids = [*b.index, *a.index.difference(b.index, sort=False)]
    result = table.reindex(pd.Index(ids, name="id"))
    has_a, has_b = result.index.isin(a.index), result.index.isin(b.index)
    result.insert(0, "in_maps", np.where(has_a & has_b, "A and B", np.where(has_a, "A", "B")))
    hidden = any(LOWER in frame for frame in layers)
    for column in ("observed", LOWER, UPPER) if hidden else ("observed",):
        for letter, frame in (("a", a), ("b", b)):
            values = frame[column] if column in frame else pd.Series(np.nan, frame.index)
            result[f"{column}_{letter}"] = values.reindex(result.index)
    names = [_names(frame, each) for frame, each in ((b, side), (a, of_a))]
    named = [each for each in names if each is not None]
    if named:
        whole = named[0] if len(named) == 1 else named[0].combine_first(named[1])
        result.insert(0, "name", whole.reindex(result.index))
    if side.response.changes is None:
        return result, None
    sides = []
    scale = side.config.output.rate_per / of_a.config.output.rate_per
    for frame, factor in ((a, scale), (b, 1.0)):
        own = moments(frame, side.response)
        own[["rate", "sd"]] *= factor
        own["observed"] = frame["observed"]
        sides.append(own.reindex(result.index))
    tested, noise = find_changes(sides[0], sides[1], side.response.changes)
    result["change_p_value"], result["changed"] = tested["p_value"], tested["told"]
    return result, noise


def _names(frame: pd.DataFrame, side: Side) -> pd.Series | None:
    """Return the names of the areas: of `areas.name`, else the column that the report takes."""
    key = str(frame.index.name)
    column = name_column(frame, key, side.config.areas.name)
    return None if column == key else frame[column].astype(str)
