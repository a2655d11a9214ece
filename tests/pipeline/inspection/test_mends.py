"""Mends: each kind into a new file that passes, the old one as it was; what is unsure stays."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import geopandas as gpd
import pandas as pd
import pytest
import rasterio
import shapely
import yaml

from pipeline.cli.check import all_problems
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.inspection.mends import MENDS, Change, Findings, Mend
from tests.bands import write
from tests.pipeline.series_inputs import write_inputs


@pytest.fixture(scope="module")
def country(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("country")
    config = write_inputs(directory, n=2)
    text = config.read_text().split("time:")[0].replace("rain_{period}", "rain_2024-02")
    config.write_text(text.replace(", period: month", "") + "# the end\n")
    table = pd.read_csv(directory / "cases.csv")
    table = table[table["month"] == "2024-01"].drop(columns="month")
    table.to_csv(directory / "cases.csv", index=False)
    assert all_problems(config)[0] == []
    return config


def _undeclared(directory: Path) -> None:
    with rasterio.open(directory / "elevation.tif") as file:
        values, profile = file.read(1), file.profile
    values[:2, :3] = -9999
    write(directory / "elevation.tif", values, **{**profile, "nodata": None})


def _spelling(directory: Path) -> None:
    table = pd.read_csv(directory / "cases.csv")
    table["id"] = table["id"].str.lower().str.replace("a", "a ")
    table.to_csv(directory / "cases.csv", index=False)


def _layers(directory: Path) -> None:
    points = gpd.GeoDataFrame({"id": ["p"]}, geometry=[shapely.Point(5e5, 9e6)], crs="EPSG:32736")
    points.to_file(directory / "areas.gpkg", layer="posts")


def _crossed(directory: Path) -> None:
    areas = gpd.read_file(directory / "areas.gpkg")
    w, s, e, n = areas.geometry[0].bounds
    areas.loc[0, "geometry"] = shapely.Polygon([(w, s), (e, n), (e, s), (w, n)])
    areas.to_file(directory / "areas.gpkg")


def _moved(directory: Path) -> None:
    (directory / "rasters").mkdir()
    (directory / "elevation.tif").rename(directory / "rasters" / "elevation.tif")


CASES = {
    "keys": (lambda text: text.replace("covariates:", "covariats:"), None, {}),
    "paths": (lambda text: text.replace("people.tif", "People.TIFF"), None,
              {"population.path": "people.tif"}),
    "columns": (lambda text: text.replace("value: cases", "value: Cases "), None,
                {"counts.value": "cases"}),
    "layer": (str, _layers, {"areas.layer": "areas"}),
    "polygons": (str, _crossed, {"areas.repair": True}),
    "ids": (str, _spelling, {"counts.match": "spelling"}),
    "nodata": (str, _undeclared, {"covariates.elevation.nodata": -9999}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_each_mend_makes_a_new_file_that_passes(
    country: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(country.parent, directory)
    config = directory / country.name
    change, spoil, wanted = CASES[name]
    config.write_text(change(config.read_text()))
    if spoil is not None:
        spoil(directory)
    before = {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file()}
    main(["check", str(config), "--fix", "--json"])
    said = json.loads(capsys.readouterr().out)["fixed"]
    found = {each["key"]: each["value"] for each in said["changes"]}
    assert found == wanted or (name == "keys" and list(found) == ["covariates"])
    made = directory / "disagg.fixed.yaml"
    assert said["path"] == str(made)
    assert "# the end" in made.read_text()  # comments stay
    problems, _, examined, _ = all_problems(made)
    assert problems == []
    assert examined is not None
    assert not {"ids", "nodata"} & {each.code for each in examined.suspicions}
    after = {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file()}
    assert {**before, made.name: made.read_bytes()} == after
    assert load_config(made).population is not None


def test_a_folder_further_and_without_ruamel(
    country: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(country.parent, directory)
    _moved(directory)
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    assert main(["check", str(directory / "disagg.yaml"), "--fix"]) == 2
    out = capsys.readouterr().out
    assert "covariates.elevation.path: rasters/elevation.tif (there is no elevation.tif)" in out
    assert "without comments: ruamel.yaml is not installed" in out
    assert yaml.safe_load((directory / "disagg.fixed.yaml").read_text())["name"] == "months"


@pytest.mark.parametrize("unsure", ["two files", "no crs", "two ids"])
def test_what_is_unsure_is_left(
    country: Path, tmp_path: Path, unsure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(country.parent, directory)
    config = directory / "disagg.yaml"
    if unsure == "two files":
        _moved(directory)
        shutil.copytree(directory / "rasters", directory / "old")
    elif unsure == "no crs":
        with rasterio.open(directory / "elevation.tif") as file:
            profile, values = file.profile, file.read(1)
        write(directory / "elevation.tif", values, **{**profile, "crs": None})
    else:
        config.write_text(config.read_text().replace("value: cases", "value: CASES"))
        table = pd.read_csv(directory / "cases.csv")
        table.assign(Cases=1).to_csv(directory / "cases.csv", index=False)
    assert main(["check", str(config), "--fix"]) == 2
    assert "Nothing can be mended safely." in capsys.readouterr().out
    assert not (directory / "disagg.fixed.yaml").exists()


def test_a_mended_file_of_another_time_is_not_overwritten(
    country: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(country.parent, directory)
    config = directory / "disagg.yaml"
    config.write_text(config.read_text().replace("value: cases", "value: Cases"))
    (directory / "disagg.fixed.yaml").write_text("mine")
    assert main(["check", str(config), "--fix"]) == 2
    assert "disagg.fixed.yaml: is there already" in capsys.readouterr().err
    assert (directory / "disagg.fixed.yaml").read_text() == "mine"


@pytest.mark.parametrize("taken", [False, True])
def test_a_further_mend_brings_a_file(
    country: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, taken: bool
) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(country.parent, directory)
    config, table = directory / "disagg.yaml", (directory / "cases.csv").read_bytes()
    (directory / "cases.csv").unlink()

    def from_memory(found: Findings) -> list[Change]:
        why = "the table of the counts is gone"
        return [Change(("counts", "path"), "again.csv", why, beside=("again.csv", table))]

    monkeypatch.setattr("pipeline.inspection.mends.MENDS", [Mend("again", "a table", from_memory)])
    if taken:
        (directory / "disagg.fixed.yaml").write_text("mine")
    assert main(["check", str(config), "--fix", "--quiet"]) == 2
    assert (directory / "again.csv").exists() is not taken  # nothing is half written
    if not taken:
        assert all_problems(directory / "disagg.fixed.yaml")[0] == []


def test_mends_have_names_of_their_own() -> None:
    assert len({each.name for each in MENDS}) == len(MENDS)
    assert set(CASES) == {each.name for each in MENDS}
