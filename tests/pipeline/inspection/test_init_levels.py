"""Polygons beside those of the counts: a level of the outputs, or told with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import yaml

from pipeline.cli.main import main
from tests.pipeline.series_inputs import areas, counts, people, write_raster

PROVINCE = {"path": "provinces.gpkg", "id": "prov", "name": "prov_nom", "level": "provinces"}


def _districts() -> gpd.GeoDataFrame:
    frame = areas()
    return frame.assign(prov=[f"{k // 8:02d}" for k in range(len(frame))])


def _provinces(frame: gpd.GeoDataFrame | None = None) -> gpd.GeoDataFrame:
    found = (_districts() if frame is None else frame).dissolve("prov").reset_index()
    found["prov_nom"], found["km2"] = [f"Province {k}" for k in range(len(found))], 1.5
    return found[["km2", "prov_nom", "prov", "geometry"]]


def _write(directory: Path) -> None:
    _districts().to_file(directory / "districts.gpkg")
    write_raster(directory / "people.tif", people())
    counts(1)[["id", "cases"]].to_csv(directory / "cases.csv", index=False)


def _init(directory: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[Any, str]:
    """Return the output section that is written, and what is said of the files not used."""
    assert main(["init", str(directory), "--yes", "--force", *more]) == 0
    said = " ".join(capsys.readouterr().out.split())
    text = (directory / "disagg.yaml").read_text(encoding="utf-8")
    _, _, at_end = text.partition("# Not used:")
    for line in at_end.splitlines():
        assert f"not used: {line.strip('# ')}" in said or not line
    return yaml.safe_load(text)["output"], " ".join(at_end.split())


def test_areas_that_hold_whole_areas_are_a_level(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path)
    _provinces().to_crs("EPSG:4326").to_file(tmp_path / "provinces.gpkg")
    output, left = _init(tmp_path, capsys)
    assert output["areas"] == [PROVINCE]
    assert left == ""
    # The same again is told, and so are areas that are the districts', and the whole country.
    _provinces().to_file(tmp_path / "zz_again.gpkg")
    _provinces().dissolve().assign(prov="X").to_file(tmp_path / "country.geojson")
    squares = areas().rename(columns={"id": "no"}).assign(no=range(16))
    squares.to_file(tmp_path / "squares.geojson")
    output, left = _init(tmp_path, capsys)
    assert output["areas"] == [PROVINCE]
    assert (
        "zz_again.gpkg: its areas are those of provinces.gpkg, which is in `output.areas`" in left
    )
    assert "write `{path: zz_again.gpkg, id: prov, name: prov_nom, level: zz_again}` there" in left
    assert "country.geojson: one area holds all" in left
    assert "squares.geojson: its areas are those of districts.gpkg" in left


def test_areas_across_borders_are_told_with_the_line_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path)
    moved = _provinces()
    moved["geometry"] = moved.translate(0, 1500)
    moved.to_file(tmp_path / "zones 2024.gpkg")
    away = _provinces()
    away["geometry"] = away.translate(1e6, 0)
    away.to_file(tmp_path / "away.gpkg")
    _provinces()[["geometry"]].to_file(tmp_path / "nameless.gpkg")
    output, left = _init(tmp_path, capsys)
    assert "areas" not in output
    item = "{path: zones 2024.gpkg, id: prov, name: prov_nom, level: zones}"
    assert "zones 2024.gpkg: its areas do not hold whole areas of districts.gpkg each" in left
    assert f"add `{item}` to the list `output.areas`" in left
    assert "away.gpkg: polygons beside those of districts.gpkg" in left
    assert "nameless.gpkg: polygons; no column identifies an area of them" in left
    given = yaml.safe_load((tmp_path / "disagg.yaml").read_text(encoding="utf-8"))
    given["output"]["areas"] = [yaml.safe_load(item)]
    (tmp_path / "disagg.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
    assert main(["check", str(tmp_path / "disagg.yaml"), "--quiet"]) == 0


def test_labels_have_no_levels_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path)
    _provinces().to_file(tmp_path / "provinces.gpkg")
    labels = counts(1)[["id"]].assign(mark=np.arange(16) % 2)
    labels.to_csv(tmp_path / "cases.csv", index=False)
    output, left = _init(tmp_path, capsys)
    assert "areas" not in output
    assert "provinces.gpkg: polygons beside those of the labels" in left


def test_boundaries_of_several_dates_are_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path)
    (tmp_path / "districts.gpkg").unlink()
    for year in (2020, 2024):
        _districts().to_file(tmp_path / f"districts_{year}.gpkg")
    assert main(["init", str(tmp_path), "--yes"]) == 2
    assert "districts_2020.gpkg, districts_2024.gpkg" in " ".join(capsys.readouterr().err.split())
    _, left = _init(tmp_path, capsys, "--answer", "areas=districts_2024.gpkg")
    assert "districts_2020.gpkg: its areas are those of districts_2024.gpkg" in left
