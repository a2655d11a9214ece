"""Suspicions about periods: a slip of the pen in a year must not make a series of decades."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.reader import load_config
from pipeline.ingest.period_suspicions import period_suspicions

MONTHS = [f"2022-{month:02d}" for month in range(1, 13)]
TODAY = date(2023, 3, 1)


def told(files: Any, periods: list[str], **time: str) -> list[str]:
    """Return the suspicions of a series with these months, of each area."""
    lines = [f"{area},{period},3" for period in periods for area in files.ids]
    text = "\n".join(["code,month,cases", *lines])
    (files.directory / "cases.csv").write_text(text, encoding="utf-8")
    counts = {"path": "cases.csv", "value": "cases", "period": "month"}
    return of(files, {"counts": counts, "time": {"step": "month", **time}})


def of(files: Any, keys: dict[str, Any]) -> list[str]:
    path: Path = files.directory / "map.yaml"
    path.write_text(yaml.safe_dump({**files.mapping(), **keys}), encoding="utf-8")
    return [str(each) for each in period_suspicions(load_config(path), TODAY)]


def test_months_of_the_past_raise_none(files: Any) -> None:
    assert told(files, MONTHS) == []
    assert told(files, [*(m.replace("2022", "2012") for m in MONTHS), *MONTHS]) == []
    assert told(files, [*MONTHS, "2052-12"], to="2022-12") == []


def test_a_year_after_today_and_one_long_ago_are_named(files: Any) -> None:
    (found,) = told(files, [*MONTHS, "2052-12"])
    assert "column 'month' has periods after today: row 110 ('2052-12')" in found
    assert "leave it out (time.to: 2022-12)" in found
    (found,) = told(files, ["2002-12", *MONTHS])
    assert "years away from all others: row 2 ('2002-12')" in found
    assert "time.from: 2022-01" in found


def test_a_column_of_a_wide_table_is_named(files: Any) -> None:
    lines = [f"{area},1,2" for area in files.ids]
    text = "\n".join(["code,2022-01,2052-12", *lines])
    (files.directory / "cases.csv").write_text(text, encoding="utf-8")
    counts = {"path": "cases.csv", "value": "cases", "periods": "columns"}
    (found,) = of(files, {"counts": counts, "time": {"step": "month"}})
    assert "column '2052-12'" in found
