"""Malformed and misleading inputs: each with the lines that `disagg check` must say, no others."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator
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


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_case(case: Case, country: Country) -> None:
    case.spoil(country)
    before = tree(country.directory)
    status, out, lines = typed("check", country, "--json")
    assert tree(country.directory) == before
    said = json.loads(out)
    errors = [each for each in case.expected if isinstance(each, Error)]
    doubts = [each for each in case.expected if isinstance(each, Doubt)]
    told = "\n".join(lines)
    assert SECRET not in told + out
    for wanted in errors:
        assert any(_fits(wanted, each) for each in said["problems"]), f"{wanted}\n{told}"
    assert len(said["problems"]) == len(errors), told
    for doubt in doubts:
        assert any(
            doubt.code == each["code"]
            and doubt.place in each["place"]
            and doubt.found in each["found"]
            for each in said["suspicions"]
        ), f"{doubt}\n{told}"
    assert len(said["suspicions"]) == len(doubts), told
    assert len(lines) == len(errors) + len(doubts), told
    assert all(line.isprintable() for line in lines), lines
    for note in case.expected:
        assert not isinstance(note, Note) or note.text in json.dumps(said["found"]), said["found"]
    away = bool(errors) and all("cannot be reached" in each.found for each in errors)
    wrong = ExitStatus.TRANSIENT if away else ExitStatus.BAD_INPUT
    assert status == (wrong if errors else 0)
    if errors and case.also_ingest:
        again, _, of_ingest = typed("ingest", country)
        assert again == ExitStatus.BAD_INPUT
        assert [line for line in of_ingest if line.startswith("error:")] == [
            line for line in lines if line.startswith("error:")
        ]
        left = {path.name for path in tree(country.directory) - before}
        assert left <= {"out", "work", ".lock"}


def _fits(wanted: Error, said: dict[str, Any]) -> bool:
    return all(getattr(wanted, key) in said[key] for key in ("place", "found", "remedy"))


_SET = re.compile(
    r"set (population|covariates)\.(?:(\w+)\.)?(nodata|scale|density|units): (\S+?)(?=[;,]|\s|$)"
)


@pytest.mark.parametrize(
    "case",
    [
        each
        for each in CASES.values()
        if any(
            isinstance(said, Doubt) and said.code in ("nodata", "scale", "thousands", "density")
            for said in each.expected
        )
    ],
    ids=lambda case: case.name,
)
def test_the_remedy_of_a_suspicion_works(case: Case, country: Country) -> None:
    """What a suspicion says to set is set: neither it nor an error remains."""
    case.spoil(country)
    _, out, _ = typed("check", country, "--json")
    (said,) = json.loads(out)["suspicions"]
    remedies = list(_SET.finditer(said["remedy"]))
    if not remedies:  # to be removed, or a question
        assert said["code"] == "density"
        return
    section, name, key, value = remedies[0].groups()
    data = country.read_config()
    place = data[section][name] if name else data[section]
    place[key] = yaml.safe_load(value)
    country.write_config(data)
    _, out, lines = typed("check", country, "--json")
    assert lines == []


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
