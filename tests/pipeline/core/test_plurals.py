"""Numbers of things in sentences."""

from __future__ import annotations

from pipeline.core.plurals import areas_text, count_text


def test_one_is_one_and_thousands_are_grouped() -> None:
    assert [areas_text(n) for n in (0, 1, 1200)] == ["0 areas", "1 area", "1,200 areas"]
    assert [count_text(n, "refit") for n in (1, 2)] == ["1 refit", "2 refits"]
    assert count_text(3, "index", "indices") == "3 indices"
