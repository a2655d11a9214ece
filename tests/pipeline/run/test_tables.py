"""Covariates that are tables of areas, and a country without any raster: inputs to maps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import shapely

from geo.core.columns import AREA_ID
from geo.core.errors import InputError, Problem
from pipeline.cli.main import main
from pipeline.config.covariate_schema import Covariate
from pipeline.config.reader import load_config
from pipeline.ingest.table_layers import AreaTables
from pipeline.store.bag_store import BagStore
from tests.pipeline.series_inputs import (
    MONTHS,
    area_of_pixel,
    areas,
    counts,
    people,
    rain,
    true_rate,
    write_inputs,
)
from tests.typed import edit, run_each

GRID = 'grid:        {crs: "EPSG:32736", resolution: 1000}\n'
TABLES = """\
covariates:
  rain:    {table: climate.csv, value: mm, period: when, lag: [0, 1]}
  minutes: {table: access.csv, transform: log1p, units: min}
"""
IDS = [f"A{k:02d}" for k in range(16)]


def climate(first: int = -1, n: int = 4) -> pd.DataFrame:
    """Return the mean rain of each area, its months as 202401, and that of an area elsewhere."""
    rows = []
    for month in range(first, n):
        label = (pd.Period("2024-01") + month).strftime("%Y%m")
        own = np.bincount(area_of_pixel().ravel(), rain(month).ravel()) / 16
        rows += [(name, label, value) for name, value in zip(IDS, own, strict=True)]
        rows.append(("elsewhere", label, 1e6))
    return pd.DataFrame(rows, columns=["id", "when", "mm"])


def minutes() -> pd.DataFrame:
    """Return what stands still."""
    values = np.random.default_rng(0).gamma(2.0, 20.0, 16).round(1)
    return pd.DataFrame({"id": IDS, "minutes": values})


def no_rasters(directory: Path, covariates: str = TABLES, n: int = 3) -> Path:
    """Write inputs without rasters; people of areas are a column of the counts."""
    config = write_inputs(directory, n)
    text = config.read_text("utf-8").replace("value: cases", "value: cases, weight: people")
    start, stop = text.index("population:"), text.index("time: ")
    text = text[:start] + GRID + covariates + text[stop:]
    config.write_text(f"{text}evaluate:    {{schemes: [], calibration: none}}\n", encoding="utf-8")
    for raster in directory.glob("*.tif"):
        raster.unlink()
    table = counts(n)
    of_area = np.bincount(area_of_pixel().ravel(), people().ravel())
    table["people"] = [of_area[IDS.index(name)] for name in table["id"]]
    # A row that is missing: its people are those of the month before.
    keep = (table["id"] != "A07") | (table["month"] != "2024-03")
    table[keep].to_csv(directory / "cases.csv", index=False)
    climate().to_csv(directory / "climate.csv", index=False)
    minutes().to_csv(directory / "access.csv", index=False)
    return config


@pytest.mark.ci
def test_each_area_has_its_own_values(tmp_path: Path) -> None:
    config = no_rasters(tmp_path)
    # Borders that no pixel has: an area keeps its own value in pixels that others have more of.
    moved = areas()
    moved.geometry = moved.translate(333.0, 410.0)
    moved.to_file(tmp_path / "areas.gpkg", driver="GPKG")
    climate().to_parquet(tmp_path / "climate.parquet")
    config.write_text(config.read_text("utf-8").replace("climate.csv", "climate.parquet"), "utf-8")
    assert main(["ingest", str(config), "--quiet"]) == 0
    mm = climate().pivot(index="id", columns="when", values="mm")
    still = np.log1p(minutes().set_index("id")["minutes"])
    for label, before in (("2024-01", "2023-12"), ("2024-03", "2024-02")):
        store = BagStore.open(tmp_path / "out/work/bags.zarr", period=label)
        assert store.covariates == ("minutes", "rain", "rain_lag1")
        assert store.units[0] == "min"
        x = store.read_rows(0, store.n_pix).x
        ids = np.repeat(store.ids, store.sizes)
        expected = [still[ids], mm[label.replace("-", "")][ids], mm[before.replace("-", "")][ids]]
        np.testing.assert_allclose(x, np.stack(expected, axis=1), rtol=1e-6)
        of_area = pd.Series(np.bincount(area_of_pixel().ravel(), people().ravel()), IDS)
        np.testing.assert_allclose(store.bag_weight, of_area[list(store.ids)], rtol=1e-6)


@pytest.mark.ci
def test_a_longer_or_corrected_table_touches_only_its_periods(tmp_path: Path) -> None:
    config = no_rasters(tmp_path)
    assert main(["ingest", str(config), "--quiet"]) == 0

    def written() -> dict[str, int]:
        found = next((tmp_path / "out/work/bags.zarr").rglob("periods/2024-01")).parent
        return {each.name: (each / "zarr.json").stat().st_mtime_ns for each in found.iterdir()}

    first = written()
    longer = climate(first=-2, n=5)
    longer.to_csv(tmp_path / "climate.csv", index=False)
    assert main(["ingest", str(config), "--quiet"]) == 0
    assert written() == first
    longer.loc[(longer["id"] == "A03") & (longer["when"] == "202402"), "mm"] += 1.0
    longer.to_csv(tmp_path / "climate.csv", index=False)
    assert main(["ingest", str(config), "--quiet"]) == 0
    now = written()
    assert [label for label in first if now[label] != first[label]] == [
        label for label in first if label in ("2024-02", "2024-03")
    ]


@pytest.mark.ci
def test_a_country_without_rasters_is_mapped_and_foreseen(tmp_path: Path) -> None:
    config = no_rasters(tmp_path)
    run_each(config, "ingest", "fit", "predict")
    table = pd.read_csv(tmp_path / "out/periods.csv").set_index(["period", "id"])
    of_area = np.bincount(area_of_pixel().ravel(), people().ravel())
    for month, label in enumerate(MONTHS[:3]):
        expected = np.bincount(area_of_pixel().ravel(), (people() * true_rate(month)).ravel())
        found = table.loc[label].loc[IDS]
        np.testing.assert_allclose(found["people"], of_area, rtol=1e-6)  # A07 in March, too
        assert np.corrcoef(np.log(found["mean"]), np.log(expected))[0, 1] > 0.9
    ahead = table.loc["2024-04"].loc[IDS]
    np.testing.assert_allclose(ahead["people"], of_area, rtol=1e-6)
    ratio = ahead["mean"].sum() / table.loc["2024-03"]["mean"].sum()
    assert 0.3 < ratio < 3.0


@pytest.mark.ci
def test_space_and_time_alone(tmp_path: Path) -> None:
    config = no_rasters(tmp_path, covariates="")
    assert main(["run", str(config), "--quiet"]) == 0
    table = pd.read_csv(tmp_path / "out/periods.csv").set_index(["period", "id"])
    seen = table[table["observed"].notna()]
    assert np.corrcoef(np.log(seen["mean"]), np.log(seen["observed"]))[0, 1] > 0.9
    edit(config, {"model:\n": "model:\n  kernel: ridge(x)\n"})
    assert main(["fit", str(config), "--quiet"]) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda table: table[(table["id"] != "A03") | (table["when"] != "202402")],
            "column 'mm' has no value of A03 in 2024-02; add it",
        ),
        (
            lambda table: table[table["when"] >= "202401"],
            "has no row of 2023-12 (column 'when' has 202401, 202402, 202403",
        ),
        (lambda table: pd.concat([table, table.iloc[20:21]]), "of area 'A03' in 2024-01; keep"),
        (lambda table: table.replace({"mm": {1e6: "much"}}), "is no number in row"),
        (lambda table: table.rename(columns={"mm": "rain"}), "no column 'mm'"),
    ],
)
def test_what_a_table_lacks_is_one_line(tmp_path: Path, capsys, change, said: str) -> None:
    config = no_rasters(tmp_path)
    change(climate().astype({"mm": object})).to_csv(tmp_path / "climate.csv", index=False)
    assert main(["ingest", str(config), "--quiet"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if said in line]
    assert lines, capsys.readouterr()
    assert "covariates.rain" in lines[0]
    assert str(tmp_path / "climate.csv") in lines[0]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{table: access.csv, band: 2}", "covariates.minutes.band: given with a table"),
        ("{path: access.tif, value: mm}", "covariates.minutes.value: given without a table"),
        ("{path: access.tif, table: access.csv}", "a path and a table; give one of them"),
        ("{transform: log1p}", "covariates.minutes.path: missing; add"),
        ("{table: none.csv}", "no file"),
        ("{table: access.csv, lag: 1}", "of a layer that stands still"),
    ],
)
def test_what_is_no_table_is_said(tmp_path: Path, section: str, said: str) -> None:
    config = no_rasters(tmp_path)
    text = config.read_text("utf-8")
    line = next(each for each in text.splitlines() if "minutes:" in each)
    config.write_text(text.replace(line, f"  minutes: {section}"), encoding="utf-8")
    with pytest.raises(InputError) as raised:
        load_config(config)
    assert said in str(raised.value)


def test_one_period_takes_its_own_rows(tmp_path: Path) -> None:
    config = no_rasters(tmp_path)
    text = config.read_text("utf-8").replace(", lag: [0, 1]", "")
    start, stop = text.index("time:        {step"), text.index("fit: ")
    alone = text[:start] + text[stop:].replace(', periods: ["2024-01"], forecast: 1', "")
    config.write_text(alone, encoding="utf-8")
    table = climate()
    table["when"] = table["when"].str[:4] + "-" + table["when"].str[4:]
    table.to_csv(tmp_path / "climate.csv", index=False)
    assert main(["ingest", str(config), "--period", "2024-02", "--quiet"]) == 0
    store = BagStore.open(tmp_path / "out/work/bags.zarr")
    mm = table[table["when"] == "2024-02"].set_index("id")["mm"]
    x = store.read_rows(0, store.n_pix).x
    expected = mm[np.repeat(store.ids, store.sizes)]
    np.testing.assert_allclose(x[:, store.covariates.index("rain")], expected, rtol=1e-6)


@pytest.fixture
def coded() -> gpd.GeoDataFrame:
    codes = ["001", "002", "010"]
    squares = [shapely.box(i, 0, i + 1, 1) for i in range(3)]
    named = {AREA_ID: codes, "name": ["Kéran", "Bassar", "Assoli"]}
    return gpd.GeoDataFrame(named, geometry=squares, crs="EPSG:4326")


def _values(
    areas: gpd.GeoDataFrame, directory: Path, text: str, **keys: str
) -> tuple[list[float] | None, str]:
    (directory / "rain.csv").write_text(text, encoding="utf-8")
    covariate = Covariate(
        table=str(directory / "rain.csv"), **{"id": "code", "value": "rain", **keys}
    )
    problems: list[Problem] = []
    config = SimpleNamespace(covariates={"rain": covariate}, series=None)
    found = AreaTables(areas).values(config, "rain", problems)  # type: ignore[arg-type]
    return None if found is None else found.tolist(), " ".join(map(str, problems))


def test_numbers_with_a_decimal_comma_are_read_where_nothing_else_can_be_meant(
    coded: gpd.GeoDataFrame, tmp_path: Path
) -> None:
    text = "code;rain\n001;100,5\n002;7,25\n010;0,5\n"
    assert _values(coded, tmp_path, text) == ([100.5, 7.25, 0.5], "")
    _, said = _values(coded, tmp_path, "code;rain\n001;1,100\n002;2,250\n010;3,500\n")
    assert "is no number in row 2 ('1,100')" in said
    assert "a separator of thousands, or of decimals?" in said


def test_ids_without_their_zeros_and_names_have_their_remedies(
    coded: gpd.GeoDataFrame, tmp_path: Path
) -> None:
    text = "code,rain\n1,100\n2,120\n10,90\n"
    _, said = _values(coded, tmp_path, text)
    assert "if '1' is '001' and 2 more so, set covariates.rain.match: spelling" in said
    assert _values(coded, tmp_path, text, match="spelling") == ([100.0, 120.0, 90.0], "")
    _, said = _values(coded, tmp_path, "code,rain\nKERAN,100\nBASSAR,120\nASSOLI,90\n")
    assert "has what the areas have in their column 'name': write their ids" in said
