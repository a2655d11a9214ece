"""Suspicions about areas and counts: each fires on its mistake, and good inputs raise none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import shapely
import yaml
from affine import Affine

from geo.core.columns import folded, same_but_for_spelling
from pipeline.cli.main import main
from pipeline.config.context import StageContext
from pipeline.config.reader import load_config
from pipeline.ingest.stage import Checked, check_inputs, ingest
from tests.progress import Notes
from tests.real_data import ROOT, SHARED, real


def found(files: Any) -> dict[str, str]:
    """Return the suspicions by code; expect no problem."""
    checked = check_inputs(files.config())
    assert checked.problems == []
    return by_code(checked)


def by_code(checked: Checked) -> dict[str, str]:
    assert checked.examined is not None
    return {each.code: str(each) for each in checked.examined.suspicions}


def write(files: Any, **keys: Any) -> Path:
    path = files.directory / "map.yaml"
    text = yaml.safe_dump({**files.mapping(), **keys}, sort_keys=False)
    path.write_text(text, encoding="utf-8")
    return path


def counts_of(files: Any, values: Any) -> None:
    files.counts([(area, str(v)) for area, v in zip(files.ids, values, strict=True)])


def test_a_sparse_country_modelled_counts_and_a_survey_raise_none(files: Any) -> None:
    rng = np.random.default_rng(3)
    sparse = np.where(rng.random(files.shape) < 0.9, 0, files.population)
    sparse[rng.random(files.shape) < 0.3] = np.nan
    files.raster("population.tif", sparse / 100)
    counts_of(files, [0, 0, 1, 0, 0, 0, 0, 0, 0])
    assert found(files) == {}
    files.raster("population.tif", files.population)
    counts_of(files, [0.25, 0.5, 0.125, 0.75, 0.4, 0.3, 0.2, 0.1, 0.6])
    assert found(files) == {}
    rows = "\n".join(f"{area},{n},{200 + 10 * n}" for n, area in enumerate(files.cases))
    (files.directory / "cases.csv").write_text(f"code,cases,tested\n{rows}\n")
    files.options = {
        "counts": {"path": "cases.csv", "value": "cases", "tested": "tested"},
        "model": {"likelihood": "binomial"},
        "output": {"dir": "out", "exceedance": [5, 20, 50]},
    }
    assert found(files) == {}
    table = (
        (files.directory / "cases.csv").read_text().replace(",3,230", ",3,").replace(",5,250", ",,")
    )
    (files.directory / "cases.csv").write_text(table)
    told = found(files)["cells"]
    assert (
        f"column 'cases' has a value and column 'tested' none in row 5 (id {files.ids[3]})" in told
    )


def test_several_mistakes_and_their_remedies(files: Any) -> None:
    """Undeclared nodata, ten thousandths, thresholds outside the rates, lacking covariates."""
    values = files.x["wave"].copy()
    values[3:6, 3:6] = 255.0
    wave = files.raster("wave.tif", values, nodata=None)
    rng = np.random.default_rng(1)
    files.raster("ndvi.tif", rng.integers(-1900, 9900, files.shape), dtype="int16", nodata=-3000)
    rows, cols = files.pixels(4)
    north = files.x["north"].copy()
    north[slice(rows.start, rows.stop - 2), cols] = np.nan
    files.raster("north.tif", north)
    covariates = {n: {"path": f"{n}.tif"} for n in ("wave", "north", "ndvi")}
    output = {"dir": "out", "rate_per": 1000, "exceedance": [50]}
    files.options = {"covariates": covariates, "output": output}
    said = found(files)
    assert set(said) == {"nodata", "scale", "threshold", "coverage"}
    assert "255 in 9 pixels (9 of them in areas)" in said["nodata"]
    assert "covariates.wave.nodata: 255" in said["nodata"]
    assert "covariates.ndvi.scale: 0.0001" in said["scale"]
    assert "M04 (" in said["coverage"]
    assert "%: north)" in said["coverage"]
    assert said["coverage"].count("M0") == 1
    # A suspicion names the address of an object, not its copy.
    examined = check_inputs(files.config()).examined
    assert examined is not None
    moved = examined.with_paths({str(wave): "s3://bucket/wave.tif"})
    assert "covariates.wave (s3://bucket/wave.tif)" in [each.place for each in moved.suspicions]
    assert examined.with_paths({}) == examined
    files.raster("north.tif", files.x["north"])
    covariates["wave"]["nodata"], covariates["ndvi"]["scale"] = 255.0, 0.0001  # type: ignore[assignment]
    output["exceedance"] = [0.0001]
    assert set(found(files)) == {"threshold"}
    output["exceedance"] = [0.4, 1]
    assert found(files) == {}


def test_an_undeclared_nodata_of_the_population_is_told_with_its_problem(files: Any) -> None:
    files.population[:6] = -9999
    files.raster("population.tif", files.population, nodata=None)
    checked = check_inputs(files.config())
    assert len(checked.problems) == 1
    assert "down to -9999" in checked.problems[0].found
    assert "population.nodata: -9999" in by_code(checked)["nodata"]


def test_more_cases_than_people(files: Any) -> None:
    files.raster("population.tif", files.population / 1e5)
    (problem,) = check_inputs(files.config()).problems
    assert "126 cases of" in problem.found
    assert "population.scale: 1000" in problem.remedy
    assert "check: {accept: ['rate:counts']}" in problem.remedy
    files.options = {"check": {"accept": ["rate:counts", "thousands"]}}
    assert check_inputs(files.config()).problems == []
    files.options = {"population": {"path": "population.tif", "scale": 1e5}}
    assert found(files) == {}


def test_shares_taken_for_counts(files: Any) -> None:
    table, column = files.directory / "cases.csv", "prevalence"
    files.options = {"counts": {"path": "cases.csv", "value": column}}
    for values, told in ((np.linspace(0.05, 0.9, 9), True), (10.0 * np.arange(9), False)):
        lines = [f"{area},{value:.6g}" for area, value in zip(files.cases, values, strict=True)]
        table.write_text(f"code,{column}\n" + "\n".join(lines) + "\n")
        said = found(files)
        assert column in said["shares"] if told else said == {}


def test_nothing_is_said_of_a_column_from_the_cells_alone_that_can_be_read(files: Any) -> None:
    """Most counts have a mark of thousands: the others are 0, and not all areas are."""
    files.counts([(area, "0" if k % 3 else "2;468") for k, area in enumerate(files.ids)])
    checked = check_inputs(files.config())
    assert "2;468" in str(checked.problems[0])
    assert "zeros" not in by_code(checked)
    files.counts([(area, "0") for area in files.ids])
    assert "zeros" in found(files)


def test_percentages_are_told_by_the_people_they_do_not_grow_with() -> None:
    from pipeline.ingest.suspicions import _shares

    rng = np.random.default_rng(0)
    people = rng.lognormal(10, 1, 60)
    percent = rng.uniform(0.5, 40, 60).round(1)
    percent = percent[np.argsort(rng.random(60))]
    named = _shares("pct_positive", np.linspace(2.5, 61.3, 9).round(2), np.sort(people)[:9])
    assert "its name says 'pct'" in named
    assert "percentages?" in _shares("value", percent, np.sort(people))
    assert _shares("value", 40 * people / people.max(), people) == ""  # modelled counts
    # Whole numbers need more: ten and more, and people that differ several times over.
    whole, fewest_first = np.arange(10.0, 70.0), np.sort(people)
    assert "whole numbers up to 100" in _shares("value", whole, fewest_first[::-1])
    assert _shares("value", whole, fewest_first) == ""  # they grow
    assert _shares("value", 2 * whole, fewest_first[::-1]) == ""
    assert _shares("value", whole, np.linspace(1100.0, 900.0, 60)) == ""
    assert _shares("value", np.rint(whole / 10), fewest_first[::-1]) == ""
    assert _shares("value", percent, None) == ""
    assert _shares("cases", rng.poisson(0.3, 60).astype(float), people) == ""


def degrees(files: Any, west: float, south: float = -20.0) -> None:
    """Move all inputs to a CRS of degrees."""
    files.crs, files.transform = "EPSG:4326", Affine(0.01, 0, west, 0, -0.01, south)
    for name, values in files.x.items():
        files.raster(f"{name}.tif", values)
    files.raster("population.tif", files.population)

    def moved(xy: np.ndarray) -> np.ndarray:
        return np.column_stack([west + (xy[:, 0] - 5e5) / 1e5, south + (xy[:, 1] - 8e6) / 1e5])

    files.polygons = [shapely.transform(polygon, moved) for polygon in files.polygons]
    files.areas(crs="EPSG:4326")


@pytest.mark.parametrize("west", [47.0, 120.0])
def test_latitude_before_longitude(files: Any, west: float) -> None:
    degrees(files, west)
    good = files.polygons
    files.polygons = [shapely.transform(p, lambda xy: xy[:, ::-1]) for p in good]
    files.areas(crs="EPSG:4326")
    checked = check_inputs(files.config())
    assert checked.problems  # misplaced, or no degrees
    assert "write longitude first" in by_code(checked)["swapped"]
    if west < 90:
        (problem,) = [each for each in checked.problems if "outside all" in each.found]
        assert problem.remedy.startswith("write longitude first")
        assert "assign" not in problem.remedy
        one = {"wave": {"path": "wave.tif"}}
        files.options = {"population": None, "covariates": one, "grid": {"like": "wave.tif"}}
        alone = check_inputs(files.config()).problems
        (problem,) = [each for each in alone if "does not overlap the areas" in each.found]
        assert "x and y are exchanged, write longitude first" in problem.remedy
        files.options = {}
    # Areas elsewhere are not swapped.
    files.polygons = [shapely.transform(p, lambda xy: np.add(xy, (10.0, 0.0))) for p in good]
    files.areas(crs="EPSG:4326")
    checked = check_inputs(files.config())
    assert checked.problems
    assert by_code(checked) == {}


def test_ids_spelt_otherwise(files: Any) -> None:
    files.ids = ["Fénérive Est", "AMBOVOMBE", "007", "St. Louis", *files.ids[4:]]
    files.areas()
    given = ["fenerive est", "Ambovombe ", "7", "St Louis", *list(files.cases)[4:]]
    files.counts([(name, "5") for name in given])
    checked = check_inputs(files.config())
    assert checked.problems
    said = by_code(checked)["ids"]
    assert "4 ids differ" in said
    for pair in ("'fenerive est' is 'Fénérive Est'", "'7' is '007'", "'St Louis' is 'St. Louis'"):
        assert pair in said


def test_ids_are_paired_only_where_it_is_clear() -> None:
    assert folded(" Saint-Étienne 007 ") == folded("SAINT ETIENNE 7")
    assert folded("M01") != folded("M10")
    assert folded("100") == "100"
    assert same_but_for_spelling({"a", "A"}, {"á"}) == []
    assert same_but_for_spelling({"a"}, {"á", "Á"}) == []
    assert same_but_for_spelling({"a", "b"}, {"á", "c"}) == [("a", "á")]


def test_areas_that_overlap(files: Any) -> None:
    last = files.polygons[8]
    files.polygons[8] = files.polygons[3]
    files.areas()
    assert "M03 and M08 (the same polygon, 26,708 people counted twice)" in found(files)["overlap"]
    files.polygons[8] = shapely.affinity.translate(last, -2000)
    files.areas()
    assert "M07 and M08 (25 %, " in found(files)["overlap"]
    files.polygons[8] = shapely.affinity.translate(last, -100)
    files.areas()
    assert found(files) == {}  # generalised borders overlap as much


def test_an_overlap_thinner_than_a_pixel_is_told_by_its_people(files: Any) -> None:
    files.polygons[8] = shapely.affinity.translate(files.polygons[8], -250)
    files.areas()
    # Strips of two columns of pixels: a third less a quarter of a kilometre of the first of them.
    rows = np.r_[2 / 3, np.full(7, 1.0), 1 / 3]
    people = 0.25 * rows @ files.population[18:27, 18]
    said = found(files)["overlap"]
    assert f"M07 and M08 (3.1 %, {people:,.0f} people counted twice)" in said
    files.population[18:27, 18] = 0.01  # nobody lives there
    files.raster("population.tif", files.population)
    assert found(files) == {}


def many_areas(files: Any) -> Any:
    """Give the country 16 areas, and counts of 5 % of their people."""
    files.polygons = [
        shapely.box(5e5 + 7000 * (k % 4) + 2000, 8e6 - 7000 * (k // 4) - 8000,
                    5e5 + 7000 * (k % 4) + 9000, 8e6 - 7000 * (k // 4) - 1000)
        for k in range(16)
    ]  # fmt: skip
    files.ids = [f"M{k:02d}" for k in range(16)]
    files.areas()
    population = [
        files.population[7 * (k // 4) + 1 : 7 * (k // 4) + 8, 7 * (k % 4) + 2 : 7 * (k % 4) + 9]
        for k in range(16)
    ]
    return np.round([0.05 * float(each.sum()) for each in population])


def test_a_column_that_has_no_counts_is_told(files: Any) -> None:
    share = many_areas(files)
    for each, said in (
        (dict.fromkeys(files.ids, "2023"), "'cases' is 2,023 for every area"),
        (
            {name: f"{n:.0f}" for name, n in zip(files.ids, share, strict=True)},
            "'cases' is 0.05 for each person in every area",
        ),
    ):
        files.cases = each
        files.counts()
        assert said in found(files)["column"]
    files.cases = dict.fromkeys(files.ids, "1")  # single cases
    files.counts()
    assert "column" not in found(files)


def test_a_count_far_from_those_around_it_is_named_with_its_row(files: Any) -> None:
    cases = many_areas(files)
    rng = np.random.default_rng(4)
    cases = rng.poisson(cases * np.exp(0.8 * rng.standard_normal(16)))
    # A count that lacks all digits, among areas without a count.
    rows = [(i, str(n)) for i, n in zip(files.ids, cases, strict=True)]
    rows[5] = ("M05", "0")
    rows[7] = ("M07", "")
    files.counts(rows)
    said = found(files)["count"]
    assert "column 'cases' is far from the counts around it in row 7 (M05: 0, by the" in said
    about = float(said.split("about ")[1].split(")")[0].replace(",", ""))
    assert cases[5] / 3 < about < 3 * cases[5]
    # Three digits too many. The areas have ten times as many people as before for other rules.
    rows[5] = ("M05", str(300 * cases[5]))
    files.counts(rows)
    files.raster("population.tif", files.population * 100)
    assert f"row 7 (M05: {300 * cases[5]:,}, by the areas around it about" in found(files)["count"]
    # A few cases fewer or more are chance, and zeros in many places are how the disease is.
    files.counts([(i, str(int(n == 5))) for n, i in enumerate(files.ids)])
    assert "count" not in found(files)
    files.counts([(i, str(0 if n in (2, 9, 12) else k)) for n, (i, k) in enumerate(rows)])
    assert "count" not in found(files)


def test_a_count_in_a_column_of_the_areas_is_named_with_its_feature(files: Any) -> None:
    cases = many_areas(files)
    cases[3] = 0
    columns = {"code": files.ids, "cases": cases}
    frame = gpd.GeoDataFrame(columns, geometry=files.polygons, crs=files.crs)
    frame.to_file(files.directory / "own.gpkg")
    files.options = {"areas": {"path": "own.gpkg", "id": "code"}, "counts": {"value": "cases"}}
    said = found(files)["count"]
    assert said.startswith("counts (column of the areas): column 'cases' is far")
    assert "feature 4 (M03: 0, by the areas around it about" in said


def test_names_stand_beside_codes(files: Any) -> None:
    counts_of(files, [1000, 1100, "n/a", 900, 1000, 1050, 980, 1010, 1000])
    files.polygons[7] = shapely.affinity.translate(files.polygons[7], 3000)
    columns = {"code": files.ids, "nom": [f"Ville {k}" for k in range(9)]}
    frame = gpd.GeoDataFrame(columns, geometry=files.polygons, crs=files.crs)
    frame.to_file(files.directory / "named.gpkg")
    files.population[files.pixels(4)] = 0.01
    files.raster("population.tif", files.population)
    files.raster("wave.tif", np.where(np.arange(34) < 8, np.nan, files.x["wave"]))
    files.options["areas"] = {"path": "named.gpkg", "id": "code", "name": "nom"}
    said = found(files)
    assert "M07 (Ville 7) and M08 (Ville 8)" in said["overlap"]
    assert "(id M02 (Ville 2): 'n/a')" in said["missing"]
    assert "M04 (Ville 4)" in said["rate"]
    assert "M00 (Ville 0) (" in said["coverage"]


def test_names_of_a_shapefile_in_another_encoding(files: Any) -> None:
    names = [f"Été {k}" for k in range(9)]
    frame = gpd.GeoDataFrame(
        {"code": files.ids, "nom": names}, geometry=files.polygons, crs=files.crs
    )
    path = files.directory / "s.shp"
    frame.to_file(path, encoding="cp850")
    path.with_suffix(".cpg").unlink()
    files.options["areas"] = {"path": "s.shp", "id": "code", "name": "nom"}
    said = found(files)["encoding"]
    assert "column 'nom' has 9 text(s) that do not decode, such as '\\x90t\\x82 0'" in said
    assert "set areas.encoding: cp850, which makes it 'Été 0'" in said
    files.options["areas"]["encoding"] = "utf-8"
    (problem,) = check_inputs(files.config()).problems[:1]
    assert "has text that is not utf-8" in problem.found
    frame.to_file(files.directory / "s.gpkg")
    files.options["areas"]["path"] = "s.gpkg"
    (problem,) = check_inputs(files.config()).problems[:1]
    assert problem.remedy == "remove `encoding`"


def test_suspicions_are_warnings_and_can_be_accepted(files: Any, capsys: Any) -> None:
    files.options = {"output": {"dir": str(files.directory / "out"), "exceedance": [50]}}
    path = write(files)
    assert main(["check", str(path)]) == 0
    out, err = capsys.readouterr()
    assert f"{path}: no problems, 1 suspicion" in out
    assert err.startswith("warning: output.exceedance: 50 is far outside the rates of the areas")
    assert err.rstrip().endswith("[threshold]")
    assert main(["check", str(path), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    for accepted, left in (("threshold:output.exceedance", 0), ("threshold:counts", 1)):
        path = write(files, check={"accept": [accepted]})
        assert main(["check", str(path), "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["ok"] is True
        assert [each["code"] for each in result["suspicions"]] == ["threshold"] * left
    path = write(files, check={"accept": ["treshold"]})
    assert main(["check", str(path)]) == 2
    assert "did you mean threshold?" in capsys.readouterr().err
    log = Notes()  # ingest has each on a line
    ingest(StageContext(files.config(), log))
    (line,) = (line for line in log.lines if "suspicion" in line)
    assert line.startswith("ingest: suspicion: output.exceedance: 50 is far outside")


@pytest.mark.ci
def test_the_demo_raises_none(tmp_path: Path) -> None:
    from pipeline.demo.country import simulate_country

    for labels in (False, True):
        path = simulate_country(tmp_path / str(labels), size="small", seed=2, labels=labels)
        checked = check_inputs(load_config(path))
        assert checked.problems == []
        assert by_code(checked) == {}


@pytest.mark.ci
@real
def test_madagascar_raises_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISAGG_SHARED_DATA", str(SHARED))
    checked = check_inputs(load_config(ROOT / "examples" / "madagascar" / "disagg.yaml"))
    assert checked.problems == []
    assert by_code(checked) == {}
    assert checked.examined is not None
    profile = checked.examined.profile
    assert profile.people is not None
    assert round(profile.people.total) == 21_412_102  # as the data's own page says
    assert profile.counts is not None
    assert round(profile.counts.total) == 1_237_811
    assert profile.counts.rate == pytest.approx(1000 * 1_237_811 / 21_412_102, rel=1e-6)


def test_a_number_of_missing_values_in_a_covariate_table_is_told(files: Any) -> None:
    def rain(values: list[float]) -> dict[str, str]:
        rows = "".join(f"{area},{v}\n" for area, v in zip(files.ids, values, strict=True))
        (files.directory / "rain.csv").write_text(f"code,rain\n{rows}", encoding="utf-8")
        files.options = {"covariates": {"rain": {"table": "rain.csv", "id": "code"}}}
        return found(files)

    assert rain([100, 120, 90, 0, 300, 80, 255, 70, 60]) == {}
    told = rain([100, 120, -9999, 0, 300, 80, 110, 70, 60])["nodata"]
    assert "column 'rain' has -9999 in row 4 (id M02), far from all others (0 to 300)" in told
    assert "give the value" in told


def test_the_column_of_ids_and_one_of_intervals_alone_are_told(files: Any) -> None:
    counts_of(files, range(9))
    files.options = {"counts": {"path": "cases.csv", "id": "code", "value": "cases"}}
    assert "column" not in found(files)
    counts_of(files, ["<5", "<5", "", *["<10"] * 6])
    assert "column 'cases' has intervals alone, such as '<5'" in found(files)["suppressed"]
    counts_of(files, ["<5", "7", "", *["<10"] * 6])
    assert "suppressed" not in found(files)
    rows = "".join(f"{100 + k},{100 + k}\n" for k in range(9))
    (files.directory / "cases.csv").write_text(f"code,cases\n{rows}", encoding="utf-8")
    files.ids = [str(100 + k) for k in range(9)]
    files.areas()
    told = found(files)["column"]
    assert "column 'cases' has the ids of the areas, as 'code' has" in told
    assert "counts.value" in told
