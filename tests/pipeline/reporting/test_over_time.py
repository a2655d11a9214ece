"""Periods on the page, against the rasters and the table that it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.bands import read
from tests.pipeline.reporting.conftest import page_data
from tests.pipeline.reporting.test_page import picture, rows_of
from tests.pipeline.series_inputs import QUARTERS

MAPPED = ["2022-Q1", "2023-Q2", "2023-Q3"]


@pytest.fixture(scope="module")
def page(quarters: Path) -> str:
    return (quarters / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def layers(page: str) -> dict[str, Any]:
    return {each["name"]: each for each in page_data(page)["times"]}


def _stand_for(layer: Any) -> np.ndarray:
    return np.array([float(re.sub("[^0-9.]", "", text)) for text in layer["values"]])


def _assert_shown(layer: Any, at: np.ndarray, values: np.ndarray) -> None:
    """Check that each value is nearer to its colour than to those beside; the ends have more."""
    known = np.isfinite(values)
    np.testing.assert_array_equal(known, at >= 0)
    shown = _stand_for(layer)
    values = values[known].clip(shown[0], shown[-1])
    around = np.pad(shown, 1, mode="edge")
    decimals = [len(re.sub("[^0-9.]", "", text).partition(".")[2]) for text in layer["values"]]
    rounded = np.pad(0.5001 * 10.0 ** -np.array(decimals, float), 1, mode="edge")  # of the texts
    assert (values >= (around - rounded)[at[known]]).all()
    palette = np.array(layer["palette"])  # pale colours stand for several steps: up to the last
    last = np.array([np.flatnonzero(palette == colour).max() for colour in palette])
    assert (values <= (around + rounded)[last[at[known]] + 2]).all()
    assert np.unique(at[known]).size > 2


def test_layers_are_those_of_most_periods_first(layers: dict[str, Any]) -> None:
    assert list(layers) == [
        *("areas_rate_mean", "areas_outbreak", "areas_anomaly"),
        *("pixels_rate_mean", "pixels_outbreak", "pixels_anomaly"),
    ]
    assert [each["label"] for each in layers["areas_rate_mean"]["frames"]] == [
        *QUARTERS,
        "2023-Q3",
    ]
    # The third and fourth quarter of 2022 have no other year.
    of_season = [each["label"] for each in layers["areas_outbreak"]["frames"]]
    assert of_season == ["2022-Q1", "2022-Q2", "2023-Q1", "2023-Q2", "2023-Q3"]
    for name in ("rate_mean", "outbreak", "anomaly"):
        assert [each["label"] for each in layers[f"pixels_{name}"]["frames"]] == MAPPED
    for layer in layers.values():
        ahead = [each["label"] for each in layer["frames"] if each["forecast"]]
        assert ahead == ["2023-Q3"]


@pytest.mark.parametrize(
    ("name", "column"),
    [("rate_mean", "rate"), ("outbreak", "outbreak"), ("anomaly", "anomaly")],
)
def test_colours_are_the_values_of_the_table_and_of_the_rasters(
    quarters: Path, layers: dict[str, Any], name: str, column: str
) -> None:
    table = pd.read_csv(quarters / "periods.csv").set_index("period")
    layer = layers[f"areas_{name}"]
    for frame in layer["frames"]:
        own = table.loc[frame["label"]].set_index("id")[column].sort_index()
        at = np.array([-1 if k is None else k for k in frame["at"]])
        _assert_shown(layer, at, own.to_numpy())
    layer = layers[f"pixels_{name}"]
    palette = np.array(layer["palette"])
    for frame, below in zip(
        layer["frames"], ("periods/2022-Q1", "", "periods/2023-Q3"), strict=True
    ):
        values = read(quarters / below / f"{name}.tif")
        seen = picture(frame["uri"])
        colour = seen[..., :3] @ [1 << 16, 1 << 8, 1]
        at = np.abs(palette - colour[..., None]).argmin(axis=-1)
        assert (palette[at] == colour)[seen[..., 3] > 0].all()
        _assert_shown(layer, np.where(seen[..., 3] > 0, at, -1), values)


def test_a_small_line_is_the_rates_of_its_area(quarters: Path, page: str) -> None:
    table = pd.read_csv(quarters / "periods.csv")
    rows = rows_of(page, "table-areas")
    assert len(rows) == 16
    for row in rows:
        own = table[table["id"] == re.search(">(A[0-9]{2})</button>", row)[1]]  # type: ignore[index]
        rate = own["rate"].to_numpy()
        drawn = re.findall('<polyline class="(.*?)" points="(.*?)"/>', row)
        assert [kind for kind, _ in drawn] == ["", "ahead"]
        past, ahead = (np.array([p.split(",") for p in line.split()], float) for _, line in drawn)
        np.testing.assert_array_equal(past[-1], ahead[0])
        points = np.concatenate([past, ahead[1:]])
        np.testing.assert_allclose(np.diff(points[:, 0]), (110 - 4) / 6, atol=1.0)
        np.testing.assert_allclose((22 - points[:, 1]) / 20, rate / rate.max(), atol=0.003)
        (told,) = re.findall('aria-label="(.*?)"', row)
        assert f"in 2023-Q2; most {rate[:6].max():.3g} in {QUARTERS[rate[:6].argmax()]}" in told
        (by,) = re.findall('<td class="number" data-v="([^"]*)"><svg', row)
        assert float(by) == pytest.approx(rate[5] / rate[:6].mean())


def test_one_period_has_neither_slider_nor_lines(finished: Any) -> None:
    page = finished.page()
    assert page_data(page)["times"] == []
    assert 'id="map-times"' not in page
    assert "<polyline" not in page


def test_the_page_counts_what_the_map_is_from(page: str, quarters: Path) -> None:
    table = pd.read_csv(quarters / "periods.csv")
    n = int(table["observed"].notna().sum())
    given = f"{n:,} counts of areas in 6 quarters, 2022-Q1 to 2023-Q2"
    assert f"people a quarter, from {given}, made with disagg" in page  # how to cite it
    assert re.search(rf"The map is from {given}, and all \d+ pixels of 16 areas", page)
    (unit,) = {each["unit"] for each in page_data(page)["rasters"] if each["name"] == "rate_mean"}
    assert unit == "cases per 1,000 people a quarter"
    assert "Rate in cases per 1,000 people a quarter, from the counts of areas" in page
    assert "Two quarters that are" in page  # scales in time, with their unit
