"""The walk through tables in disorder, typed block by block, on a smaller country."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from tests.small_months import AREAS
from tests.typed_pages import page, typed_blocks, typist

TEXT = page("disorder.md")
BLOCKS = typed_blocks(TEXT)
REFUSED = 2  # exit status where the check finds a problem


def _months(work: Path) -> pd.DataFrame:
    table = pd.read_csv(work / "country/out/periods.csv").set_index(["period", "id"])
    assert len(table) == AREAS * table.index.unique("period").size
    return table


def _given(path: Path) -> dict[tuple[str, str], str]:
    """Return the cells of an office's table by name and month, read without the product."""
    rows = [line.split(";") for line in path.read_text(encoding="cp1252").splitlines()[3:]]
    return {(name, f"{month[3:]}-{month[:2]}"): count for name, month, count, _ in rows}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_walk_works_as_it_stands(tmp_path: Path) -> None:
    typed, work = typist(tmp_path), tmp_path / "work"
    refused = [k for k, block in enumerate(BLOCKS) if "check" in block and "html" not in block]
    said, tables = [], []
    for k, block in enumerate(BLOCKS):
        said.append(typed(block, REFUSED if k in refused else 0))
        if "update" in block or "run" in block:
            tables.append(_months(work))
        if "html" in block:
            walk = pd.read_csv(work / "country/disagg.crosswalk.csv", index_col="name")
    made, title, _, names, proposed, _, named, mapped, spelling, taken, more = said
    assert "In disorder" in made
    assert "skip_rows: 2" in title
    assert " count(s) match no area" in names
    assert f"({AREAS} in all) in column 'District'" in names
    assert "is not UTF-8 text; it is read as cp1252" in names
    assert "Port Espoir,,,0." in proposed
    assert "AR0002" not in proposed
    assert "no problems" in named
    assert "more suppressed" in named
    assert (work / "country/disagg-check.html").is_file()

    first, august, late = tables
    given = _given(work / "country/cases.csv")
    order = [name for name, month in given if month == "2022-01"]
    assert walk["area_id"][order].tolist() == [f"AR{k + 1:04d}" for k in range(AREAS)]
    for k, name in enumerate(order):
        for month in first.index.unique("period")[:7]:
            row, cell = first.loc[(month, f"AR{k + 1:04d}")], given.get((name, month), "")
            ends = row[["observed", "observed_lower", "observed_upper"]].fillna(-1).tolist()
            known = [-1, 1, 4] if cell == "<5" else [float(cell or -1), -1, -1]
            assert ends == known
            assert row["lower"] < row["mean"] < row["upper"]
    february = first.loc["2022-02"]
    assert {True, False} == set(february["observed"].isna())
    assert february["observed_lower"].notna().any()
    assert mapped.count(",2022-02,") == AREAS

    assert "upper sozira district (row" in spelling
    assert "crosswalk.new.csv" in spelling
    assert "upper sozira district,AR0001," in taken
    assert "update: 2022-08 taken in" in taken
    assert re.search(r"2022-08: \d+ of \d+ new counts are inside", taken)
    assert "2022-08 had been taken in before: its counts have changed" in more
    before, after = august.loc["2022-08"], late.loc["2022-08"]
    came = before["observed"].isna() & after["observed"].notna()
    assert came.sum() >= 2
    width = [each["upper"] - each["lower"] for each in (before[came], after[came])]
    assert width[1].sum() < width[0].sum()
    hidden = after["observed"].isna()
    assert hidden.any()
    assert (after.loc[hidden, "observed_upper"] == 4).all()


def test_the_page_says_what_the_commands_say() -> None:
    assert len(BLOCKS) == 11
    assert [block.split()[0] for block in BLOCKS].count("disagg") == 3
    for words in ("match no area", "more suppressed", "taken in", "none is near"):
        assert words in TEXT
