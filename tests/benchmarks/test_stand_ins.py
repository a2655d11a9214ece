"""The study of what stands in for covariates compares what the product takes."""

from __future__ import annotations

from benchmarks import stand_ins


def test_the_months_are_those_of_the_product():
    assert sorted(stand_ins.taken(9, 1)) == [0, 0, 8, 8, 8, 8]
    assert stand_ins.taken(24, 1) == [0, 1, 11, 12, 13]
    assert stand_ins.schemes(24, 1)["same"] == [0, 12]
    assert stand_ins.schemes(11, 1)["last"] == [10]
    assert "same" not in stand_ins.schemes(6, 1)


def test_what_the_product_takes_beats_what_it_took():
    found = stand_ins.measure("strong", "6 to 10", 60)
    assert found["taken"]["crps"] < 0.8 * found["all"]["crps"]
    assert found["taken"]["crps"] < found["last"]["crps"]
