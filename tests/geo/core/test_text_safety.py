"""Text of input files is harmless in spreadsheets, Markdown and mail headers."""

import io

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from geo.core.text_safety import (
    markdown_text,
    one_line_text,
    spreadsheet_safe,
    spreadsheet_safe_frame,
)


@pytest.mark.parametrize(
    "text",
    ['=HYPERLINK("http://x","y")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1",
     " =1", "\uff1d1", '"=1', "'=1", "-", "+x"],
)  # fmt: skip
def test_formulas_become_text(text):
    assert spreadsheet_safe(text) == f"'{text}"


@pytest.mark.parametrize(
    "value", ["-7", "+1.5", "-1e-3", "-,5", "a=b", "Sainte-Anne", 7, -7.5, None, ""]
)
def test_numbers_and_plain_text_stay(value):
    assert spreadsheet_safe(value) == value


def test_a_table_keeps_numbers_and_missing_cells():
    table = pd.DataFrame(
        {"=id": ["=1", "b", None], "n": [-1.5, 2.0, float("nan")], "i": [-1, 0, 1]}
    )
    safe = spreadsheet_safe_frame(table)
    lines = safe.to_csv(index=False).splitlines()
    assert lines == ["'=id,n,i", "'=1,-1.5,-1", "b,2.0,0", ",,1"]
    assert list(table.columns) == ["=id", "n", "i"]
    again = pd.read_csv(io.StringIO(safe.to_csv(index=False)))
    assert again["n"].equals(table["n"])


@pytest.mark.parametrize(
    "text",
    ["<script>alert(1)</script>", "![x](http://h/t.png)", "[a](javascript:b)", "a | b", "`c`",
     "# d", "**e**", "a\n\n# f", "&lt;b&gt;", "http://h/x", "1. g", "- h"],
)  # fmt: skip
def test_markdown_shows_the_text_itself(text):
    table = f"| {markdown_text(text)} | 1 |\n|---|---|\n| {markdown_text(text)} | 2 |"
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(table)
    inline = [token for token in tokens if token.type == "inline"]
    assert len(inline) == 4  # two rows of two cells: no pipe splits a cell
    kinds = {child.type for token in inline for child in token.children or []}
    assert kinds <= {"text", "text_special"}
    shown = "".join(child.content for child in inline[0].children or [])
    assert shown == one_line_text(text)


@given(st.text())
def test_one_line(text):
    assert len(one_line_text(f"a{text}b").splitlines()) == 1
