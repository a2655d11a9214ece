"""The balance of a run: one exposure and one count through raster, bags, table and map.

``ingest`` begins it and keeps it in the bag store, ``predict`` adds the fitted and the mapped
totals, ``evaluation.json`` has it under ``balance``. Where a number is not known it is None.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.text_tables import text_console, text_table
from pipeline.storage.files import write_json
from pipeline.storage.fingerprint import fingerprint_file

Balance = dict[str, Any]

#: Where predict leaves the balance for evaluate, in the output directory.
BALANCE = "work/balance.json"
MODEL = "work/model/arrays.npz"  # the model's description has times of its own

#: Rows of people: key, words, and whether the row is a part of the one above it.
_PEOPLE = (
    ("raster", "in the raster", False),
    ("outside_grid", "outside the grid", True),
    ("outside_areas", "outside every area", True),
    ("inside_areas", "inside areas", False),
    ("counted_twice", "counted twice: areas overlap", True),
    ("no_covariate", "left out: a covariate is missing", True),
    ("without_counts", "in areas without a {noun}: predicted only", True),
    ("other_areas", "left out: in areas that are not fitted", True),
    ("in_bags", "in bags", False),
    ("mapped", "mapped", False),
    ("mapped_outside", "mapped outside every area", True),
)


def balance_of(store: Any) -> Balance | None:
    """Return the balance that ingest wrote, with what is in the bags.

    Parameters
    ----------
    store : BagStore

    Returns
    -------
    dict or None
        ``unit``, ``people``, ``cases`` and ``areas`` (``docs/bag-store.md``); None for a store of
        an earlier version, or one that was not made by ingest.
    """
    begun = store.attrs.get("balance")
    if begun is None:
        return None
    people, unit = dict(begun["people"]), begun["unit"]
    counted = people["inside_areas"] + people["counted_twice"] - people["no_covariate"]
    in_training, own = store.in_training, store.bag_weight
    if store.exposure_factor is not None:  # weights that are given by area: of another unit
        own = own / np.where(store.exposure_factor > 0, store.exposure_factor, 1.0)
    # Without either, pixels of an earlier version have the weights: bags hold what areas do.
    same = store.exposure_factor is not None or store.attrs.get("weight_unit") == unit
    people["in_bags"] = float(own[in_training].sum()) if same else counted
    people["without_counts"] = float(own[~in_training].sum()) if same else 0.0
    rest = counted - people["in_bags"] - people["without_counts"]
    # Fractions are single precision.
    people["other_areas"] = rest if rest > 1e-5 * max(counted, 1.0) else 0.0
    cases = {**begun["cases"], "in_bags": float(np.nansum(store.observed[in_training]))}
    suppressed = int(np.isnan(store.observed[in_training]).sum())
    if suppressed:  # the sums are of the others
        cases["suppressed"] = suppressed
    if cases["given"] is not None:
        cases["left_out"] = _rounded_off(cases["given"] - cases["in_bags"], cases["given"])
    return {"unit": unit, "people": people, "cases": cases, "areas": dict(begun["areas"])}


def add_results(
    balance: Balance,
    fitted: dict[str, Any] | None,
    mapped: dict[str, Any] | None,
    uncounted: dict[str, Any] | None = None,
    *,
    everywhere: bool,
    tested: bool = False,
) -> None:
    """Add the fitted total and the sums of the maps to a balance.

    Parameters
    ----------
    balance : dict
        Changed in place.
    fitted : dict or None
        Total of the table of areas, ``cases.fitted``.
    mapped : dict or None
        Sums of the maps: ``people`` and ``people_outside``, ``cases``, ``cases_outside`` and
        ``counted_twice``.
    uncounted : dict, optional
        Totals of the areas without a count: ``people``, ``expected``.
    everywhere : bool
        Whether the maps show pixels outside all areas.
    tested : bool, optional
        Whether responses are positives among people tested: the maps then have those among all
        people, another number.
    """
    people, cases = balance["people"], balance["cases"]
    if fitted is not None:
        cases["fitted"] = fitted
    if uncounted:
        cases["without_counts"] = uncounted.get("expected")
    if mapped is None:
        return
    people["mapped"] = mapped["people"]
    cases["mapped"], cases["counted_twice"] = mapped["cases"], mapped["counted_twice"]
    if tested:
        cases["mapped_of"] = "all people, not only those tested"
    if everywhere:
        people["mapped_outside"] = mapped["people_outside"]
        cases["mapped_outside"] = mapped["cases_outside"]


def write_balance(out: Path, store: Any, balance: Balance) -> None:
    """Write the balance for the evaluate stage, and what it is of.

    Parameters
    ----------
    out : Path
        The output directory; its model is the one that ``balance`` is of.
    store : BagStore
    balance : dict
    """
    write_json(out / BALANCE, {"of": made_of(out, store), "balance": balance})


def read_balance(out: Path, store: Any) -> Balance | None:
    """Read the balance that predict wrote; that of ingest if it is of another store or model."""
    try:
        found = json.loads((out / BALANCE).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        found = {}
    if found.get("of") == made_of(out, store):
        balance: Balance = found["balance"]
        return balance
    return balance_of(store)


def made_of(out: Path, store: Any) -> dict[str, str]:
    """Return the fingerprints of the store and the model that a finding of predict is of."""
    return {"store": store.fingerprint, "model": fingerprint_file(out / MODEL)}


def render_balance(balance: Balance, title: str) -> str:
    """Write a balance as a text table; numbers that are 0 or not known have no row of parts."""
    unit = "people" if balance["unit"] == "people" else "km2"
    table = text_table(title, unit, balance["cases"].get("unit", "cases"))
    for words, part, *row in balance_rows(balance):
        table.add_row(("  " if part else "") + words, *(_number(value) for value in row))
    console = text_console()
    console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def balance_rows(balance: Balance) -> list[tuple[str, bool, float | None, float | None]]:
    """Return the rows of a balance: words, whether part of the one above, people, cases."""
    people, cases = balance["people"], balance["cases"]
    of_cases = {
        "inside_areas": cases.get("given"),
        "without_counts": cases.get("without_counts"),
        "other_areas": cases.get("left_out"),
        "counted_twice": cases.get("counted_twice"),
        "in_bags": cases.get("in_bags"),
        "mapped": cases.get("mapped"),
        "mapped_outside": cases.get("mapped_outside"),
    }
    rows: list[tuple[str, bool, float | None, float | None]] = []
    for key, words, part in _PEOPLE:
        row = [people.get(key), of_cases.get(key)]
        if key == "counted_twice":  # of the fit: it has its place below
            row[1] = None
        if not any(row) and (part or all(value is None for value in row)):
            continue
        if key == "mapped":
            rows += _fitted_rows(cases)
            words += f", of {cases['mapped_of']}" if "mapped_of" in cases else ""
        if key == "in_bags" and cases.get("suppressed"):
            words += f"; {cases['suppressed']:,} suppressed counts are in no sum"
        # Stores of before do not name what areas lack.
        rows.append((words.format(noun=cases.get("noun", "count")), part, *row))
    if people.get("mapped") is None:
        rows += _fitted_rows(cases)
    return rows


def _fitted_rows(cases: dict[str, Any]) -> list[tuple[str, bool, float | None, float | None]]:
    fitted = cases.get("fitted")
    if fitted is None:
        return []
    interval = f"{100 * fitted['interval']:g} %"
    rows: list[tuple[str, bool, float | None, float | None]] = [
        (f"fitted, sum of the table{_with_suppressed(fitted)}", False, None, fitted["mean"]),
        (f"{interval} predictive interval, from", True, None, fitted["lower"]),
        ("to", True, None, fitted["upper"]),
    ]
    error = fitted["monte_carlo_se"]
    if error is not None and _rounded_off(error, fitted["mean"]) != 0.0:
        rows.append(("Monte Carlo standard error", True, None, error))
    if cases.get("counted_twice") and "mapped_of" not in cases:
        rows.append(("counted twice: areas overlap", True, None, cases["counted_twice"]))
    return rows


def _with_suppressed(fitted: dict[str, Any]) -> str:
    """Say what a fitted total has that the observed one above it has not."""
    if not fitted.get("suppressed"):
        return ""
    least, most = _number(fitted["observed"]), _number(fitted["observed_most"])
    return f", with the {fitted['suppressed']:,} suppressed (observed: {least} to {most})"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.3g}"


def _rounded_off(value: float, of: float) -> float:
    """Return 0 for a difference that rounding alone can make."""
    return 0.0 if math.isclose(of - value, of, rel_tol=1e-12) else value
