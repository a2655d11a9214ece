"""People of some years: the months between have what compound growth says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import rasterio

from pipeline.cli.main import main
from pipeline.store.bag_store import BagStore
from tests.bands import read
from tests.pipeline.series_inputs import MONTHS, people, write_inputs, write_raster
from tests.typed import edit, run_each


def ingest(config: Path) -> dict[str, str]:
    """Ingest; return the fingerprints that the fit goes by."""
    assert main(["ingest", str(config), "--quiet"]) == 0
    known = json.loads((config.parent / "out/work/series.json").read_text())
    return {"standing": known["standing"], **known["moving"]}


def stored(config: Path, label: str) -> np.ndarray:
    """Return the people of the pixels of a period, in their order."""
    store = BagStore.open(config.parent / "out/work/bags.zarr", period=label)
    rows = store.read_rows(0, store.n_pix)
    found: np.ndarray = rows.weight[np.argsort(rows.pixel)]
    return found


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    config = write_inputs(tmp_path, 3)
    text = config.read_text().replace("people.tif", '"people_{year}.tif"')
    config.write_text(text + "evaluate: {schemes: []}\n", encoding="utf-8")
    return config


@pytest.mark.ci
def test_people_grow_between_the_years_that_have_a_file(
    configured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, growth = configured.parent, np.linspace(0.9, 1.4, 256).reshape(16, 16)
    write_raster(directory / "people_2023.tif", people())
    write_raster(directory / "people_2025.tif", people() * growth**2)
    assert main(["ingest", str(configured)]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "ingest: population" in line]
    assert len(told) == 1
    assert told[0].endswith("ingest: population: 2024 between the files of 2023 and 2025")
    # Two years of 365 and 366 days, July to July; the middle of January is 198.5 days in.
    for label, days in zip(MONTHS[:3], (198.5, 228.5, 258.5), strict=True):
        expected = people() * growth ** (2 * days / 731)
        np.testing.assert_allclose(stored(configured, label), expected.ravel(), rtol=1e-5)
    first = ingest(configured)
    # A later year that is corrected changes every month between, and nothing that stands still.
    write_raster(directory / "people_2025.tif", people())
    second = ingest(configured)
    assert [key for key in first if first[key] != second[key]] == list(MONTHS[:3])
    np.testing.assert_allclose(stored(configured, "2024-03"), people().ravel(), rtol=1e-5)
    # The year's own file is taken as it is.
    write_raster(directory / "people_2024.tif", 2 * people())
    ingest(configured)
    np.testing.assert_allclose(stored(configured, "2024-03"), 2 * people().ravel(), rtol=1e-5)


@pytest.mark.ci
def test_a_new_year_is_no_reason_to_fit_again(configured: Path) -> None:
    """The grid is that of the first period, and what stands still has no people of the last."""
    directory = configured.parent
    edit(configured, {"{step: month}": "{step: month, from: 2023-12}"})
    (directory / "rain_2023-12.tif").write_bytes((directory / "rain_2024-01.tif").read_bytes())
    for year in (2023, 2024):
        write_raster(directory / f"people_{year}.tif", (year - 2022) * people())
    table = (directory / "cases.csv").read_text().splitlines(keepends=True)
    december = [line.replace("2024-01", "2023-12") for line in table if "2024-01" in line]
    (directory / "cases.csv").write_text("".join([*table, *december]), encoding="utf-8")
    assert main(["ingest", str(configured), "--quiet", "--period", "2023-12"]) == 0
    before = json.loads((directory / "out/work/series.json").read_text())
    after = ingest(configured)
    assert after["standing"] == before["standing"]
    assert after["2023-12"] == before["moving"]["2023-12"]
    for label, factor in (("2023-12", 1), ("2024-02", 2)):
        expected = factor * people().ravel()
        np.testing.assert_allclose(stored(configured, label), expected, rtol=1e-5)


def test_years_on_other_grids_are_one_line(
    configured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = configured.parent
    write_raster(directory / "people_2023.tif", people())
    with rasterio.open(directory / "people_2023.tif") as file:
        profile = {**file.profile, "height": 8, "width": 8}
        profile["transform"] = profile["transform"] @ profile["transform"].scale(2.0)
    with rasterio.open(directory / "people_2025.tif", "w", **profile) as file:
        file.write(people()[::2, ::2], 1)
    assert main(["ingest", str(configured), "--quiet"]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert "people_2023.tif): has another grid than " in told[0]
    assert not (directory / "out/work/bags.zarr").exists()


@pytest.mark.ci
def test_people_alone_may_move_and_forecasts_have_those_of_their_months(configured: Path) -> None:
    directory = configured.parent
    lines = configured.read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("  rain:"))
    configured.write_text(text, encoding="utf-8")
    write_raster(directory / "people_2023.tif", people())
    write_raster(directory / "people_2025.tif", 2.25 * people())
    run_each(configured, "ingest", "fit", "predict")
    table = pd.read_csv(directory / "out/periods.csv")
    for label, days in zip((*MONTHS[:3], "2024-04"), (198.5, 228.5, 258.5, 289.0), strict=True):
        total = table.loc[table["period"] == label, "people"].sum()
        assert total == pytest.approx(people().sum() * 1.5 ** (2 * days / 731), rel=1e-5)
    known = json.loads((directory / "out/work/ahead/ahead.json").read_text())
    assert known["2024-04"]["known"] == ["population"]
    cases = read(directory / "out/periods/2024-04/cases_mean.tif").sum()
    mean = table.loc[table["period"] == "2024-04", "mean"].sum()
    assert cases == pytest.approx(mean, rel=1e-3)
