"""Reading YAML: keys are text, ``${NAME}`` alone is replaced, and one reader does both."""

import re

import pytest
import yaml

from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.updates.arrivals import known_periods, load_watched, new_counts


def write(files, **sections):
    path = files.directory / "map.yaml"
    path.write_text(yaml.safe_dump({**files.mapping(), **sections}), encoding="utf-8")
    return path


def add(path, text):
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")
    return path


def test_the_documented_notify_on_works(files):
    config = load_config(add(write(files), 'notify: {on: [late], webhook: "http://hook"}\n'))
    assert config.notify.on == ("late",)


@pytest.mark.parametrize("name", ["on", "off", "yes", "No", "y", "true", "null", "2020", "1e3"])
def test_a_covariates_name_is_the_text_that_stands_there(files, name):
    data = files.mapping()
    del data["covariates"]
    path = files.directory / "map.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    add(path, f"covariates:\n  {name}: {{path: wave.tif}}\n")
    assert list(load_config(path).covariates) == [name]


def test_a_key_of_yaml_1_1_is_told_by_its_own_name(files):
    path = add(write(files), "evaluate:\n  off: 3\n")
    with pytest.raises(InputError, match=r"map.yaml line \d+: evaluate.off: unknown key"):
        load_config(path)


def test_values_are_the_booleans_that_people_write(files):
    data = files.mapping()
    del data["population"]
    path = files.directory / "map.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    add(path, "population: {path: population.tif, density: yes}\n")
    assert load_config(path).population.density is True


def test_merged_and_repeated_sections_still_work(files):
    data = files.mapping()
    del data["covariates"]
    path = files.directory / "map.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    add(
        path,
        "covariates:\n  on: &own {path: wave.tif, transform: log1p}\n"
        "  off: {<<: *own, path: north.tif}\n",
    )
    covariates = load_config(path).covariates
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


def test_a_dollar_that_is_no_variable_is_a_dollar(files):
    (files.directory / "cases.csv").rename(files.directory / "us$none.csv")
    path = write(files, counts={"path": "us$none.csv", "value": "cases"})
    assert load_config(path).counts.path.endswith("us$none.csv")


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


def test_a_variable_that_is_not_set_is_no_directory(files, monkeypatch):
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    path = files.directory / "map.yaml"
    mapping = {**files.mapping(), "output": {"dir": "$NOT_SET_ANYWHERE/out"}}
    path.write_text(yaml.safe_dump(mapping))
    with pytest.raises(InputError, match=r"output\.dir: .*write \$\{NOT_SET_ANYWHERE\}"):
        load_config(path)


def test_an_alias_that_contains_itself_is_one_line(tmp_path):
    path = tmp_path / "map.yaml"
    path.write_text("grid: &a {like: *a}\n")
    with pytest.raises(InputError, match=r"an alias .* contains itself"):
        load_config(path)


def test_aliases_of_aliases_are_refused_at_once(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for k in range(1, 12):  # 10^12 values
        lines.append(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]")
    path = tmp_path / "run.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="repeat more than 100,000 keys"):
        load_config(path)


def test_a_document_nested_too_deeply_is_one_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("a: " + "[" * 5000)
    with pytest.raises(InputError, match="nested too deeply"):
        load_config(path)
