"""The pictures of the README come from one making of ``python -m benchmarks.pictures``."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from benchmarks.pictures import FIGURES, PICTURES, RECORD
from pipeline.storage.fingerprint import fingerprint_file

WHOLE_RUNS = True

ROOT = Path(__file__).parents[1]
REMEDY = "make the pictures again: python -m benchmarks.pictures DIRECTORY"


def test_the_pictures_of_the_readme_are_of_one_code_and_of_this_version():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"!\[[^]]*\]\(docs/figures/([^)]+)\)", readme))
    if not RECORD.is_file():
        pytest.skip(f"the pictures are of older code: {REMEDY}")
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert shown == {name for name, *_ in PICTURES} == set(record)
    changed = [n for n, e in record.items() if fingerprint_file(FIGURES / n) != e["picture"]]
    assert changed == [], REMEDY
    assert len({json.dumps(each["code"], sort_keys=True) for each in record.values()}) == 1, REMEDY
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    numbers = {n: e["disagg"].partition("+")[0] for n, e in record.items()}
    older = {n: number for n, number in numbers.items() if number != project["version"]}
    assert older == {}, REMEDY
