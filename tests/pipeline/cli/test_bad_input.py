"""What people get wrong: each told with file, row and remedy, all at once, and nothing left."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import rasterio
import yaml
from affine import Affine
from pyproj import CRS
from shapely.geometry import MultiPolygon, Point, Polygon, box

from geo.core.errors import InputError, Problem
from pipeline.cli.main import main
from pipeline.config.context import StageContext
from pipeline.core.exit_status import ExitStatus
from pipeline.core.progress import Silent
from pipeline.ingest.stage import check, check_inputs, ingest


def problems_of(files: Any) -> list[Problem]:
    """Check: every problem has a place and a remedy, in a line, and nothing is left."""
    before = sorted(files.directory.rglob("*"))
    found = check(files.config())
    assert sorted(files.directory.rglob("*")) == before
    for problem in found:
        assert problem.place
        assert problem.found
        assert problem.remedy
        assert "\n" not in str(problem)
    return found


def typed(files: Any, command: str) -> list[str]:
    """Type a command with the configuration; expect bad input, and return what it complains of."""
    path = files.directory / "disagg.yaml"
    path.write_text(yaml.safe_dump(files.mapping(), sort_keys=False), encoding="utf-8")
    before = sorted(files.directory.rglob("*"))
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        status = main([command, str(path)])
    assert status == ExitStatus.BAD_INPUT == 2
    left = set(files.directory.rglob("*")) - set(before)
    # The lock that kept a second run out may stay; no cube, no store, no map.
    assert {p.name for p in left} <= {"out", "work", ".lock"}, left
    assert command != "check" or not left
    shutil.rmtree(files.directory / "out", ignore_errors=True)
    path.unlink()
    return [line for line in errors.getvalue().splitlines() if line.startswith("error: ")]


def only(files: Any, *words: str) -> None:
    """Expect one problem and no consequences of it, with these words in it."""
    problems = problems_of(files)
    assert len(problems) == 1, "\n".join(map(str, problems))
    for each in words:
        assert each in str(problems[0])


ELSEWHERE = "EPSG:32638"


def again(name: str, fill: float | None = None, area: int | None = None, **how: Any) -> Callable:
    """Write a raster anew: another value, in an area's pixels or all, or another header."""

    def change(files: Any) -> None:
        values = files.population if name == "population" else files.x[name]
        if fill is not None:
            values[... if area is None else files.pixels(area)] = fill
        files.raster(f"{name}.tif", values, **how)

    return change


def abroad(files: Any) -> None:
    files.polygons[2] = box(9e5, 7.9e6, 9.1e5, 7.91e6)
    files.areas()


def abroad_without_cases(files: Any) -> None:
    files.cases["M02"] = "0"
    files.counts()
    abroad(files)


def point(files: Any) -> None:
    files.polygons[1] = Point(files.polygons[1].centroid)
    files.areas()


def south_up(files: Any) -> None:
    upward = Affine(1000, 0, 5e5, 0, 1000, 8e6 - 1000 * files.shape[0])
    files.raster("grid.tif", files.population, transform=upward)


def flat_inside(files: Any) -> None:
    files.x["wave"][1:] = 2.5
    files.raster("wave.tif", files.x["wave"])


def damaged(files: Any) -> None:
    """A block that cannot be decoded is seen only when it is read."""
    path = files.raster("north.tif", files.x["north"], compress="deflate")
    raw = bytearray(path.read_bytes())
    raw[-60:-20] = b"\xff" * 40
    path.write_bytes(raw)


def cut(path: Path, share: float) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: int(share * len(raw))])


LIKE = {"grid": {"like": "grid.tif"}}
LOG = {"wave": {"path": "wave.tif", "transform": "log"}, "north": {"path": "north.tif"}}
YEARS = {"counts": {"path": "cases.csv", "value": "cases", "period": "year"}, "period": "2025"}


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (again("wave", crs=None), {},
         "covariates.wave | wave.tif | no coordinate reference system | crs: EPSG:xxxx"),
        (again("wave", crs=ELSEWHERE), {},
         "covariates.wave | wave.tif | does not overlap the areas | assign the CRS"),
        # What lies on the wrong grid is judged on that of a raster: nothing else is wrong.
        (lambda f: f.raster("grid.tif", f.population, crs=ELSEWHERE), LIKE,
         "grid.like | grid.tif | does not overlap the areas | assign the CRS"),
        (again("population", crs="EPSG:4326"), {}, "population.tif | not degrees | assign the CRS"),
        (lambda f: f.areas(crs="EPSG:4326"), {}, "areas.gpkg | not degrees | assign the CRS"),
        (None, {"grid": {"crs": "EPSG:32738", "resolution": 0.01}},
         "grid.resolution | 0.01 makes 2,400,001 x 2 | (metre)"),
        (None, {"grid": {"crs": "EPSG:4326", "resolution": 1000}},
         "grid.resolution | puts all areas into one pixel | (degree)"),
        (south_up, LIKE, "grid.tif | rotated or south-up | gdalwarp"),
        (abroad, {}, "areas.gpkg | M02 | outside the grid | covers all areas"),
        (abroad_without_cases, {}, "areas.gpkg | M02: outside the grid | covers all areas"),
        (again("north", np.nan, 4), {},
         "areas.gpkg | M04 (lacks north) | no usable pixel | give covariates that cover it"),
        (again("population", 0, 5), {},
         "areas.gpkg | M05 | cases, but no people | correct the population"),
        (lambda f: f.counts({**f.cases, "M08": "?"}.items()), {},
         "cases.csv | row 10 | M08 | '?' | not a number"),
        (lambda f: f.counts(2 * [*f.cases.items()]), YEARS,
         "counts | no column 'year', which counts.period names | code, cases"),
        (lambda f: f.counts([*f.cases.items(), ("M03", "9")]), {},
         "cases.csv | M03 | row 5 and 11 | keep one"),
        (flat_inside, {},
         "covariates.wave | wave.tif | 2.5 on every pixel inside the areas | leave it out"),
        (again("wave", -9999, nodata=-9999), {},
         "wave.tif | has no value inside the areas | nodata"),
        (again("wave", -1), {"covariates": LOG},
         "wave.tif | no value inside the areas after its transform (log) | above 0"),
        (again("population", np.nan), {},
         "population.tif | has no value inside the areas | nodata"),
        (lambda f: cut(f.directory / "population.tif", 0.6), {},
         "population.tif | truncated | copy or download the file again"),
        (damaged, {}, "north.tif | damaged | copy or download the file again"),
        (lambda f: (f.directory / "wave.tif").write_text("hello"), {},
         "wave.tif | is not a raster | give a GeoTIFF"),
        (point, {}, "areas.gpkg | M01 | Point | polygons"),
        (None, {"areas": {"path": "areas.gpkg", "layer": "district", "id": "code"}},
         "areas.gpkg | no layer 'district' | did you mean 'districts'"),
        (None, {"counts": {"path": "cases.csv", "value": "case"}},
         "cases.csv | no column 'case' | did you mean 'cases'"),
    ],
)  # fmt: skip
def test_one_mistake_is_one_problem_without_consequences(
    files: Any, change: Callable | None, options: dict[str, Any], words: str
) -> None:
    if change is not None:
        change(files)
    files.options = options
    only(files, *words.split(" | "))


def test_areas_outside_all_rasters_are_blamed_once(files: Any) -> None:
    for name, values in {**files.x, "population": files.population}.items():
        files.raster(f"{name}.tif", values, crs="EPSG:32638")
    only(files, "areas.gpkg", "outside all 3 rasters", "in EPSG:32638 they lie on the rasters")


@pytest.mark.parametrize(
    ("crs", "given"), [("EPSG:4326", "EPSG:32738"), ("EPSG:32738", "EPSG:32736")]
)
def test_the_crs_that_puts_areas_on_the_rasters_is_named(files: Any, crs: str, given: str) -> None:
    (files.directory / "all.gpkg").write_bytes((files.directory / "areas.gpkg").read_bytes())
    files.options = {"output": {"dir": "out", "areas": [{"level": "all", "path": "all.gpkg"}]}}
    files.options["output"]["areas"][0]["id"] = "code"
    assert problems_of(files) == []
    files.polygons = list(gpd.GeoSeries(files.polygons, crs=files.crs).to_crs(crs))
    files.areas(crs=given)
    only(files, "areas.gpkg", "outside all 3 rasters", f"in {crs} they lie on the rasters")
    examined = check_inputs(files.config()).examined
    assert examined is not None
    assert examined.suspicions == ()


def test_a_stand_in_for_the_grid_shows_what_it_can(files: Any) -> None:
    """Where the grid is unusable the rest is checked on a raster's: its rim is no mistake."""
    files.raster("population.tif", files.population, crs=None)
    files.raster("wave.tif", files.x["wave"][:, :11])
    problems = problems_of(files)  # on the grid of north, which shows all areas
    assert [p.place.split(" (")[0] for p in problems] == ["population", "areas"]
    assert "M02 (lacks wave)" in problems[1].found
    files.raster("north.tif", files.x["north"][:, :11])
    only(files, "population.tif", "no coordinate reference system", "assign")


def test_grid_and_population_without_crs_are_both_told(files: Any) -> None:
    files.raster("population.tif", files.population, crs=None)
    files.raster("grid.tif", files.population, crs=None)
    files.options = {"grid": {"like": "grid.tif"}}
    assert [p.place.split(" (")[0] for p in problems_of(files)] == ["population", "grid.like"]


def test_areas_without_counts_are_no_problem_unless_all_are(files: Any) -> None:
    files.counts(list(files.cases.items())[:-2])
    checked = check_inputs(files.config())
    assert checked.problems == []
    assert "warning: 2 of 9 areas (22.2 %) have no count" in checked.found["counts"]
    assert "M07, M08" in checked.found["counts"]
    files.counts([(area, "NA") for area in files.cases])
    only(files, "cases.csv", "column 'cases' has no count for any area", "some areas at least")


def test_all_at_once(files: Any) -> None:
    """Ten mistakes in six files: one run tells them all, in the order of the configuration."""
    west, south, east, north = files.polygons[6].bounds
    files.polygons[6] = Polygon([(west, south), (east, north), (east, south), (west, north)])
    files.areas()
    rows = dict(files.cases)
    rows["M01"], rows["M02"] = "-4", "few"
    del rows["M08"]
    files.counts([*rows.items(), ("X1", "3")])
    files.population[files.pixels(0)] = -1
    files.raster("population.tif", files.population)
    files.raster("wave.tif", files.x["wave"], crs=None)
    files.raster("north.tif", np.full(files.shape, 3.0))
    files.raster("dry.tif", np.full(files.shape, np.nan))
    files.raster("cut.tif", files.x["wave"])
    cut(files.directory / "cut.tif", 0.5)
    files.options = {
        "covariates": {n: {"path": f"{n}.tif"} for n in ("wave", "north", "dry", "cut", "gone")}
    }
    problems = problems_of(files)
    with pytest.raises(InputError) as caught:
        ingest(StageContext(files.config()))
    found = [str(p) for p in problems]
    assert [str(p) for p in caught.value.problems] == found
    lines = typed(files, "check")
    assert len(lines) == len(found)
    # The command line tells a file that is not there by the line of the configuration.
    present = {f"error: {p}" for p in problems if p.found != "no such file"}
    assert present <= set(lines), "\n".join(lines)
    for words in (
        ("areas.gpkg", "M06", "crosses itself at (", "Fix geometries"),
        ("cases.csv", "M01", "negative"),
        ("cases.csv", "M02", "few"),
        ("cases.csv", "X1", "match no area", "correct the ids"),
        ("wave.tif", "no coordinate reference system"),
        ("cut.tif", "truncated"),
        ("gone.tif", "no such file"),
        ("north.tif", "3 on every pixel"),
        ("dry.tif", "has no value"),
        ("population.tif", "down to -1", "set its nodata value"),
    ):
        assert sum(all(w in line for w in words) for line in found) == 1, (words, found)
    assert len(found) == 10, "\n".join(found)


@pytest.mark.parametrize("broken", ["areas", "population", "wave", "ids"])
def test_what_is_unusable_hides_nothing_else(files: Any, broken: str) -> None:
    """One thing of each kind is wrong, and one input cannot be used at all."""
    files.cases["M03"] = "-3"
    files.counts()
    files.raster("flat.tif", np.full(files.shape, 3.0))
    names = ("wave", "north", "flat")
    files.options = {"covariates": {name: {"path": f"{name}.tif"} for name in names}}
    expected = [("cases.csv", "negative"), ("flat.tif", "3 on every pixel")]
    if broken == "areas":
        with pytest.warns(UserWarning, match="crs"):
            files.areas(crs=None)
        expected.append(("areas.gpkg", "no coordinate reference system"))
    elif broken == "ids":
        files.ids[7] = "M04"
        files.areas()
        expected += [("areas.gpkg", "repeated: M04"), ("cases.csv", "match no area: M07")]
    else:  # where the areas are known, so is which of them cannot be used
        values = files.population if broken == "population" else files.x[broken]
        files.raster(f"{broken}.tif", values, crs=None)
        expected.append((f"{broken}.tif", "no coordinate reference system"))
        files.x["north"][files.pixels(4)] = np.nan
        files.raster("north.tif", files.x["north"])
        expected.append(("areas.gpkg", "M04 (lacks north): no usable pixel"))
    if broken == "wave":
        files.population[files.pixels(8)] = 0
        files.raster("population.tif", files.population)
        expected.append(("areas.gpkg", "M08: cases, but no people"))
    found = [str(p) for p in problems_of(files)]
    for words in expected:
        assert sum(all(w in line for w in words) for line in found) == 1, (words, found)
    assert len(found) == len(expected), "\n".join(found)


def test_no_usable_covariate_does_not_hide_the_people(files: Any) -> None:
    for name, values in files.x.items():
        files.raster(f"{name}.tif", values, crs=None)
    files.population[files.pixels(5)] = 0
    files.raster("population.tif", files.population)
    found = [str(p) for p in problems_of(files)]
    assert len(found) == 3
    assert "M05: cases, but no people" in found[-1]


def test_unknown_key_and_bad_files_in_one_go(files: Any) -> None:
    """Configuration, boundaries, counts and rasters: the command line tells all six at once."""
    files.ids[7] = "M04"
    files.areas()
    files.cases["M02"] = "few"
    files.counts()
    files.raster("population.tif", files.population, crs=None)
    files.raster("wave.tif", np.full(files.shape, np.nan))
    files.options = {"output": {"dir": str(files.directory / "out"), "drawz": 9}}
    for command in ("check", "ingest"):
        lines = typed(files, command)
        for words in (
            ("disagg.yaml line", "output.drawz", "unknown key", "draws"),
            ("areas.gpkg", "M04 (feature 5 and 8)", "{repair: true}"),
            ("cases.csv", "row 4 (id M02: 'few')", "plain numbers"),
            ("cases.csv", "M07 (row 9)", "correct the ids"),
            ("population.tif", "no coordinate reference system", "assign"),
            ("wave.tif", "has no value", "nodata"),
        ):
            assert sum(all(w in line for w in words) for line in lines) == 1, (words, lines)
        assert len(lines) == 6, "\n".join(lines)


def test_odd_but_good_inputs_pass(files: Any) -> None:
    """Decimal counts, islands, another CRS of the areas, ids written as numbers."""
    files.ids = [str(k) for k in range(9)]
    files.cases = {f"{k}.0": f"{k}.5" for k in range(9)}
    west, _, _, north = files.polygons[0].bounds
    island = box(west - 1500, north + 200, west - 1000, north + 700)
    files.polygons[0] = MultiPolygon([files.polygons[0], island])
    files.areas()
    path = files.directory / "areas.gpkg"
    moved = gpd.read_file(path).to_crs(4326)
    path.unlink()
    moved.to_file(path, layer="districts")
    files.counts()
    assert check(files.config()) == []


def test_more_folds_than_areas(files: Any) -> None:
    files.options = {"evaluate": {"folds": 10}}
    only(files, "evaluate.folds", "10 folds of 9 areas", "9 folds at most")
    files.options = {"evaluate": {"folds": 10, "schemes": []}}
    assert check(files.config()) == []


def test_a_file_of_folds_that_lacks_areas(files: Any) -> None:
    rows = "\n".join(f"{area},{n % 3}" for n, area in enumerate(list(files.cases)[2:]))
    (files.directory / "folds.csv").write_text(f"code,fold\n{rows}\n")
    files.options = {"evaluate": {"folds": {"path": "folds.csv", "id": "code", "fold": "fold"}}}
    (line,) = typed(files, "check")
    assert "2 areas have no row: M00, M01" in line


def test_an_output_that_cannot_be_written(files: Any) -> None:
    (files.directory / "file").write_text("no directory")
    files.options = {"output": {"dir": str(files.directory / "file" / "out")}}
    (line,) = typed(files, "check")
    assert "output.dir" in line
    assert "cannot be written to (Not a directory)" in line
    if Path("/proc").is_dir():
        files.options = {"output": {"dir": "/proc/disagg-out"}}
        assert "cannot be written to" in typed(files, "check")[0]


def test_semicolons_with_commas_in_names(files: Any) -> None:
    for header in ("code, of the district;cases", "code;cases, reported", "code;name;cases"):
        names = header.split(";")
        cells = ["Foo, Bar"] * (len(names) - 2)
        rows = [";".join([area, *cells, n]) for area, n in files.cases.items()]
        (files.directory / "cases.csv").write_text("\n".join([header, *rows]) + "\n")
        files.options = {"counts": {"path": "cases.csv", "id": names[0], "value": names[-1]}}
        assert check(files.config()) == []


def test_crs_without_a_code_is_named_by_its_projection(files: Any) -> None:
    from geo.sources.raster_header import crs_text

    sinusoidal = CRS.from_proj4("+proj=sinu +lon_0=0 +R=6371007.181 +units=m +no_defs")
    assert crs_text(sinusoidal) == "Sinusoidal"
    assert crs_text(CRS.from_epsg(32738)) == "EPSG:32738"
    assert crs_text(CRS.from_proj4("+proj=longlat +R=6371007.181 +no_defs")) == "geographic"
    assert crs_text(None) == "no CRS"


def finer(files: Any, name: str, n: int) -> None:
    """Put a VRT of n x n pixels beside a raster, over the same place."""
    n_row, n_col = files.shape
    wide, high = 1000 * n_col / n, 1000 * n_row / n
    (files.directory / f"{name}.vrt").write_text(
        f'<VRTDataset rasterXSize="{n}" rasterYSize="{n}"><SRS>EPSG:32738</SRS>'
        f"<GeoTransform>500000, {wide}, 0, 8000000, 0, -{high}</GeoTransform>"
        '<VRTRasterBand dataType="Float32" band="1"><SimpleSource>'
        f'<SourceFilename relativeToVRT="1">{name}.tif</SourceFilename><SourceBand>1</SourceBand>'
        f'<SrcRect xOff="0" yOff="0" xSize="{n_col}" ySize="{n_row}"/>'
        f'<DstRect xOff="0" yOff="0" xSize="{n}" ySize="{n}"/>'
        "</SimpleSource></VRTRasterBand></VRTDataset>"
    )


def test_a_raster_of_absurd_size_is_refused_before_a_pixel_is_read(files: Any) -> None:
    finer(files, "wave", 10**6)
    files.options = {**files.options, "covariates": {"wave": {"path": "wave.vrt"}}}
    only(files, "covariates.wave", "wave.vrt", "pixels over the areas", "coarser")


def test_a_sparse_raster_of_any_size_is_checked_at_once(files: Any) -> None:
    n, (n_row, n_col) = 200_000, files.shape
    with rasterio.open(
        files.directory / "vast.tif", "w", driver="GTiff", width=n, height=n, count=1,
        dtype="float32", nodata=-1, crs="EPSG:32738", tiled=True, sparse_ok=True, bigtiff="yes",
        transform=Affine(1000 * n_col / n, 0, 5e5, 0, -1000 * n_row / n, 8e6),
        blockxsize=512, blockysize=512,
    ):  # fmt: skip
        pass
    files.options = {**files.options, "covariates": {"wave": {"path": "vast.tif"}}}
    started = time.monotonic()
    (problem,) = check(files.config())
    assert "has no value inside the areas (nodata everywhere)" in problem.found
    assert time.monotonic() - started < 90  # three minutes when each pixel was read


def test_a_long_read_is_announced_with_its_raster(
    files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.ingest import prepare

    monkeypatch.setattr(prepare, "N_LONG", files.shape[0])
    named = []

    class Heard(Silent):
        def task(self, name: str, total: float | None = None) -> Any:
            named.append(name)
            return super().task(name, total)

    check_inputs(files.config(), Heard())
    (align,) = (name for name in named if name.startswith("align"))
    assert re.search(
        r"align: \S+ \(\S+\.tif\) has \d+ million pixels over the areas; `gdalw", align
    )
