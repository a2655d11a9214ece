"""Floors follow from counts and rates, targets from rows; rows of this code are not made twice."""

from __future__ import annotations

import json
from itertools import count

import pytest

from benchmarks import performance, performance_page
from benchmarks.performance_page import floor_seconds, page, parts_without_reason, reached

RATES = {
    "gemm_float64": 1e9, "gemm_float32": 2e9, "exp_float64": 1e8, "exp_float32": 4e8,
    "write": 1e6, "zlib": 1e6, "threads": 2,
}  # fmt: skip
ROW = {
    "flops": 2e9, "exps": 1e8, "read": 1e6, "written": 3e6, "seconds": 10.0, "cpu_seconds": 12.0,
    "passes": 1.0, "pixels": 1.0,
}  # fmt: skip
STAGE = {"clock_seconds": 11.0, "peak_gib": 0.5, "whole": ROW, "parts": {}}


def test_a_floor_adds_up_what_is_needed():
    assert floor_seconds("evaluate", ROW, RATES) == 3.0  # 2 s of products, 1 s of exponentials
    assert floor_seconds("report", ROW, RATES) == 7.0  # and 4 MB
    assert floor_seconds("prediction with draws", ROW, RATES, 8e6) == 7.0  # 8 MB on two cores


def test_a_part_far_below_its_floor_says_why(monkeypatch):
    rows = {"machine": RATES, "evaluate": STAGE}
    assert parts_without_reason({"demo": rows}) == []
    monkeypatch.delitem(performance_page.WHY, "evaluate")
    assert parts_without_reason({"demo": rows}) == [
        "demo, evaluate: 30% of its floor, and WHY has no reason"
    ]
    quick = {**STAGE, "whole": {**ROW, "seconds": 2.0}}
    (line,) = parts_without_reason({"demo": {"machine": RATES, "evaluate": quick}})
    assert line.endswith("of a floor that is none")


def test_the_page_has_targets_and_reasons():
    rows = {name: STAGE for name in performance.STAGES}
    mode = {**STAGE, "whole": {**ROW, "cpu_seconds": 6.0}}
    designs = {"country": {"machine": RATES, **rows, "mode alone": mode}}
    assert reached(designs["country"], "stages", "clock_seconds") == 55.0
    assert reached(designs["country"], "stages", "peak_gib") == 0.5
    assert reached(designs["country"], "predict", "of mode") == 2.0
    assert reached({}, "run", "clock_seconds") is None
    text = page({"designs": designs, "machine": {"cpu": "a", "cores": 2}}, {})
    assert "| `country` | all stages, each in a process, s | 1500 | 55 |" in text
    assert "| small demo | `disagg run`, s | 40 | not measured |" in text
    assert "| evaluation | 10 | 12 | 2 | 100 | 1, 3 | 3 | 30.0% |" in text
    assert performance_page.WHY["evaluate"] in text
    assert performance_page.WHY["climb"] not in text


def test_the_page_has_what_was_before_and_exactextract():
    told = {"designs": {}, "machine": {"cpu": "a", "cores": 2}}
    run = {"clock_seconds": 20.0, "process_cpu_seconds": 30.0, "peak_gib": 1.0}
    right = {"correlation": 0.9, "rmse": 0.2, "covers_90": 0.91}
    designs = {"demo": {"before": run, "now": {**run, **right, "clock_seconds": 10.0}}}
    took = {"pairs": 1.0, "means": 10.0, "ingest": 5.0}
    ingest = {
        "size": "country", "rasters": 19, "processor_seconds": took, "largest_difference": 3e-7
    }  # fmt: skip
    text = page(told, {}, {"commit": "abc", "designs": designs}, ingest)
    assert "| small demo | before | 20 | 30 | 1.00 | | | |" in text
    assert "| small demo | now | 10 | 30 | 1.00 | 0.900 | 0.200 | 91% |" in text
    assert "ingest 5 s" in text
    assert "19 rasters" in text
    assert "within 3e-07" in text


def test_rows_of_this_code_stay(tmp_path):
    path, numbers = tmp_path / "rows.json", count()

    def measured():
        return {"number": next(numbers)}

    for _ in range(2):
        performance.Rows(path, again=False).make("demo", "run", measured)
    assert performance.Rows(path, again=False).found["demo"]["run"]["number"] == 0
    performance.Rows(path, again=True).make("demo", "run", measured)
    told = json.loads(path.read_text())
    assert told["designs"]["demo"]["run"]["number"] == 1
    told["designs"]["demo"]["run"]["settings"] = "of other code"
    path.write_text(json.dumps(told))
    performance.Rows(path, again=False).make("demo", "run", measured)
    assert json.loads(path.read_text())["designs"]["demo"]["run"]["number"] == 2


def test_parts_of_stages_are_there_and_time_is_taken_once():
    tally, rows = performance.Tally(), {}

    class Stage:
        def outer(self):
            tally.add("flops", 3)
            return self.inner()

        def inner(self):
            tally.add("flops", 4)
            return 5

    performance.Stage = Stage
    try:
        parts = {name: (f"benchmarks.performance:Stage.{name}",) for name in ("outer", "inner")}
        with performance.timed(parts, tally, rows):
            assert Stage().outer() == 5
    finally:
        del performance.Stage
    assert set(rows) == {"outer"}
    assert rows["outer"]["flops"] == 7
    for stage in performance.PARTS:
        with performance.timed(performance.PARTS[stage], tally, {}):
            pass


@pytest.mark.parametrize("name", ["grid60", "grid200"])
def test_grids_have_as_many_pixels_as_they_are_called(name):
    spec = performance.DESIGNS[name].spec
    assert spec.n_land == int(name.removeprefix("grid")) ** 2 < spec.shape[0] * spec.shape[1]
