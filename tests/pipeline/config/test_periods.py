"""Periods: which there are, which a run maps, and that rows of others do not count."""

import json

import numpy as np
import pytest

from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.config.periods import period_files, select_periods
from pipeline.config.reader import load_config
from pipeline.ingest.inputs import open_inputs
from pipeline.plan.probe import Probe
from pipeline.publishing.publish import publish_dir
from pipeline.run.runner import run_stages
from tests.progress import Notes


def months(files, *names):
    for k, name in enumerate(names):
        files.cases = {area: str(10 * (k + 1)) for area in files.cases}
        files.counts()
        (files.directory / "cases.csv").rename(files.directory / f"cases_{name}.csv")


BY_NAME = {"counts": {"path": "cases_{period}.csv", "value": "cases"}}


def test_the_latest_file_is_the_default_and_numbers_count_as_numbers(files):
    months(files, "2026-9", "2026-10", "2026-2")
    config = load_config(files.written(**BY_NAME))
    assert config.period == "2026-10"
    assert config.counts.path.endswith("cases_2026-10.csv")
    assert load_config(files.written(**BY_NAME), "2026-2").counts.path.endswith("cases_2026-2.csv")
    assert load_config(files.written(**BY_NAME, period="2026-9")).period == "2026-9"


def test_a_column_chooses_the_rows(files):
    rows = "\n".join(
        f"{month},{area},{10 * m + a}"
        for m, month in enumerate(["2026-01", "2026-02"])
        for a, area in enumerate(files.cases)
    )
    (files.directory / "cases.csv").write_text(f"month,code,cases\n{rows}\n", encoding="utf-8")
    by_column = {"counts": {"path": "cases.csv", "value": "cases", "period": "month"}}
    for asked, first in (("2026-01", 0), (None, 10)):
        problems = []
        inputs = open_inputs(load_config(files.written(**by_column), asked), problems)
        assert problems == []
        np.testing.assert_array_equal(inputs.responses.counts, first + np.arange(9.0))
    problems = []
    open_inputs(load_config(files.written(**by_column), "2027-01"), problems)
    assert "no row is of period '2027-01'; give a period that it has: 2026-01, 2026-02" in str(
        problems[0]
    )


@pytest.mark.parametrize(
    ("months", "latest"),
    [
        (["Jan-24", "Feb-24", "Mar-24", "Apr-24"], "2024-04"),
        (["January 2024", "December 2023"], "2024-01"),
        (["2024-02-01 00:00:00", "2024-01-01 00:00:00"], "2024-02-01"),
        (["01-12-2024", "01-11-2024"], "row 2 ('01-12-2024'), row 3 ('01-11-2024'): column 'm' has "
         "dates whose day and month cannot be told apart; set counts.dayfirst: true"),
        (["janv-24", "mars-24"], "column 'm': which period is the latest cannot be told: janv-24"),
        (["2024-01", "2024-02", "2024-03", "2024-0x", "2024-03-15"],
         "cases.csv) row 5 ('2024-0x'), 6 ('2024-03-15'): column 'm' has a period in another form "
         "than most; write it as the others are, such as 2024-01"),
        (["45292", "45323"], "row 2 ('45292'), row 3 ('45323'): column 'm' is a number of five"),
    ],
)  # fmt: skip
def test_the_latest_period_is_that_of_time_or_asked_for(files, months, latest):
    rows = "\n".join(f"{month},M00,1" for month in months)
    (files.directory / "cases.csv").write_text(f"m,code,cases\n{rows}\n", encoding="utf-8")
    path = files.written(counts={"path": "cases.csv", "value": "cases", "period": "m"})
    if latest.startswith("2024"):
        assert load_config(path).period == latest
        assert load_config(path, months[0]).period <= latest
        return
    with pytest.raises(InputError) as caught:
        load_config(path)
    (problem,) = caught.value.problems
    assert "cases.csv)" in problem.place
    assert latest.replace(", row", ",") in str(problem).replace(", row", ",")


def test_periods_without_any_count_are_no_periods(files):
    rows = "M00,5,2024-03\nM01,,2024-03\nM00,,2024-04\nM01,NA,2024-04\n"
    (files.directory / "cases.csv").write_text(f"code,cases,m\n{rows}", encoding="utf-8")
    path = files.written(counts={"path": "cases.csv", "value": "cases", "period": "m"})
    assert load_config(path).period == "2024-03"


def test_the_row_that_is_told_is_that_of_the_file(files):
    rows = [f"{m},{area},{n}" for m, n in (("a", 1), ("b", 2)) for area in files.cases]
    rows[12] = "b,M03,lots"
    (files.directory / "cases.csv").write_text("\n".join(["m,code,cases", *rows]), encoding="utf-8")
    config = load_config(
        files.written(counts={"path": "cases.csv", "value": "cases", "period": "m"}), "b"
    )
    problems = []
    open_inputs(config, problems)
    assert "row 14 (id M03: 'lots')" in str(problems[0])


@pytest.mark.parametrize(
    ("sections", "asked", "says"),
    [
        (BY_NAME, None, "no period found in cases_{period}.csv"),
        (BY_NAME, "2026-01", "no file"),
        (BY_NAME, "../up", "is not a period"),
        ({}, "2026-01", "the configuration has no periods"),
        ({"counts": {"path": "cases_{period}.csv", "value": "cases", "period": "m"}}, None,
         "has a file for each period, and `period: m` names a column"),
        ({"areas": {"path": "areas.gpkg", "id": "code"},
          "counts": {"value": "cases", "period": "m"}}, "a", "without counts.path"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(files, sections, asked, says):
    with pytest.raises(InputError) as caught:
        load_config(files.written(**sections), asked)
    assert says in str(caught.value)
    assert len(caught.value.problems) == 1


def test_directories_of_periods(tmp_path):
    for month in ("2026-01", "2026-02"):
        (tmp_path / month).mkdir()
        (tmp_path / month / f"cases_{month}.csv").touch()
    found = period_files("{period}/cases_{period}.csv", tmp_path)
    assert sorted(found) == [
        (month, str(tmp_path / month / f"cases_{month}.csv")) for month in ("2026-01", "2026-02")
    ]


def test_a_range_of_periods():
    months = ["2025-11", "2025-12", "2026-01", "2026-02"]
    assert select_periods(months, "2025-12", "2026-01") == ["2025-12", "2026-01"]
    with pytest.raises(InputError, match="no counts of any period"):
        select_periods(months, "2027-01", "2027-02")


def test_each_period_has_a_folder_where_output_dir_says_so(files):
    months(files, "2026-01", "2026-02")
    path = files.written(**BY_NAME, output={"dir": "out/{period}"})
    first, last = load_config(path, "2026-01"), load_config(path)
    assert [each.output.dir.relative_to(files.directory).as_posix() for each in (first, last)] == [
        "out/2026-01",
        "out/2026-02",
    ]
    # Versions and what the watch has seen are of all periods.
    assert publish_dir(first) == publish_dir(last) == files.directory / "out/published"
    inside = load_config(files.written(**BY_NAME, output={"dir": "a-{period}/maps"}))
    assert inside.shared_dir == files.directory
    assert load_config(files.written(**BY_NAME)).shared_dir == files.directory / "out"


@pytest.mark.ci
@pytest.mark.parametrize("folder", ["out", "out/{period}"])
def test_a_run_says_whose_map_it_replaces(files, folder):
    months(files, "2026-01", "2026-02")
    files.options = {
        "model": {"kind": "constant"}, "output": {"draws": 20, "dir": folder},
    }  # fmt: skip
    path = files.written(**BY_NAME)
    said = []
    for period in ("2026-01", "2026-02", "2026-02")[: 3 if folder == "out" else 2]:
        notes = Notes()
        run_stages(load_config(path, period), ["ingest", "fit", "predict"], notes)
        said.append([line for line in notes.lines if line.startswith("note: the map of")])
    out = load_config(path, "2026-02").output.dir
    if folder == "out":
        assert said == [
            [],
            [
                f"note: the map of 2026-01 in {out} is replaced by that of 2026-02; to keep each, "
                "write `output.dir: out/{period}`"
            ],
            [],
        ]
    else:
        assert said == [[], []]
        maps = [out.parent / name / "rate_mean.tif" for name in ("2026-01", "2026-02")]
        assert maps[0].read_bytes() != maps[1].read_bytes()


def test_a_period_can_be_planned(files, capsys, monkeypatch):
    known = Probe(flops=5e10, pixel=1e-5, update=0.01, predict=1e-6, draw=1e-5)
    monkeypatch.setattr("pipeline.plan.estimate.probe", lambda *_: known)
    months(files, "2026-01", "2026-02")
    # The rain of January alone is there: only January can be planned.
    (files.directory / "wave.tif").rename(files.directory / "wave_2026-01.tif")
    covariates = {"wave": {"path": "wave_{period}.tif"}, "north": {"path": "north.tif"}}
    path = files.written(**BY_NAME, covariates=covariates)
    assert main(["plan", str(path), "--period", "2026-01", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main(["plan", str(path)]) == 2
    assert "wave_2026-02.tif" in capsys.readouterr().err
