"""Figures of pages are those of files; one that is not is found, wherever it is planted."""

from __future__ import annotations

import re

import pytest

from benchmarks import designs, noise, quick, typed
from benchmarks.typed import RECORD, ROOT, figures_in, on_record, pages, untraced

NAMES = [str(page.relative_to(ROOT)) for page in pages()]


@pytest.mark.parametrize("name", NAMES)
def test_no_figure_is_typed_that_no_file_has(name):
    new = set(untraced(ROOT / name)[0]) - set(on_record().get(name, []))
    assert not new, (
        f"{name}: no file that it quotes has {sorted(new)}; quote the file of a measurement; of a "
        f"setting, or a figure of others: python -m benchmarks.typed --write ({RECORD.name})"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_figure_is_found_on_every_page(name):
    page = ROOT / name
    text = page.read_text(encoding="utf-8")
    wrong = f"{text}\n\nIntervals cover 73.519 %, in 8,765,431 s.\n"
    assert set(untraced(page, wrong)[0]) - set(untraced(page)[0]) == {"73.519", "8,765,431"}


@pytest.mark.ci
def test_most_digits_that_are_mistyped_are_found():
    """Of all figures of three digits and more that have a file, each with one digit off."""
    found = tried = 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        before = set(untraced(page, text)[0])
        known = {figure for block, _ in typed.blocks_of(page, text)
                 for figure, _ in figures_in(block) if figure not in before}  # fmt: skip
        for figure in sorted(known):
            if len(re.sub(r"\D", "", figure).lstrip("0")) < 3:
                continue
            off = figure[:-1] + str((int(figure[-1]) + 4) % 10)
            places = rf"(?<![\w.,]){re.escape(figure)}(?![\d.])"
            changed = re.sub(places, off, text, count=1)
            if changed != text:
                tried += 1
                found += off in untraced(page, changed)[0]
    assert tried > 400
    assert found > 0.75 * tried


def test_what_counts_as_a_figure():
    text = "In 12 s, 3 s, 92 % of 5 pages, 1,234 areas of 1.5 km; see v1.2.3, a-4.5, 0.07 and 2024."
    assert [figure for figure, _ in figures_in(text)] == ["12", "92", "1,234", "1.5"]
    ((_, values),) = figures_in("it covers 92.5 %")
    assert values == [(92.5, pytest.approx(0.05, rel=1e-3)), (0.925, pytest.approx(5e-4, rel=1e-3))]


def test_a_named_file_is_the_only_one_of_the_block_that_follows():
    page = ROOT / "README.md"
    text = "A.\n\n<!-- figures: labels -->\n\nThe AUC is 0.9631, not 0.555.\n\nOr 0.9631.\n"
    (first, own, after) = typed.blocks_of(page, text)
    assert own[1] == ("labels",)
    assert first[1] == after[1] != own[1]
    assert untraced(page, "`0.5557` and $0.5557$\n\n```\n0.5557 s\n```\n") == ([], 0)


def test_records_of_single_runs_are_no_figures():
    many = [{"crps": k / 1000} for k in range(500)]
    assert list(typed.values_of({"rows": many, "mean": -0.25, "code": {"x": 9.0}, "ok": True})) == [
        0.25
    ]
    row = {"label": "now", "design": "a", "pixels": {
        "coverage": {"0.9": 0.8}, "coverage_people": {"0.9": 0.6}, "correlation": 0.5, "rmse": 0.4,
        "crps": 0.3}}  # fmt: skip
    other = {**row, "pixels": {**row["pixels"], "crps": 0.5}}
    assert list(typed.means_of([row, other, {**row, "label": "before"}])) == pytest.approx(
        [0.8, 0.6, 0.5, 0.4, 0.4]
    )


def test_pages_and_tables_that_commands_make_are_those_of_the_files():
    assert quick.pages()[1] == []
    table = noise.table(designs.read_records(noise.PATH).values())
    assert table in noise.PAGE.read_text(encoding="utf-8")
