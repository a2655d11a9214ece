"""The configuration: every mistake at once, by full key, with the nearest valid name."""

from __future__ import annotations

from pathlib import Path

import pytest

from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.config.schema import Config

GOOD = """\
name: madagascar-malaria
areas:       {path: districts.gpkg, layer: districts, id: district_id}
counts:      {path: cases.csv, id: district_id, value: cases}
population:  {path: population.tif}
covariates:
  elevation: {path: elevation.tif}
  rainfall:  {path: precipitation.tif, resampling: average, transform: log1p}
grid:        {like: population.tif}
model:       {kind: vbagg, likelihood: poisson, link: square, inducing: 400, kernel: additive}
fit:         {batch_areas: 32, max_epochs: 300, learning_rate: 0.01, seed: 1}
compute:     {scheduler: local, workers: auto, device: auto, memory: auto}
output:      {dir: out, rate_per: 1000, interval: 0.9, exceedance: [50, 100], draws: 500}
"""
FILES = ("districts.gpkg", "cases.csv", "population.tif", "elevation.tif", "precipitation.tif")


@pytest.fixture
def write(tmp_path):
    for name in FILES:
        (tmp_path / name).touch()

    def put(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return put


def problems(path: Path) -> list[str]:
    with pytest.raises(InputError) as error:
        load_config(path)
    return [str(problem) for problem in error.value.problems]


def test_the_contracts_example_is_valid_and_paths_are_beside_the_file(write, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    config = load_config(write(GOOD))
    assert config.areas.path == str(tmp_path / "districts.gpkg")
    assert config.output.dir == tmp_path / "out"
    assert config.model.likelihood == "poisson"
    assert config.covariates["rainfall"].transform == "log1p"
    assert config.output.exceedance == (50, 100)


def test_what_is_left_out_has_its_default(write):
    short = "\n".join(GOOD.splitlines()[1:7]) + "\n"
    config = load_config(write(short))
    assert config.grid.like == config.population.path
    assert config.output.dir == config.source.parent / "out"  # beside the file, as all paths are
    assert config.model.likelihood == "poisson"
    assert config.model.has_area_effect
    assert config.evaluate.schemes == ("area", "block")
    assert Config.model_validate(config.model_dump()).model_dump() == config.model_dump()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kind: vbagg", "knid: vbagg", ["model.knid", "unknown key", "model.kind"]),
        ("transform: log1p", "transfrm: log1p", ["covariates.rainfall.transfrm", "transform"]),
        ("inducing: 400", "inducing: many", ["model.inducing", "many"]),
        ("inducing: 400", "inducing: 0", ["model.inducing", "0"]),
        ("inducing: 400", "inducing: true", ["model.inducing", "number"]),
        ("interval: 0.9", "interval: 90", ["output.interval", "90"]),
        ("link: square", "link: cube", ["model.link", "cube", "square"]),
        ("kernel: additive", "kernel: addtive", ["model.kernel", "addtive"]),
        ("elevation.tif", "elevatoin.tif", ["covariates.elevation.path", "elevation.tif"]),
        ("id: district_id}\ncounts", "idd: district_id}\ncounts", ["areas.idd", "areas.id"]),
        ("{like: population.tif}", "{crs: EPSG:99, resolution: 5}", ["grid.crs", "EPSG:99"]),
        ("population.tif", '"${DISAGG_NOT_SET}/p.tif"', ["DISAGG_NOT_SET"]),
    ],
)
def test_each_mistake_names_its_key_and_the_remedy(write, old, new, says):
    assert old in GOOD
    found = problems(write(GOOD.replace(old, new, 1)))
    assert any(all(word in problem for word in says) for problem in found), found


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("gates: {coverage: [0.8, 1]}", "gates.coverage with labels: maps of rates have it"),
        ("output: {exceedance: 0.5}", "output.exceedance with labels: maps of rates have it"),
        ("time: {step: month}", "time: models of labels are of one period; remove `time`"),
        ("time: {step: month, from: 2023-01, to: 2023-03}", "models of labels are of one period"),
    ],
)
def test_labels_have_no_coverage_no_exceedance_and_no_months(write, more, says):
    """Each passed, and nothing came of it; or the remedy led to the next mistake."""
    kept = GOOD.splitlines()[1:6]
    text = "\n".join([*kept, "model: {kind: pooled_gp}", more]).replace("counts:", "labels:")
    (found,) = problems(write(text + "\n"))
    assert says in found


def test_results_in_memory_are_refused(write):
    (found,) = problems(write(GOOD.replace("{dir: out,", '{dir: "memory://m/out",')))
    assert "memory://m/out is in memory, and ends with the process; give a directory" in found


def test_all_mistakes_are_told_at_once_with_their_lines(write):
    text = GOOD.replace("interval: 0.9", "interval: 9").replace("cases.csv", "no.csv")
    found = problems(write(text.replace("model:", "modle:")))
    assert len(found) == 3
    (broken,) = problems(write(GOOD.replace("{path: cases.csv,", "{path: [cases.csv,")))
    assert "line" in broken
    assert {"line 3", "line 9", "line 12"} == {p.split("run.yaml ")[1].split(":")[0] for p in found}


def test_variables_are_put_in_and_one_that_is_not_set_is_one_problem(
    write, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("DISAGG_TEST_FOLDER", str(tmp_path))
    text = GOOD.replace("districts.gpkg", '"${DISAGG_TEST_FOLDER}/districts.gpkg"')
    assert load_config(write(text)).areas.path == str(tmp_path / "districts.gpkg")
    text = GOOD.replace("districts.gpkg", '"${DISAGG_NOT_SET}/d.gpkg"')
    path = write(text.replace("cases.csv", '"${DISAGG_NOT_SET}/c.csv"'))
    (found,) = problems(path)
    assert "areas.path: environment variable DISAGG_NOT_SET is not set (2 keys name it)" in found
    for name in FILES:
        (path.parent / name).unlink()
    main(["check", str(path), "--quiet"])
    told = [line for line in capsys.readouterr().err.splitlines() if "DISAGG_NOT_SET" in line]
    assert len(told) == 1, told


def test_all_settings_that_a_model_refuses_are_told_at_once(write):
    wrong = "{likelihood: normal, link: exp, area_effect: true, options: {n_tres: 1, dtype: f}}"
    line = next(each for each in GOOD.splitlines() if each.startswith("model:"))
    text = GOOD.replace(line, f"model: {wrong}")
    found = problems(write(text))
    wanted = ["model.options.n_tres", "model.options.dtype", "model.link"]
    assert [each.split(": ")[1] for each in found] == wanted
    # Those of a classifier, and those of several sections.
    line_up = "{kind: psi_vgpmil, likelihood: normal, link: exp, priors: none}"
    found = problems(write(text.replace(wrong, line_up).replace("counts:", "labels:")))
    assert len([each for each in found if "is for models of counts" in each]) == 3
    tls = "compute: {scheduler: tcp://x:1, tls: {ca: a.pem, cert: b.pem, key: c.pem}}"
    old = next(each for each in GOOD.splitlines() if each.startswith("compute:"))
    several = GOOD.replace(old, tls).replace("value: cases}", "value: cases, tested: n}")
    said = " ".join(problems(write(several)))
    assert "counts.tested and model.likelihood" in said
    assert "compute.tls and a scheduler" in said


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("nodata: much", ["covariates.elevation.nodata", "'much'", "-9999"]),
        ("nodata: .nan", ["covariates.elevation.nodata", "NaN is always missing"]),
        ("nodata: yes", ["covariates.elevation.nodata"]),
        ("crs: EPSG:99", ["covariates.elevation.crs", "EPSG:99"]),
        ("scale: 0", ["covariates.elevation.scale", "other than 0"]),
        ("scale: big", ["covariates.elevation.scale", "number"]),
        ("offset: yes", ["covariates.elevation.offset", "number"]),
        ("units: [m]", ["covariates.elevation.units", "text"]),
    ],
)
def test_a_raster_is_declared_with_what_it_can_be(write, keys, says):
    text = GOOD.replace("{path: elevation.tif}", "{path: elevation.tif, " + keys + "}")
    (found,) = problems(write(text))
    assert all(word in found for word in says), found


def test_what_replaces_the_header_of_a_raster(write):
    given = "{path: elevation.tif, nodata: [-9999, -3.4e38], scale: 1e-4, offset: 2, units: m}"
    text = GOOD.replace("{path: elevation.tif}", given)
    header = load_config(write(text)).covariates["elevation"].header
    assert header.nodata == (-9999.0, -3.4e38)
    assert (header.scale, header.offset, header.unit, header.crs) == (1e-4, 2.0, "m", None)
    config = load_config(write(GOOD.replace("elevation.tif}", "elevation.tif, nodata: []}")))
    assert config.covariates["elevation"].header.nodata == ()
    assert Config.model_validate(config.model_dump()).model_dump() == config.model_dump()


@pytest.mark.parametrize(
    ("output", "key", "remedy"),
    [
        (
            "areas: {path: districts.gpkg, id: i, level: z}",
            "areas",
            "[{path: ..., id: ..., level: ...}]",
        ),
        ("exceedance: {}", "exceedance", "[50, 100]"),
        ("reconcile: {to: counts, levels: {}}", "reconcile.levels", "[training]"),
    ],
)
def test_a_mapping_where_a_list_belongs_has_the_list_as_its_remedy(write, output, key, remedy):
    text = GOOD.replace("exceedance: [50, 100]", output)
    (only,) = problems(write(text))
    assert f"output.{key}" in only
    assert only.endswith(f": a mapping instead of a list; give a list, such as {remedy}")
    text = GOOD + "evaluate: {schemes: {}}\n"
    (only,) = problems(write(text))
    assert only.endswith("a mapping instead of a list; give a list, such as [area, block]")


def test_a_threshold_may_be_below_0_where_values_may_be(write):
    text = GOOD.replace("exceedance: [50, 100]", "exceedance: [-1, 0]")
    (only,) = problems(write(text))
    assert "output.exceedance: -1, and no rate is below 0; give numbers of at least 0" in only
    own = text.replace("likelihood: poisson, link: square", "likelihood: normal, link: identity")
    assert load_config(write(own)).output.exceedance == (-1, 0)


def test_stac_items_and_patterns_stand_for_a_path(write, tmp_path):
    (tmp_path / "found.json").touch()
    (tmp_path / "b_1.tif").touch()
    text = GOOD.replace("{path: elevation.tif}", "{stac: {path: found.json, asset: dem}}")
    text = text.replace("{path: precipitation.tif,", '{path: "b_*.tif", level: {number: 0},')
    config = load_config(write(text))
    assert config.covariates["elevation"].path == f'STAC:"{tmp_path}/found.json":dem'
    rain = config.covariates["rainfall"]
    assert rain.path == str(tmp_path / "b_*.tif")
    assert rain.choice.level == (("number", "0"),)
    again = Config.model_validate(config.model_dump(mode="json"))
    assert again.covariates == config.covariates
    found = problems(write(text.replace("{stac:", "{path: elevation.tif, stac:")))
    assert any("a path and stac; give one of them" in each for each in found)
    found = problems(write(text.replace("b_*.tif", "c_*.tif")))
    assert any("no file" in each and "c_*.tif" in each for each in found)
    found = problems(write(text.replace("{stac:", "{window: 3, stac:")))
    assert any("window without aggregate" in each for each in found)


@pytest.mark.parametrize("value", [-1, "dsh"])
def test_a_number_or_a_word_has_the_place_of_its_key(tmp_path: Path, value: object) -> None:
    (tmp_path / "c.yaml").write_text(
        f"points: [{{name: dhs, path: c.csv, id: id, value: v, tested: t, radius: {value}}}]\n"
    )
    with pytest.raises(InputError) as caught:
        load_config(tmp_path / "c.yaml")
    places = {p.place.split(": ")[-1] for p in caught.value.problems if "radius" in p.place}
    assert places == {"points[0].radius"}
