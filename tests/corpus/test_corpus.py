"""Malformed and misleading inputs: each with the lines that `disagg check` must say, no others."""

from __future__ import annotations

import contextlib
import csv
import filecmp
import io
import json
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.cli.main import main
from pipeline.core.exit_status import ExitStatus
from tests.corpus import (  # noqa: F401  (each registers its cases)
    cases_addresses,
    cases_boundaries,
    cases_configuration,
    cases_rasters,
    cases_tables,
    cases_units,
    cases_workbooks,
)
from tests.corpus.case import CASES, Case, Country, Doubt, Error, Note
from tests.corpus.cases_addresses import SECRET


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("corpus")
    Country.make(directory)
    return directory


@pytest.fixture
def country(template: Path, tmp_path: Path) -> Country:
    directory = tmp_path / "country"
    shutil.copytree(template, directory)
    return Country(directory)


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("UNSET_4711", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that write odd files
        yield


def typed(command: str, country: Country, *options: str) -> tuple[int, str, list[str]]:
    """Type a command; return status, output, and the lines of errors and warnings."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = main([command, str(country.config), *options])
    said = errors.getvalue()
    assert "Traceback" not in said, said
    lines = [line for line in said.splitlines() if line.startswith(("error:", "warning:"))]
    return status, out.getvalue(), lines


def tree(directory: Path) -> set[Path]:
    return set(directory.rglob("*"))


def of_covariates(case: Case) -> bool:
    """Whether nothing is said of a case, or of the covariate alone: many are checked in one run.

    What addresses name is trusted: those have a run each.
    """
    places = {getattr(each, "place", "") for each in case.expected}
    return case.family in ("raster", "units") and places <= {"covariates.wave"}


@pytest.mark.parametrize(
    "case", [pytest.param(each, id=name) for name, each in CASES.items() if not of_covariates(each)]
)
def test_case(case: Case, country: Country) -> None:
    case.spoil(country)
    check_alone(case, country)


def check_alone(case: Case, country: Country) -> None:
    before = tree(country.directory)
    said, told = checked(country)
    errors = [each for each in case.expected if isinstance(each, Error)]
    assert_told(case, said["problems"], said["suspicions"])
    for note in case.expected:
        assert not isinstance(note, Note) or note.text in json.dumps(said["found"]), said["found"]
    if errors and case.also_ingest:
        again, _, of_ingest = typed("ingest", country)
        assert again == ExitStatus.BAD_INPUT
        assert errors_of(of_ingest) == errors_of(told)
        left = {path.name for path in tree(country.directory) - before}
        assert left <= {"out", "work", ".lock"}
    if not errors and set_remedies(country, said["suspicions"]):
        assert checked(country)[1] == []


def checked(country: Country) -> tuple[dict[str, Any], list[str]]:
    """Check; return what it said as JSON and as lines, which say the same and keep secrets."""
    before = tree(country.directory)
    status, out, lines = typed("check", country, "--json")
    assert tree(country.directory) == before
    said = json.loads(out)
    assert SECRET not in "\n".join(lines) + out
    assert len(lines) == len(said["problems"]) + len(said["suspicions"]), lines
    assert all(line.isprintable() for line in lines), lines
    problems = said["problems"]
    away = all("cannot be reached" in each["found"] for each in problems)
    wrong = ExitStatus.TRANSIENT if away else ExitStatus.BAD_INPUT
    assert status == (wrong if problems else 0)
    return said, lines


def assert_told(case: Case, problems: Any, suspicions: Any, name: str = "wave") -> None:
    """Assert that what is expected of a case was said, and nothing else."""
    for kind, said in ((Error, problems), (Doubt, suspicions)):
        wanted = [asdict(each) for each in case.expected if isinstance(each, kind)]
        for each in wanted:
            each["place"] = each["place"].replace("covariates.wave", f"covariates.{name}")
            found = [one for one in said if all(text in one[key] for key, text in each.items())]
            assert found, f"{case.name}: {each} of {said}"
        assert len(said) == len(wanted), f"{case.name}: {said}"


def errors_of(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("error:")]


_SET = re.compile(
    r"set (population|covariates)\.(?:(\w+)\.)?(nodata|scale|density|units): (\S+?)(?=[;,]|\s|$)"
)


def set_remedies(country: Country, suspicions: list[dict[str, Any]]) -> int:
    """Set what suspicions of values say to set, and count them: none of them may remain."""
    data, number = country.read_config(), 0
    for said in suspicions:
        if said["code"] in ("nodata", "scale", "thousands", "density"):
            remedy = _SET.search(said["remedy"])
            if remedy is None:  # to be removed, or a question
                assert said["code"] == "density"
                continue
            section, name, key, value = remedy.groups()
            place = data[section][name] if name else data[section]
            place[key] = yaml.safe_load(value)
            number += 1
    country.write_config(data)
    return number


@pytest.mark.ci
def test_cases_of_covariates(template: Path, country: Country) -> None:
    """Each spoils a covariate of one country, unless it spoils something else."""
    sound = country.read_config()
    untouched = ("areas.gpkg", "cases.csv", "population.tif", "north.tif")
    left: dict[str, tuple[Case, dict[str, Any]]] = {}
    for case in filter(of_covariates, CASES.values()):
        name = f"c{len(left):02d}"
        own = Country(country.directory.parent / "own" / name)
        shutil.copytree(template, own.directory)
        case.spoil(own)
        entry = own.read_config()["covariates"].pop("wave", None)
        same = all(filecmp.cmp(own.directory / f, template / f, shallow=False) for f in untouched)
        sound["covariates"]["wave"] = entry
        if not same or own.read_config() != sound:
            check_alone(case, own)
            shutil.rmtree(own.directory)
            continue
        if (own.directory / entry["path"]).exists() or (own.directory / entry["path"]).is_symlink():
            entry["path"] = str(own.directory / entry["path"])
        left[name] = case, entry
    assert len(left) > 40
    del sound["covariates"]["wave"]
    rounds = 0
    while True:  # a file that is not there is told before a raster that is not one
        covariates = {**sound["covariates"], **{name: entry for name, (_, entry) in left.items()}}
        country.write_config({**sound, "covariates": covariates})
        said, lines = checked(country)
        if not said["problems"]:
            break
        if not rounds:
            assert errors_of(typed("ingest", country)[2]) == errors_of(lines)
        by_name: dict[str, list[Any]] = {}
        for problem in said["problems"]:
            name = re.findall(r"covariates\.(\w+)|$", problem["place"])[0]
            assert name in left, problem
            by_name.setdefault(name, []).append(problem)
        for name, problems in by_name.items():
            assert_told(left.pop(name)[0], problems, [], name)
        rounds += 1
    for name, (case, _) in left.items():
        doubts = [each for each in said["suspicions"] if f"covariates.{name}" in each["place"]]
        assert_told(case, [], doubts, name)
    assert rounds < 8
    assert set_remedies(country, said["suspicions"]) == len(said["suspicions"]) > 7
    assert checked(country)[1] == []


def test_the_corpus_is_large_and_of_all_families() -> None:
    sizes = Counter(case.family for case in CASES.values())
    assert sum(sizes.values()) >= 80
    assert set(sizes) == {
        "address", "boundaries", "configuration", "raster", "table", "units", "workbook"
    }  # fmt: skip
    assert min(sizes.values()) >= 6, sizes


FORMULAS = {
    "M03": "=1+1",
    "M04": "@SUM(A1)",
    "M05": "+33-1",
    "M06": "-2+3",
    "M07": "\x1b[31mred\u202e",
}


@pytest.mark.ci
def test_what_is_written_of_hostile_names_is_harmless(country: Country) -> None:
    """Formulas as ids, commands and paths as names of covariates: through a whole run."""
    country.rename_areas(FORMULAS)
    country.text("wave:", '"=cmd|calc":')
    country.text("north:", '"../../north":')
    country.text("name: fuzz", 'name: "=1+1 <script>"')
    around = tree(country.directory.parent)
    status, out, lines = typed("check", country)
    assert (status, lines) == (0, [])
    assert all(line.isprintable() for line in out.splitlines()), out
    status, out, _ = typed("run", country)
    assert status == 0
    assert all(line.isprintable() for line in out.splitlines()), out
    made = tree(country.directory.parent) - around
    assert all(country.directory / "out" in [path, *path.parents] for path in made)
    tables = [path for path in made if path.suffix == ".csv"]
    assert tables
    for path in tables:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                assert not any(_is_formula(cell) for cell in row), (path, row)


def _is_formula(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return False
