"""The page of evidence is made of the files of figures."""

from __future__ import annotations

import re

from benchmarks import evidence


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
