"""Reading YAML: keys are text, ``${NAME}`` alone is replaced, and one reader does both."""

import re
from pathlib import Path

import pytest
import yaml

from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.config.document import nearest_file
from pipeline.config.reader import load_config
from pipeline.updates.arrivals import known_periods, load_watched, new_counts


def write(files, *without, add="", **sections):
    data = {k: v for k, v in {**files.mapping(), **sections}.items() if k not in without}
    path = files.directory / "map.yaml"
    path.write_text(yaml.safe_dump(data) + add, encoding="utf-8")
    return path


def test_a_key_is_the_text_that_stands_there_and_a_value_the_boolean(files):
    config = load_config(write(files, add='notify: {on: [late], webhook: "http://hook"}\n'))
    assert config.notify.on == ("late",)
    names = ["on", "off", "yes", "No", "y", "true", "null", "2020", "1e3"]
    rows = "".join(f"  {name}: {{path: wave.tif}}\n" for name in names)
    config = load_config(write(files, "covariates", add=f"covariates:\n{rows}"))
    assert list(config.covariates) == names
    path = write(files, add="evaluate:\n  off: 3\n")
    with pytest.raises(InputError, match=r"map.yaml line \d+: evaluate.off: unknown key"):
        load_config(path)
    given = "population: {path: population.tif, density: yes}\n"
    assert load_config(write(files, "population", add=given)).population.density is True
    given = (
        "covariates:\n  on: &own {path: wave.tif, transform: log1p}\n"
        "  off: {<<: *own, path: north.tif}\n"
    )
    covariates = load_config(write(files, "covariates", add=given)).covariates
    assert covariates["off"].transform == "log1p"
    assert covariates["off"].path.endswith("north.tif")


def test_the_watch_and_the_run_replace_the_same_variables(files, monkeypatch):
    monkeypatch.setenv("FEED", str(files.directory))
    (files.directory / "cases.csv").rename(files.directory / "cases_2026-01.csv")
    counts = {"path": "${FEED}/cases_{period}.csv", "value": "cases"}
    path = write(files, counts=counts, update={"settle_s": 0})
    found = str(files.directory / "cases_2026-01.csv")
    assert load_config(path).counts.path == found
    assert [each.address for each in new_counts(path)] == [found]
    assert known_periods(path) == ["2026-01"]


@pytest.mark.parametrize("read", [load_config, load_watched, new_counts])
def test_a_path_with_a_bare_dollar_says_what_to_write(files, monkeypatch, read):
    monkeypatch.setenv("FEED", str(files.directory))
    path = write(files, counts={"path": "$FEED/cases.csv", "value": "cases"})
    with pytest.raises(InputError) as caught:
        read(path)
    (problem,) = caught.value.problems
    assert "counts.path" in problem.place
    assert "$FEED" in problem.found
    assert problem.remedy.startswith("write ${FEED}")


def test_check_describes_the_period_that_is_mapped(files, capsys):
    rows = "\n".join(
        f"{month},{area},{10 * m + a}"
        for m, month in enumerate(["2026-01", "2026-02"])
        for a, area in enumerate(files.cases)
    )
    (files.directory / "cases.csv").write_text(f"month,code,cases\n{rows}\n", encoding="utf-8")
    path = write(files, counts={"path": "cases.csv", "value": "cases", "period": "month"})
    assert main(["check", str(path)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^  counts +period 2026-02: 126 in 9 areas", said, re.MULTILINE)
    assert re.search(r"^  2026-01 +36 in 9 areas", said, re.MULTILINE)
    assert re.search(r"^  2026-02 +126 in 9 areas", said, re.MULTILINE)
    assert main(["check", str(path), "--period", "2026-01"]) == 0
    assert re.search(r"counts +period 2026-01: 36 in 9 areas", capsys.readouterr().out)


def test_check_describes_what_ingest_opened(files, capsys, monkeypatch):
    import geo.sources.raster

    opened = []
    init = geo.sources.raster.RasterSource.__init__

    def record(self, path, *args, **options):
        opened.append(str(path))
        init(self, path, *args, **options)

    monkeypatch.setattr(geo.sources.raster.RasterSource, "__init__", record)
    assert main(["check", str(write(files))]) == 0
    assert re.search(r"^  wave .* 1,000 m +EPSG:32738", capsys.readouterr().out, re.MULTILINE)
    # Once as an input; the population a second time, as the raster that the grid is like.
    assert opened.count(str(files.directory / "wave.tif")) == 1
    assert opened.count(str(files.directory / "population.tif")) == 2


def test_other_dollars_are_no_directories_or_dollars(files, monkeypatch):
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    path = write(files, output={"dir": "$NOT_SET_ANYWHERE/out"})
    with pytest.raises(InputError, match=r"output\.dir: .*write \$\{NOT_SET_ANYWHERE\}"):
        load_config(path)
    (files.directory / "cases.csv").rename(files.directory / "us$none.csv")
    path = write(files, counts={"path": "us$none.csv", "value": "cases"})
    assert load_config(path).counts.path.endswith("us$none.csv")


def test_aliases_and_depths_without_end_are_one_line(tmp_path):
    many = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for k in range(1, 12):  # 10^12 values
        many.append(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]")
    path = tmp_path / "map.yaml"
    for text, says in (
        ("grid: &a {like: *a}\n", r"an alias .* contains itself"),
        ("\n".join(many), "repeat more than 100,000 keys"),
        ("a: " + "[" * 5000, "nested too deeply"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=says):
            load_config(path)


def test_the_file_of_another_period_is_no_suggestion(tmp_path: Path) -> None:
    for name in ("rain_2023-10.tif", "rain_2023-04.tif", "travel.tif"):
        (tmp_path / name).touch()
    assert nearest_file(tmp_path / "rain_2023-03.tif") == ""
    assert nearest_file(tmp_path / "rian_2023-04.tif") == "did you mean rain_2023-04.tif?"
    # What another thing's file of the same period has alike is its date and its ending.
    assert nearest_file(tmp_path / "truth_2023-04.tif") == ""
    assert nearest_file(tmp_path / "Rain_2023-04.TIF") == "did you mean rain_2023-04.tif?"
    assert nearest_file(tmp_path / "travels.tif") == "did you mean travel.tif?"
