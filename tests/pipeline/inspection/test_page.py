"""The page of inputs: its numbers by a second route, and what it says of bad inputs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.cli.check import all_problems
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.inspection.page import area_table, correlations_of, file_lines, period_table
from pipeline.inspection.pictures import draw_periods
from pipeline.inspection.seen import N_SAMPLE, Copies, Seen, copies_of
from tests.bands import read
from tests.pipeline.series_inputs import MONTHS, area_of_pixel, people, write_inputs, write_raster


def _seen(config: Path) -> Seen:
    seen = Seen()
    all_problems(config, None, None, seen.look)
    return seen


@pytest.fixture(scope="module")
def months(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a configuration with a gap, a hole in a raster, and a count far from the others."""
    config = write_inputs(tmp_path_factory.mktemp("months"))
    rain = read(config.parent / f"rain_{MONTHS[-1]}.tif")
    rain[3, 4:9] = np.nan
    write_raster(config.parent / f"rain_{MONTHS[-1]}.tif", rain)
    table = pd.read_csv(config.parent / "cases.csv")
    last = table["month"] == MONTHS[-1]
    table.loc[last & (table["id"] == "A09"), "cases"] *= 30
    table[table["month"] != MONTHS[2]].to_csv(config.parent / "cases.csv", index=False)
    return config


@pytest.mark.parametrize("n_side", [16, 5])
def test_small_copies_are_means_of_blocks(months: Path, n_side: int) -> None:
    found: list[Copies] = []

    def look(_: Any, inputs: Any, members: Any, written: Any, __: Any) -> None:
        found.append(copies_of(inputs.grid, members, written, n_side))

    all_problems(months, None, None, look)
    (copies,) = found
    assert copies.side == {16: 1, 5: 4}[n_side]
    rain, block = read(months.parent / f"rain_{MONTHS[-1]}.tif"), copies.side
    for row, col in np.ndindex(*copies.values["rain"].shape):
        part = np.s_[row * block : (row + 1) * block, col * block : (col + 1) * block]
        if np.isfinite(rain[part]).any():
            assert copies.values["rain"][row, col] == pytest.approx(np.nanmean(rain[part]))
        km2 = people()[part].size * 1.0  # pixels of 1 km
        dense = copies.values["population"][row, col]
        assert dense == pytest.approx(people()[part].sum() / km2, rel=2e-3)  # on the ellipsoid
    assert copies.missing["rain"] == 5 / 256
    assert copies.bounds == pytest.approx((500_000, 8_984_000, 516_000, 9_000_000))


def test_correlations_are_those_of_the_pixels(months: Path) -> None:
    seen = _seen(months)
    assert seen.copies is not None
    assert seen.copies.n_inside == len(seen.copies.sample) == 256 < N_SAMPLE
    rain = read(months.parent / f"rain_{MONTHS[-1]}.tif").ravel()
    high = read(months.parent / "elevation.tif").ravel()
    both = np.isfinite(rain)
    table = correlations_of(seen.copies.sample[["elevation", "rain"]])
    expected = np.corrcoef(rain[both], high[both])[0, 1]
    assert table.loc["rain", "elevation"] == pytest.approx(expected, abs=1e-5)


def test_the_area_that_stands_apart_is_found(months: Path) -> None:
    config, seen = load_config(months), _seen(months)
    table = area_table(config, seen).set_index("id")
    assert list(table.index[table["odd"]]) == ["A09"]
    # By hand: the median rate of the eight nearest centres, on a logarithmic scale.
    cases = pd.read_csv(months.parent / "cases.csv")
    cases = cases[cases["month"] == MONTHS[-1]].set_index("id")["cases"].sort_index()
    n = np.bincount(area_of_pixel().ravel(), people().ravel())
    level = np.log((cases.to_numpy() + 0.5) / n)
    row, col = np.divmod(np.arange(16), 4)
    for name in ("A05", "A09"):
        k = int(name[1:])
        near = np.argsort((row - row[k]) ** 2 + (col - col[k]) ** 2, kind="stable")[1:9]
        expected = np.exp(np.median(level[near])) * n[k]
        assert table.loc[name, "expected"] == pytest.approx(expected, rel=1e-6)
        assert table.loc[name, "rate"] == pytest.approx(1000 * cases[name] / n[k], rel=1e-6)


def test_periods_are_those_of_the_table(months: Path) -> None:
    config, seen = load_config(months), _seen(months)
    cases = pd.read_csv(months.parent / "cases.csv")
    found = period_table(seen.periods, seen.hidden, "cases").set_index("period")
    assert list(found.index) == list(MONTHS)
    for month in MONTHS:
        own = cases.loc[cases["month"] == month, "cases"]
        assert found.loc[month, "missing"] == 16 - own.notna().sum()
        assert found.loc[month, "zero"] == (own == 0).sum()
        if own.size:
            assert found.loc[month, "cases"] == own.sum()
    assert np.isnan(found.loc[MONTHS[2], "cases"])
    (line,) = file_lines(config, seen)
    assert line == (
        "covariates.rain: a file of every period; none of the forecasts 2024-07: "
        "other years stand in."
    )


def test_suppressed_counts_are_neither_missing_nor_a_number(months: Path) -> None:
    table = pd.read_csv(months.parent / "cases.csv", dtype={"cases": str})
    hidden = (table["month"] == MONTHS[-1]) & table["id"].isin(["A01", "A02"])
    table.loc[hidden, "cases"] = "<5"
    table.to_csv(months.parent / "hidden.csv", index=False)
    config_path = months.with_name("hidden.yaml")
    config_path.write_text(months.read_text().replace("cases.csv", "hidden.csv"))
    config, seen, before = load_config(config_path), _seen(config_path), _seen(months)
    row = period_table(seen.periods, seen.hidden, "cases").set_index("period").loc[MONTHS[-1]]
    own = before.periods[MONTHS[-1]]
    assert row["suppressed"] == 2
    assert row["missing"] == own.isna().sum()
    assert row["cases"] == own.drop(["A01", "A02"]).sum()
    areas = area_table(config, seen).set_index("id")
    assert areas.loc["A01", "suppressed"] == "<5"
    assert np.isnan(areas.loc["A01", "value"])
    assert areas["suppressed"].notna().sum() == 2
    drawn = draw_periods(seen.periods, seen.hidden, seen.areas["name"].to_numpy(), "cases")
    assert drawn is not None
    assert "2 are suppressed (orange)" in drawn.alt


def test_the_page_needs_nothing_else(months: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    text = months.read_text().replace("name: months", 'name: "<script>alert(1)</script>"')
    config = months.with_name("named.yaml")
    config.write_text(text)
    assert main(["check", str(config), "--html", str(page), "--quiet"]) == 0
    html = page.read_text()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert not re.search(r"(src|href)=\"(?!data:|#)", html)
    pictures = re.findall(r"<img [^>]*>", html)
    assert len(pictures) == 7  # rates, people, periods, three layers, correlations
    assert all(len(re.search(r'alt="([^"]*)"', each)[1]) > 20 for each in pictures)  # type: ignore[index]
    assert "1 of 16 stand apart: A09" in html


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("value: cases", "value: case"), "has no column &#39;case&#39;"),
        (("{step: month}", "{step: lunar}"), "not a choice"),
        (("elevation.tif", "nowhere.tif"), "no file"),
        (("areas.gpkg", "nothing.gpkg"), "no file"),
    ],
)
def test_a_page_of_bad_inputs_names_them(
    months: Path, tmp_path: Path, change: tuple[str, str], told: str
) -> None:
    config, page = months.with_name("bad.yaml"), tmp_path / "page.html"
    config.write_text(months.read_text().replace(*change))
    assert main(["check", str(config), "--html", str(page), "--quiet"]) == 2
    assert "1 problem: a run would fail" in page.read_text()
    assert told in page.read_text()


def test_a_file_without_html_is_refused(
    months: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["check", str(months), str(page)]) == 2
    assert "give --html to write a page" in capsys.readouterr().err
    assert not page.exists()
