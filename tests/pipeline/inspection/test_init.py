"""A configuration from a folder: it passes the check, and what several files fit is asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
import typer
import xarray as xr
import yaml

from geo.sources.registry import source_of
from pipeline.cli.check import all_problems
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.inspection.columns import count_columns, step_of
from pipeline.inspection.folder import Folder
from pipeline.inspection.response import response_columns
from tests.pipeline.series_inputs import (
    MONTHS,
    areas,
    counts,
    elevation,
    people,
    rain,
    write_raster,
)
from tests.real_data import MADAGASCAR, real


def _one_period() -> pd.DataFrame:
    table = counts(1)
    return table[["id", "cases"]]


def _month(directory: Path) -> None:
    """Write a map of one period: numbers of districts, a density, a file of another kind."""
    areas().rename(columns={"id": "Code"}).to_file(directory / "d.geojson", driver="GeoJSON")
    _one_period().rename(columns={"id": "kode"}).to_csv(directory / "t.csv", index=False)
    write_raster(directory / "pop_density.tif", people())
    write_raster(directory / "Night Lights.tif", rain(1))
    (directory / "notes.txt").write_text("read me\n")


def _series(directory: Path) -> None:
    """Write months whose files say so, people of two years, provinces beside districts."""
    (directory / "shapes").mkdir()
    (directory / "climate").mkdir()
    own = areas().rename(columns={"id": "ADM2_PCODE"})
    own.to_file(directory / "shapes" / "adm2.shp")
    whole = gpd.GeoDataFrame({"ADM1": ["X"]}, geometry=[own.union_all()], crs=own.crs)
    whole.to_file(directory / "shapes" / "adm1.shp")
    table = counts().rename(columns={"month": "mois", "cases": "cas"})
    table.to_excel(directory / "Paludisme 2024.xlsx", index=False)
    for n, month in enumerate(MONTHS):
        write_raster(directory / "climate" / f"precip_{month}.tif", rain(n))
    write_raster(directory / "ghs_pop_2020.tif", people())
    write_raster(directory / "ghs_pop_2025.tif", 1.1 * people())
    write_raster(directory / "dem.tif", elevation())


def _tables(directory: Path) -> None:
    """Write a country without rasters, with people in the table of the counts."""
    areas().to_file(directory / "areas.gpkg")
    counts().assign(people=5000).to_csv(directory / "cases.csv", index=False)
    climate = counts()[["id", "month"]]
    climate["rain_mm"] = np.linspace(0.5, 99.5, len(climate))
    climate.to_csv(directory / "climate.csv", index=False)


def _own_columns(directory: Path) -> None:
    """Write people and climate beside the counts, and what follows from these."""
    areas().to_file(directory / "areas.gpkg")
    table = counts().assign(people=5000)
    rng = np.random.default_rng(1)
    table["rain_mm"] = rng.gamma(2.0, 30.5, len(table))
    table["temperature"] = np.where(np.arange(len(table)) == 3, np.nan, 20.5)
    cases = pd.to_numeric(table["cases"], errors="coerce").fillna(0.0)
    table["monthly_rate"], table["neighbours"] = cases / 5.0 + 0.01, cases * 1.5 + 0.25
    table.to_csv(directory / "cases.csv", index=False)


def _yields(directory: Path) -> None:
    """Write averages per hectare beside whole hectares, and what may explain them."""
    areas().to_file(directory / "areas.gpkg")
    table, rng = areas()[["id"]].copy(), np.random.default_rng(3)
    table["ha"] = rng.integers(100, 9000, len(table))
    table["Yield (t/ha)"] = rng.gamma(9.0, 0.25, len(table))
    table["rain_mm"] = rng.gamma(2.0, 30.5, len(table))
    table.to_csv(directory / "crops.csv", index=False)
    write_raster(directory / "people.tif", people())


def _wide(directory: Path) -> None:
    """Write a column a month, and ids in other capitals."""
    areas().to_file(directory / "areas.gpkg")
    table = counts().assign(id=lambda t: t["id"].str.lower())
    table.pivot_table("cases", "id", "month", "first").to_csv(directory / "counts.csv")
    write_raster(directory / "people.tif", people())


def _files(directory: Path) -> None:
    """Write a table a month."""
    areas().to_file(directory / "areas.gpkg")
    for month, own in counts().groupby("month"):
        own[["id", "cases"]].to_csv(directory / f"cases_{month}.csv", index=False)
    write_raster(directory / "people.tif", people())


def _title(directory: Path) -> None:
    """Write a sheet with a title and an empty row above the names."""
    areas().to_file(directory / "areas.gpkg")
    with pd.ExcelWriter(directory / "cases.xlsx") as writer:
        _one_period().to_excel(writer, index=False, startrow=2)
        writer.sheets["Sheet1"]["A1"] = "Malaria, confirmed cases by district, 2024"
    write_raster(directory / "people.tif", people())


def _title_of_text(directory: Path) -> None:
    """Write a CSV file with two lines above the names, the first of which fills all cells."""
    areas().to_file(directory / "areas.gpkg")
    text = "Ministry of Health\nMalaria cases,\n" + _one_period().to_csv(index=False)
    (directory / "cases.csv").write_text(text)
    write_raster(directory / "people.tif", people())


def write_cube(path: Path, times: pd.DatetimeIndex, *names: str) -> None:
    """Write a NetCDF on the grid of the people with a value of each time."""
    own = path.with_suffix(".tif")
    write_raster(own, people())
    with rasterio.open(own) as source:
        (height, width), place = source.shape, source.transform
        crs = {"crs_wkt": source.crs.to_wkt()}
    own.unlink()
    shape = (len(times), height, width)
    values = np.random.default_rng(2).random(shape, dtype=np.float32)
    data = xr.Dataset(
        {name: (("time", "y", "x"), values, {"grid_mapping": "spatial_ref"}) for name in names},
        {
            "time": times,
            "y": place.f + place.e * (np.arange(height) + 0.5),
            "x": place.c + place.a * (np.arange(width) + 0.5),
            "spatial_ref": ((), 0, crs),
        },
    )
    data.to_netcdf(path, engine="h5netcdf")


def _cubes(directory: Path) -> None:
    """Write a cube of two variables by month, and one of days."""
    areas().to_file(directory / "areas.gpkg")
    counts().to_csv(directory / "cases.csv", index=False)
    write_raster(directory / "people.tif", people())
    months = pd.date_range(f"{MONTHS[0]}-01", periods=len(MONTHS) + 2, freq="MS")
    write_cube(directory / "climate.nc", months, "rain", "temp")
    days = pd.date_range(f"{MONTHS[0]}-01", periods=31 * len(MONTHS), freq="D")
    write_cube(directory / "daily.nc", days, "wind")


@pytest.mark.parametrize("form", ["%Y%m", "%Y-%m-%d"])
def test_a_cube_dated_by_the_middle_of_months_has_a_band_of_each(tmp_path: Path, form: str) -> None:
    """Monthly means of climate data are so dated; tables of DHIS2 have 202401, Excel a day."""
    areas().to_file(tmp_path / "areas.gpkg")
    table = counts()
    table["month"] = pd.to_datetime(table["month"]).dt.strftime(form)
    table.to_csv(tmp_path / "cases.csv", index=False)
    write_raster(tmp_path / "people.tif", people())
    months = pd.date_range(f"{MONTHS[0]}-16", periods=len(MONTHS), freq="30D")
    write_cube(tmp_path / "climate.nc", months, "rain")
    assert main(["init", str(tmp_path), "--yes"]) == 0
    ((name, layer),) = yaml.safe_load((tmp_path / "disagg.yaml").read_text())["covariates"].items()
    assert layer == {"path": "climate.nc", "time": "{period}"}
    config = load_config(tmp_path / "disagg.yaml")
    with xr.open_dataset(tmp_path / "climate.nc") as cube:
        for number, label in enumerate(MONTHS):
            spec = config.at(label).covariates[name]
            source = source_of(spec.path, spec.choice)
            np.testing.assert_array_equal(source.read(), cube["rain"][number])


TITLED = {
    "areas": {"path": "areas.gpkg", "id": "id"},
    "population": {"path": "people.tif"}, "grid": {"like": "people.tif"},
}  # fmt: skip
WRITTEN = [
    (_title, {**TITLED, "counts": {"path": "cases.xlsx", "skip_rows": 1, "id": "id",
                                   "value": "cases"}}),
    (_title_of_text, {**TITLED, "counts": {"path": "cases.csv", "skip_rows": 2, "id": "id",
                                           "value": "cases"}}),
    (_month, {
        "areas": {"path": "d.geojson", "id": "Code"},
        "counts": {"path": "t.csv", "id": "kode", "value": "cases"},
        "population": {"path": "pop_density.tif", "density": True},
        "covariates": {"night_lights": {"path": "Night Lights.tif"}},
        "grid": {"like": "pop_density.tif"},
    }),
    (_series, {
        "areas": {"path": "shapes/adm2.shp", "id": "ADM2_PCODE"},
        "counts": {"path": "Paludisme 2024.xlsx", "id": "id", "value": "cas", "period": "mois"},
        "population": {"path": "ghs_pop_{year}.tif"},
        "covariates": {"dem": {"path": "dem.tif"},
                       "precip": {"path": "climate/precip_{period}.tif"}},
        "time": {"step": "month"},
    }),
    (_tables, {
        "areas": {"path": "areas.gpkg", "id": "id"},
        "counts": {"path": "cases.csv", "id": "id", "value": "cases", "period": "month",
                   "weight": "people", "weight_unit": "people"},
        "covariates": {"rain_mm": {"table": "climate.csv", "id": "id", "value": "rain_mm",
                                   "period": "month"}},
        "grid": {"crs": "EPSG:32736", "resolution": 100.0},
        "time": {"step": "month"},
    }),
    (_own_columns, {
        "areas": {"path": "areas.gpkg", "id": "id"},
        "counts": {"path": "cases.csv", "id": "id", "value": "cases", "period": "month",
                   "weight": "people", "weight_unit": "people"},
        "covariates": {"rain_mm": {"table": "cases.csv", "id": "id", "value": "rain_mm",
                                   "period": "month"}},
        "grid": {"crs": "EPSG:32736", "resolution": 100.0},
        "time": {"step": "month"},
    }),
    (_yields, {
        **TITLED,
        "counts": {"path": "crops.csv", "id": "id", "value": "Yield (t/ha)", "weight": "ha",
                   "weight_unit": "ha", "of": "average", "unit": "t/ha"},
        "covariates": {"rain_mm": {"table": "crops.csv", "id": "id", "value": "rain_mm"}},
        "model": {"likelihood": "gamma"},
    }),
    (_wide, {
        "areas": {"path": "areas.gpkg", "id": "id"},
        "counts": {"path": "counts.csv", "id": "id", "value": "cases", "match": "spelling",
                   "periods": "columns"},
        "population": {"path": "people.tif"}, "grid": {"like": "people.tif"},
        "time": {"step": "month"},
    }),
    (_cubes, {
        "areas": {"path": "areas.gpkg", "id": "id"},
        "counts": {"path": "cases.csv", "id": "id", "value": "cases", "period": "month"},
        "population": {"path": "people.tif"}, "grid": {"like": "people.tif"},
        "covariates": {
            name: {"path": "climate.nc", "variable": name, "time": "{period}"}
            for name in ("rain", "temp")
        },
        "time": {"step": "month"},
    }),
    (_files, {
        "areas": {"path": "areas.gpkg", "id": "id"},
        "counts": {"path": "cases_{period}.csv", "id": "id", "value": "cases"},
        "population": {"path": "people.tif"}, "grid": {"like": "people.tif"},
        "time": {"step": "month"},
    }),
]  # fmt: skip


@pytest.mark.parametrize(("write", "wanted"), WRITTEN)
def test_a_folder_makes_a_configuration_that_passes(
    tmp_path: Path, write: Callable[[Path], None], wanted: dict[str, object]
) -> None:
    write(tmp_path)
    assert main(["init", str(tmp_path), "--yes", "--quiet"]) == 0
    made = tmp_path / "disagg.yaml"
    found = yaml.safe_load(made.read_text())
    assert {k: v for k, v in found.items() if k not in ("name", "output")} == wanted
    assert made.read_text().count("#") > 5
    assert all_problems(made)[0] == []
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_of_a_cube_with_several_times_a_period_the_keys_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _cubes(tmp_path)
    assert main(["init", str(tmp_path), "--yes"]) == 0
    told = 'bands; add it with `time: "{period}"` and `aggregate: mean` (or sum, min, max)'
    assert f"not used: daily.nc: has {31 * len(MONTHS)} {told}" in capsys.readouterr().out


def _two_people(directory: Path) -> None:
    _month(directory)
    write_raster(directory / "people_2015.tif", people())
    write_raster(directory / "people_2020.tif", people())


def _two_counts(directory: Path) -> None:
    _month(directory)
    _one_period().assign(deaths=1).to_csv(directory / "t.csv", index=False)


def _tested(directory: Path) -> None:
    _month(directory)
    _one_period().assign(examined=9999).to_csv(directory / "t.csv", index=False)


def _decimals(directory: Path) -> None:
    """Write what may be an average or a total, of either sign, and no counts."""
    _month(directory)
    own = np.random.default_rng(4).normal(0.0, 2.0, len(areas()))
    _one_period()[["id"]].assign(anomaly=own, farm_area=77).to_csv(directory / "t.csv", index=False)


def _counts_or_values(directory: Path) -> None:
    _month(directory)
    own = np.random.default_rng(4).normal(9.0, 2.0, len(areas()))
    _one_period()[["id"]].assign(tally=np.arange(len(own)) + 7, mean_height=own).to_csv(
        directory / "t.csv", index=False
    )


def _two_exposures(directory: Path) -> None:
    _yields(directory)
    table = pd.read_csv(directory / "crops.csv").assign(households=np.arange(len(areas())) + 5)
    table.to_csv(directory / "crops.csv", index=False)


def _nameless_people(directory: Path) -> None:
    _month(directory)
    (directory / "pop_density.tif").rename(directory / "x.tif")


def _two_boundaries(directory: Path) -> None:
    _month(directory)
    areas().to_file(directory / "again.gpkg")


@pytest.mark.parametrize(
    ("write", "key", "answer"),
    [
        (_two_people, "population", "people_2015.tif"),
        (_two_counts, "counts.value", "deaths"),
        (_tested, "counts.tested", "none"),
        (_counts_or_values, "counts.value", "mean_height"),
        (_two_exposures, "counts.weight", "households"),
        (_nameless_people, "population", "none"),
        (_two_boundaries, "areas", "again.gpkg"),
    ],
)
def test_what_several_fit_is_asked(
    tmp_path: Path,
    write: Callable[[Path], None],
    key: str,
    answer: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path)
    assert main(["init", str(tmp_path), "--yes"]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert f": {key}: " in error
    assert answer in error
    assert not (tmp_path / "disagg.yaml").exists()
    assert main(["init", str(tmp_path), "--yes", "--quiet", "--answer", f"{key}={answer}"]) == 0
    assert all_problems(tmp_path / "disagg.yaml")[0] == []


WHOLE, DECIMAL = np.arange(12) * 7 + 30, np.linspace(0.5, 9.2, 12) ** 1.1
YIELD = {"of": "average", "likelihood": "gamma"}
TOTAL = {"of": "total", "likelihood": "gamma"}


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        (("yield_t_ha.", "harvested_area_ha."), {"weight": "harvested_area_ha", "unit": "t/ha",
                                                 "weight_unit": "ha", **YIELD}),
        (("Yield (t/ha).", "Area (ha)"), {"weight": "Area (ha)", "unit": "t/ha",
                                          "weight_unit": "ha", **YIELD}),
        (("yield_kg_ha", "hectares"), {"weight": "hectares", "unit": "kg/ha",
                                       "weight_unit": "hectares", **YIELD}),
        (("rendement_t_ha.", "superficie"), {"weight": "superficie", "unit": "t/ha",
                                             "weight_unit": "superficie", **YIELD}),
        (("rendimiento.", "Área"), {"weight": "Área", "weight_unit": "area", **YIELD}),
        (("production_tonnes", "area_harvested"), {"weight": "area_harvested", "unit": "tonnes",
                                                   "weight_unit": "area_harvested", **TOTAL}),
        (("produção_ton.", "hectareas"), {"weight": "hectareas", "unit": "ton",
                                          "weight_unit": "hectareas", **TOTAL}),
        (("mean_income.", "households"), "counts.weight: households, none"),
        (("mean_bmi.", "area_km2."), "counts.weight: area_km2, none"),
        (("mean_bmi.", "n"), "counts.value: n, mean_bmi"),
        (("stunting_z.", "n"), "counts.value: n, stunting_z, none"),
        (("prevalence.", "n"), "counts.value: n, prevalence, none"),
        (("infant_deaths", "births"), "counts.weight: births, none"),
        (("Décès", "naissances"), "counts.weight: naissances, none"),
        (("muertes_infantiles", "nacimientos"), "counts.weight: nacimientos, none"),
        (("cases", "person_years."), "counts.weight: person_years, none"),
        (("positivos", "examinados"), "counts.tested: examinados, none"),
        (("poverty_index.", "population"), {"weight": "population", "weight_unit": "people",
                                            **YIELD}),
        (("casos", "superficie", "poblacion"), {"weight": "poblacion", "weight_unit": "people"}),
        (("sightings", "rain."), {}),
        (("n", "people"), {"weight": "people", "weight_unit": "people"}),
    ],
)  # fmt: skip
def test_names_of_columns_tell_values_and_exposures(columns, wanted) -> None:
    """The first is the response; decimals have a point behind their name."""
    names = [name.removesuffix(".") for name in columns]
    data = [DECIMAL if name.endswith(".") else WHOLE + n for n, name in enumerate(columns)]
    frame = pd.DataFrame(
        {"id": [f"a{k}" for k in range(12)], **dict(zip(names, data, strict=True))}
    )
    asked = []

    def ask(key, text, answers, default=None):
        del text
        if len(answers) == 1 or default is not None:
            return default or answers[0]
        asked.append(f"{key}: {', '.join(answers)}")
        return answers[0]

    found = response_columns(frame, "id", "t.csv", ask)
    if isinstance(wanted, str):
        assert asked[0] == wanted
        return
    assert asked == []
    told = {k: v for k, v in vars(found).items() if v not in (None, False, 0)}
    assert told == {"value": names[0], **wanted}


def test_a_rate_of_the_response_is_no_covariate(tmp_path: Path) -> None:
    _yields(tmp_path)
    table, rng = pd.read_csv(tmp_path / "crops.csv"), np.random.default_rng(5)
    births = rng.integers(200, 9000, len(table))
    deaths = rng.binomial(births, 0.05)
    table = table[["id", "rain_mm"]].assign(births=births, deaths=deaths)
    table.assign(imr=1000 * deaths / births).to_csv(tmp_path / "crops.csv", index=False)
    answer = ["--answer", "counts.weight=births"]
    assert main(["init", str(tmp_path), "--yes", "--quiet", *answer]) == 0
    found = yaml.safe_load((tmp_path / "disagg.yaml").read_text())
    assert found["counts"]["weight"] == "births"
    assert set(found["covariates"]) == {"rain_mm"}


def test_without_a_terminal_a_question_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _two_counts(tmp_path)

    def nobody(*_: object, **__: object) -> int:
        raise typer.Abort

    monkeypatch.setattr("typer.prompt", nobody)
    assert main(["init", str(tmp_path)]) == 2
    assert "answer it: --answer counts.value=cases, say" in capsys.readouterr().err
    assert not (tmp_path / "disagg.yaml").exists()


def test_values_of_a_name_that_says_nothing_are_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _decimals(tmp_path)
    init = ["init", str(tmp_path), "--yes"]
    assert main(init) == 2
    assert "No column has counts by its name. Which has the values" in capsys.readouterr().err
    assert main([*init, "--answer", "counts.value=none"]) == 2
    said = capsys.readouterr().err
    assert "no column has whole numbers from 0" in said
    assert "or --answer counts.value=anomaly, say, for values" in said
    init += ["--answer", "counts.value=anomaly"]
    assert main(init) == 2
    assert "What are the anomaly per unit of? farm_area, none" in capsys.readouterr().err
    init += ["--answer", "counts.weight=farm_area"]
    assert main(init) == 2
    told = "Is the anomaly of an area an average over farm_area, or a total? average, total"
    assert told in capsys.readouterr().err
    assert main([*init, "--answer", "counts.of=total"]) == 0
    found = yaml.safe_load((tmp_path / "disagg.yaml").read_text())
    own = {"value": "anomaly", "weight": "farm_area", "weight_unit": "farm_area", "of": "total"}
    assert found["counts"] == {"path": "t.csv", "id": "id", **own}
    assert found["model"] == {"likelihood": "normal"}
    assert found["output"] == {"dir": "out"}
    assert all_problems(tmp_path / "disagg.yaml")[0] == []


def test_questions_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _two_counts(tmp_path)
    answers = iter([7, 2])
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    assert main(["init", str(tmp_path)]) == 0
    assert "Which column has the counts?\n  1  cases\n  2  deaths" in capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "disagg.yaml").read_text())["counts"]["value"] == "deaths"


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda d: (d / "d.geojson").unlink(), "has no file with polygons"),
        (lambda d: (d / "t.csv").unlink(), "no table has the ids of the areas"),
        (lambda d: (d / "disagg.yaml").write_text("mine"), "is there already; --force replaces"),
        (shutil.rmtree, "no such folder"),
        (
            lambda d: pd.concat([_one_period()] * 2).to_csv(d / "t.csv", index=False),
            "has ids several times",
        ),
    ],
)
def test_what_cannot_be_is_one_line(
    tmp_path: Path, spoil: Callable[[Path], object], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    _month(folder)
    spoil(folder)
    assert main(["init", str(folder), "--yes"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1
    made = folder / "disagg.yaml"
    assert not made.exists() or made.read_text() == "mine"


def test_files_that_cannot_be_layers_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _files(tmp_path)
    write_raster(tmp_path / "rain_2019_01.tif", rain(0))
    write_raster(tmp_path / "rain_2019_02.tif", rain(1))
    (tmp_path / "later").mkdir()
    write_raster(tmp_path / "later" / "people.tif", people())
    assert main(["init", str(tmp_path), "--yes"]) == 0
    out = capsys.readouterr().out
    assert "not used: rain_{period}.tif: its dates (2019_01 to 2019_02) are not of the" in out
    assert "not used: later/people.tif: people.tif is nearer" in out
    assert "covariates" not in yaml.safe_load((tmp_path / "disagg.yaml").read_text())


@pytest.mark.parametrize(
    ("texts", "step"),
    [
        (["2023", "2024"], ("year", None)),
        (["2024-Q1", "2024-Q2"], ("quarter", None)),
        (["202401", "202402"], ("month", None)),
        (["2024-W01", "2024-W02"], ("week", None)),
        (["2024-01-01", "2024-02-01", "2024-03-01"], ("month", None)),
        (["2024-01-07", "2024-01-14", "2024-01-28"], ("week", "sunday")),
        (["2024-01-07", "2024-01-08"], ("day", None)),
        (["round 1", "round 2"], (None, None)),
    ],
)
def test_steps(texts: list[str], step: tuple[str | None, str | None]) -> None:
    assert step_of(texts) == step


@real
def test_madagascar(tmp_path: Path) -> None:
    folder = tmp_path / "madagascar"
    shutil.copytree(MADAGASCAR, folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    assert main(["init", str(folder), "--yes", "--quiet"]) == 0
    found = yaml.safe_load((folder / "disagg.yaml").read_text())
    assert found["counts"] == {"path": "cases.csv", "id": "district_id", "value": "cases"}
    assert len(found["covariates"]) == 7


def test_lines_are_told_and_an_answer_to_no_question_is_refused(tmp_path, capsys):
    _month(tmp_path)
    roads = areas().set_geometry(areas().boundary)
    roads.to_file(tmp_path / "roads.gpkg")
    given = ["init", str(tmp_path), "--yes", "--answer"]
    assert main([*given, "people=pop_density.tif"]) == 2
    assert "people=pop_density.tif: answers no question; the questions are" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "disagg.yaml").exists()
    main([*given, "population=pop_density.tif"])
    assert "roads.gpkg: no polygons (`distance: roads.gpkg`" in capsys.readouterr().out


@pytest.mark.parametrize(
    "first",
    ["A,<5", "A,NA", 'A,"1,234"', "A,-1.5", "A,1e-3", "A,yes", "A,2014", "A,2024-01", "A,12"],
)
@pytest.mark.parametrize("header", [",cases", '"",cases', "id,", "id,cases", "id of area,cases"])
def test_a_row_of_data_is_not_taken_for_names(tmp_path: Path, header: str, first: str) -> None:
    (tmp_path / "c.csv").write_text(f"{header}\n{first}\nB,7\n")
    (table,) = Folder.read(tmp_path).tables
    assert table.skip_rows == 0
    assert len(table.frame) == 2


@pytest.mark.parametrize(
    ("text", "skip"),
    [
        ("Cases of 2023\nid,cases\nA,7\n", 1),
        ("Cases of 2023,\n,\nid,cases\nA,7\n", 2),
        ("Cases of 2023,,\nid,2022,2023\nA,7,8\n", 1),  # a column for each year
        ("Cases of 2023,\nA,7\nB,8\n", 0),  # no names at all
    ],
)
def test_a_title_is_left_out(tmp_path: Path, text: str, skip: int) -> None:
    (tmp_path / "c.csv").write_text(text)
    (table,) = Folder.read(tmp_path).tables
    assert table.skip_rows == skip


def test_a_row_with_too_many_cells_is_no_title(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("id,name\nA,North,x\n")
    found = Folder.read(tmp_path)
    assert not found.tables
    assert "row 2 has 3 cells" in found.unread[0].found


@pytest.mark.parametrize("cells", [("<5", "<5", "7"), ("1.490", "325", "12"), ("1 490", "3", "<5")])
def test_suppressed_counts_and_thousands_are_counts(cells: tuple[str, ...]) -> None:
    frame = pd.DataFrame({"n": cells, "age": ["0-4", "5-14", "0-4"], "km": ["1.5", "2.25", "7"]})
    assert count_columns(frame) == ["n"]


def test_a_table_that_cannot_be_read_is_named_with_its_sheet_and_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    areas().to_file(tmp_path / "areas.gpkg")
    with pd.ExcelWriter(tmp_path / "cases.xlsx") as writer:
        # No row has names: what stands below the title is an area.
        _one_period().to_excel(writer, sheet_name="2024", index=False, header=False, startrow=1)
        writer.sheets["2024"]["A1"] = "Malaria, 2024"
        writer.sheets["2024"].merge_cells("A1:B1")
    assert main(["init", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cases.xlsx: cannot be read, and no other table has the ids of the areas" in line
    assert "sheet '2024': cells A1:B1 of the header (row 1) are merged" in line
    assert "set skip_rows: 1" in line
