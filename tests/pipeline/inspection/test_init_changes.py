"""Tables of what became of areas, and of their names: each gets its key, and is no counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml

from pipeline.cli.main import main
from pipeline.inspection.changes import change_columns
from tests.pipeline.series_inputs import areas, counts, people, write_raster

CHANGES = pd.DataFrame(
    {"period": ["2024-03"] * 2, "from": ["X"] * 2, "to": ["A00", "A01"], "share": [0.4, 0.6]}
)


def _folder(directory: Path, changes: pd.DataFrame) -> None:
    """Write counts of X, which was split into A00 and A01 in March, and what says so."""
    areas().to_file(directory / "areas.gpkg")
    write_raster(directory / "people.tif", people())
    table = counts()
    old = table["month"] < "2024-03"
    table = table[~(old & (table["id"] == "A01"))].copy()
    table.loc[old & (table["id"] == "A00"), "id"] = "X"
    table.to_csv(directory / "cases.csv", index=False)
    changes.to_csv(directory / "changes.csv", index=False)


def test_a_table_of_changes_gets_its_key(tmp_path: Path) -> None:
    _folder(tmp_path, CHANGES)
    assert main(["init", str(tmp_path), "--yes", "--quiet"]) == 0
    found = yaml.safe_load((tmp_path / "disagg.yaml").read_text())
    assert found["areas"] == {"path": "areas.gpkg", "id": "id", "changes": "changes.csv"}
    assert found["counts"]["path"] == "cases.csv"
    assert "covariates" not in found


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda t: t.rename(columns={"period": "since", "to": "new_id"}),
         "for `areas.changes`, name its columns 'since' as 'period', 'new_id'"),
        (lambda t: t.assign(to=["B1", "B2"]), "no area of areas.gpkg is in its column 'to'"),
    ],
)  # fmt: skip
def test_one_that_cannot_be_used_as_it_is_is_told(
    tmp_path: Path,
    spoil: Callable[[pd.DataFrame], pd.DataFrame],
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _folder(tmp_path, spoil(CHANGES))
    assert main(["init", str(tmp_path), "--yes"]) == 2  # X has no area without its changes
    assert f"not used: changes.csv: changes of areas; {told}" in _one_line(capsys)
    assert "changes" not in yaml.safe_load((tmp_path / "disagg.yaml").read_text())["areas"]


def test_counts_of_one_period_have_no_use_for_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _folder(tmp_path, CHANGES)
    counts(1)[["id", "cases"]].to_csv(tmp_path / "cases.csv", index=False)
    assert main(["init", str(tmp_path), "--yes"]) == 0
    assert "for `areas.changes` the counts need a table with periods" in _one_line(capsys)


def test_a_crosswalk_gets_its_key_where_it_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    areas().to_file(tmp_path / "areas.gpkg")
    write_raster(tmp_path / "people.tif", people())
    names = {f"A{k:02d}": f"District {chr(65 + k)}" for k in range(16)}
    walk = pd.DataFrame({"name": names.values(), "area_id": names.keys(), "score": 0.9})
    walk.to_csv(tmp_path / "crosswalk.csv", index=False)
    table = counts()
    for n_named in (16, 3, 0):  # all are names, some are, none is
        some = dict(list(names.items())[:n_named])
        table.assign(id=table["id"].replace(some)).to_csv(tmp_path / "cases.csv", index=False)
        assert main(["init", str(tmp_path), "--yes", "--force"]) == 0
        found = yaml.safe_load((tmp_path / "disagg.yaml").read_text())
        assert found["counts"].get("crosswalk") == ("crosswalk.csv" if n_named else None)
        assert found["counts"]["path"] == "cases.csv"
        assert "covariates" not in found
        assert ("not used: crosswalk.csv: a crosswalk" in _one_line(capsys)) == (not n_named)


@pytest.mark.parametrize(
    ("names", "is_one"),
    [
        (("period", "from", "to"), True),
        (("Since", "old_code", "new_code", "share"), True),
        (("id", "month", "cases"), False),
        (("period", "from", "to", "cases"), False),
        (("from", "to", "2024-01"), False),
        (("from", "to", "distance"), False),
    ],
)
def test_which_tables_are_changes(names: tuple[str, ...], is_one: bool) -> None:
    assert (change_columns(pd.DataFrame(columns=list(names))) is not None) == is_one


def _one_line(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())
