"""New counts that look cut off are held and told once, until they settle or somebody says so."""

import time

import pytest

from pipeline.updates import cut_off
from pipeline.updates.arrivals import load_watched, mark_seen, new_counts
from pipeline.updates.cut_off import held_back, looks_cut_off, take

HEAD = "id,cases\n"
WHOLE = [HEAD, *(f"A{n},{n}\n" for n in range(20))]


@pytest.mark.parametrize(
    ("lines", "before", "period", "found"),
    [
        (WHOLE, None, None, ""),
        (WHOLE, 20, None, ""),
        (WHOLE[:-2], 20, None, ""),  # 18 of 20: February
        (WHOLE[:12], 20, None, "11 rows, where there were 20"),
        (WHOLE[:2], 20, None, "1 rows, where there were 20"),
        ([*WHOLE, "A20"], 20, None, "its last line has 1 of 2 columns"),
        ([*WHOLE, "A20\n"], 20, None, "its last line has 1 of 2 columns"),
        ([*WHOLE, "A20,2"], None, None, "its last line has no line end"),
        ([line.replace(",", ";") for line in [*WHOLE, "A20\n"]], 20, None, "its last line has 1"),
        (
            ["id,month,n\n", *(f"A{n},2024-0{m},1\n" for m in (1, 2) for n in range(20 // m**2))],
            None, "month", "5 rows of 2024-02, where other periods have 20",
        ),
    ],
)  # fmt: skip
def test_what_looks_cut_off(lines, before, period, found):
    told = looks_cut_off(lines, before, period)
    assert told.startswith(found)
    assert bool(told) == bool(found)


@pytest.fixture
def monthly(files, monkeypatch):
    """A map with a whole January, taken, and a February that broke off."""
    text = (files.directory / "cases.csv").read_text()
    counts = {"path": "cases_{period}.csv", "value": "cases"}
    path = files.written(counts=counts, update={"settle_s": 0})
    (files.directory / "cases_2024-01.csv").write_text(text)
    (first,) = new_counts(path)
    assert held_back(load_watched(path), first) is None
    mark_seen(path, first)
    (files.directory / "cases_2024-02.csv").write_text(text[: len(text) // 2])
    sent = []
    monkeypatch.setattr(
        cut_off, "notify_end", lambda *words: sent.append(words) or ["notify.webhook: away"]
    )
    return path, sent


def test_a_cut_off_table_is_held_and_told_once(monthly):
    path, sent = monthly
    (arrival,) = new_counts(path)
    line, trouble = held_back(load_watched(path), arrival)
    assert "cases_2024-02.csv: looks cut off: " in line
    assert f"python -m flows.watch {path} --take" in line
    assert trouble == "notify.webhook: away"  # the line of an alert that reached nobody
    assert [words[1:3] for words in sent] == [("failure", "New counts are held")]
    assert held_back(load_watched(path), arrival) == []
    assert len(sent) == 1


def test_what_no_table_is_is_left_to_the_run():
    assert looks_cut_off(["id,n\n", "x" * 200_000 + "\n", "A,1\n"], None, None) == ""
    assert looks_cut_off(["\n", "\n", "\n"], None, None) == ""


def test_it_is_taken_when_it_settles(monthly):
    path, _ = monthly
    (arrival,) = new_counts(path)
    assert held_back(load_watched(path), arrival, time.time() + 3500) is not None
    assert held_back(load_watched(path), arrival, time.time() + 3700) is None


def test_it_is_taken_when_somebody_says_so_and_no_other_is(monthly):
    path, _ = monthly
    (arrival,) = new_counts(path)
    take(load_watched(path), arrival)
    assert held_back(load_watched(path), arrival) is None
    with (path.parent / "cases_2024-02.csv").open("a") as file:
        file.write("M0")
    (arrival,) = new_counts(path)
    assert held_back(load_watched(path), arrival)


def test_a_single_file_is_measured_by_what_it_was(files):
    path = files.written(update={"settle_s": 0})
    (first,) = new_counts(path)
    assert held_back(load_watched(path), first) is None
    mark_seen(path, first)
    counts = files.directory / "cases.csv"
    counts.write_text("".join(counts.read_text().splitlines(keepends=True)[:5]))
    (second,) = new_counts(path)
    (line,) = held_back(load_watched(path), second)
    assert "4 rows, where there were 9" in line
