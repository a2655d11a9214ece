"""The walk and the month of a data manager, typed in an empty folder, on a smaller country."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import rasterio

from tests.small_months import AREAS
from tests.typed_pages import ROOT, page, typed_blocks, typist

TEXT = page("months-walk.md")


def _period(path: Path) -> str:
    with rasterio.open(path) as file:
        return str(file.tags()["period"])


@pytest.fixture
def typed(tmp_path: Path) -> Callable[..., str]:
    """Type a block in the folder ``work``; return what it says."""
    return typist(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_month_of_a_data_manager(tmp_path: Path, typed: Callable[[str], str]) -> None:
    text = page("data-manager.md")
    first, july, change, second, late, back = map(typed, typed_blocks(text))

    out = tmp_path / "work/monthly/out"
    assert "v0001" in first
    assert "update: 2023-07 taken in" in july
    assert "July" in text
    changed = pd.read_csv(tmp_path / "work/change/change.csv")
    assert len(changed) == AREAS
    assert "rose" in change or "no" in set(changed["changed"])
    assert re.search(r"\*.*v0002", second)
    assert re.search(r"update: .*2023-12 taken in", late)
    assert "changed by more than was uncertain" in late
    assert (out / "periods/2023-08/rate_mean.tif").is_file()
    assert re.search(r"\*.*v0002", back)  # v0003 was taken back
    assert not re.search(r"\*.*v0003", back)
    assert _period(out / "published/current/rate_mean.tif") == "2023-07"


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_walk_works_as_it_stands(tmp_path: Path, typed: Callable[[str], str]) -> None:
    """What a newcomer types, and nothing else: files and words are those that the page names."""
    said = []
    work = tmp_path / "work"
    out = work / "monthly/out"
    mapped = []
    for block in typed_blocks(TEXT):
        said.append(typed(block))
        map_of_block = out / "rate_mean.tif"
        mapped.append(_period(map_of_block) if map_of_block.is_file() else "")
    demo, first, july, five, correction, forecast, year = said

    assert "Later months wait in monthly/later" in demo
    assert len(list((work / "monthly/later").iterdir())) == 7
    assert mapped == ["", "2023-06", "2023-07", *["2023-12"] * 4]
    assert "forecasts 1 month ahead" in first
    assert "truth: " in first

    for said_here, months in ((july, ["07"]), (five, ["08", "09", "10", "11", "12"])):
        for month in months:
            assert f"update: 2023-{month} taken in" in said_here
            inside = rf"update: 2023-{month}: \d+ of \d+ new counts are inside the 90 % interval"
            assert re.search(inside, said_here)
        assert "fit: converged" not in said_here

    taken = re.search(r"update: (.*) taken in", correction)
    assert taken is not None
    assert "2023-08" in taken[1]
    again = re.search(r"predict: (.*): changed by more than was uncertain of it", correction)
    assert again is not None
    assert "2023-08" in again[1]
    assert (out / "periods/2023-08/rate_mean.tif").is_file()

    table = pd.read_csv(out / "periods.csv")
    assert set(table["period"][table["forecast"]]) == {"2024-01", "2024-02", "2024-03"}
    assert table.groupby("period").size().eq(AREAS).all()
    assert len(table) == AREAS * 27
    assert {"2024-01", "2024-02", "2024-03"} <= set(forecast.split())
    assert forecast.count(",2024-01,") == AREAS
    assert {"rate_mean.tif", "rate_lower.tif", "rate_upper.tif", "areas.csv"} <= set(year.split())
    assert (
        _period(out / "windows/last_12/rate_mean.tif") == "mean of the last 12 (2023-01 to 2023-12)"
    )
    # The correction has brought what was late: the year has all of its counts in half its months.
    of_year = pd.read_csv(out / "windows/last_12/areas.csv")
    assert of_year["counted"].between(6, 12).all()


def test_the_page_names_what_the_demo_and_the_update_say() -> None:
    sources = "".join(
        (ROOT / path).read_text(encoding="utf-8")
        for path in ("pipeline/training/update.py", "pipeline/prediction/series.py")
    )
    for words in ("taken in", "update: warning:", "changed by more than was uncertain of"):
        assert words in TEXT
        assert words in sources
