"""Figures that are older than the code are named, with the pages that quote them."""

from __future__ import annotations

import json

from benchmarks.report import code, write_results
from benchmarks.stale import UNKNOWN, figures, pages_that_quote, quoted_by


def test_pages_with_older_figures_are_named(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/speed.md").write_text("As `python -m benchmarks.fast` says: 3 s.")
    (tmp_path / "README.md").write_text("See benchmarks/results/old.json.")
    write_results(tmp_path / "fast.json", {"seconds": 3})
    (tmp_path / "old.json").write_text(json.dumps({"seconds": 4}))
    now = code()["rooms"]
    fast, old = figures(now, directory=tmp_path, root=tmp_path)
    assert (fast.changed, fast.pages) == ((), ("docs/speed.md",))
    assert quoted_by([fast]) == {}
    assert (old.version, old.pages) == (UNKNOWN, ("README.md",))
    later = {**now, "models.gp": "another"}
    fast, old = figures(later, directory=tmp_path, root=tmp_path)
    assert fast.changed == ("models.gp",)
    assert quoted_by([fast, old]) == {"docs/speed.md": ["fast"], "README.md": ["old"]}
    assert figures(later, ["geo"], directory=tmp_path, root=tmp_path)[0].changed == ()


def test_every_figure_of_the_repository_is_quoted_by_a_page():
    unquoted = [each.name for each in figures(code()["rooms"]) if not each.pages]
    assert unquoted == []
    assert "docs/failures.md" in pages_that_quote("faults")
