"""The page of evidence is made of the files of figures, and so are the figures of the README."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks import evidence

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?![\w])")
#: Paragraphs of the README by their first words, and the files that their figures come from.
PARAGRAPHS = {
    "| simulated grids, 60 x 60 pixels": ("designs",),
    "| held-out districts": ("madagascar",),
    "**Size and speed.**": ("country", "hundred_million", "speed", "gpu"),
    "On six simulated countries (seeds 1 to 6)": ("labels",),
}
GIVEN = {"957", "1,044,683"}  # of the country's design, not measured


def test_the_page_is_that_of_the_figures(tmp_path):
    assert evidence.PAGE.read_text(encoding="utf-8") == evidence.render()
    evidence.draw(tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 5000


def test_no_figure_of_the_page_is_typed():
    text = evidence.TEMPLATE.read_text(encoding="utf-8")
    assert typed(text) == []
    assert typed(text + "\nThe correlation is 0.973, in 12 s.") == ["0.973", "12 s"]


def typed(text):
    """Return the figures outside expressions: those with decimals, and those with a unit."""
    bare = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "", text, flags=re.DOTALL)
    return re.findall(r"(?<![\w.])\d+\.\d+|\d+ (?:s|GiB|nats)\b", bare)


@pytest.mark.parametrize("start", PARAGRAPHS)
def test_figures_of_the_readme_are_those_of_the_files(start):
    paragraph = next(
        each for each in (ROOT / "README.md").read_text().split("\n\n") if each.startswith(start)
    )
    known = leaves(*PARAGRAPHS[start])
    assert unknown(paragraph, known) == []
    wrong = re.sub(r"\d\.\d+", "0.5557", paragraph, count=1)
    assert wrong != paragraph
    assert unknown(wrong, known)


def unknown(text, known):
    """Return the figures of three digits and more that no value rounds to."""
    missing = []
    for found in NUMBER.findall(text):
        digits = found.replace(",", "")
        places = len(digits.partition(".")[2])
        if len(digits.lstrip("0").replace(".", "").lstrip("0")) < 3 or found in GIVEN:
            continue
        if not np.any(np.abs(known - float(digits)) <= 0.5001 * 10.0**-places):
            missing.append(found)
    return missing


def leaves(*names):
    """Return all numbers of some files; of records of grids, the means of each design."""
    found = []

    def visit(value):
        if isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                visit(each)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append(float(value))

    for name in names:
        told = evidence.figures(name)
        if "designs" in told and "records" in told:
            visit(told["designs"])
            for design, score in product(told["designs"], ("correlation", "rmse", "crps")):
                if evidence.records(name, design):
                    found.append(evidence.mean(name, design, "pixels", score))
        else:
            visit({key: value for key, value in told.items() if key not in ("machine", "code")})
    return np.array(found)
