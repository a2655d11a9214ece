"""Names that are no ids: ``check --fix`` proposes a file, and a run follows it once it is named."""

from __future__ import annotations

import geopandas as gpd
import pandas as pd
import pytest
import yaml

from pipeline.cli.main import main
from tests.pipeline.conftest import Files

# What the areas are called, and what the table calls them.
CALLED = {
    "Kéran": "KERAN", "Binah": "Binah District", "Dankpen": "Dankpenn", "Doufelgou": "Doufelgou",
    "Assoli": "assoli", "Bassar": "Bassar", "Kozah": "Kozah", "Sotouboua": "Sotoboua",
    "Blitta": "Atlantis",
}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    files = Files(tmp_path)
    frame = gpd.GeoDataFrame(
        {"code": files.ids, "nom": list(CALLED)}, geometry=files.polygons, crs=files.crs
    )
    frame.to_file(tmp_path / "areas.gpkg", layer="districts")
    table = pd.DataFrame({"district": list(CALLED.values()), "cases": range(3, 12)})
    table.to_excel(tmp_path / "cases.xlsx", index=False)
    files.options = {
        "counts": {"path": "cases.xlsx", "id": "district", "value": "cases"},
        "output": {"dir": "out"},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(files.mapping()), encoding="utf-8")
    return path


def test_a_proposal_is_written_and_followed_only_where_it_is_named(path, capsys):
    assert main(["check", str(path)]) == 2
    printed = capsys.readouterr()
    assert "disagg check --fix" in printed.err
    assert "9 count(s) match no area" in printed.err
    assert not list(path.parent.glob("*crosswalk*"))
    assert main(["check", str(path), "--fix"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "9 names in column 'district' match no area" in said
    assert "set counts.crosswalk: run.crosswalk.csv" in said
    walk = pd.read_csv(path.parent / "run.crosswalk.csv", dtype=str, keep_default_na=False)
    walk = walk.set_index("name")
    assert walk.loc["Binah District", ["area_id", "area_name"]].tolist() == ["M01", "Binah"]
    assert walk.loc["Atlantis", "area_id"] == ""
    assert (walk["reason"] != "").all()
    assert (walk["area_id"] != "").sum() == 8
    # Named, it is followed; what it leaves blank is told still.
    text = yaml.safe_load(path.read_text(encoding="utf-8"))
    text["counts"]["crosswalk"] = "run.crosswalk.csv"
    path.write_text(yaml.safe_dump(text), encoding="utf-8")
    assert main(["check", str(path)]) == 2
    assert "1 count(s) match no area: Atlantis" in capsys.readouterr().err
    walk.loc["Atlantis", "area_id"] = "M08"
    walk.to_csv(path.parent / "run.crosswalk.csv")
    assert main(["check", str(path)]) == 0
    assert main(["check", str(path), "--fix"]) == 0
    assert "Nothing can be mended" in capsys.readouterr().out


def test_a_later_month_with_a_new_spelling_is_proposed_beside_the_lines_that_are_there(
    path, capsys
):
    text = yaml.safe_load(path.read_text(encoding="utf-8"))
    text["counts"] |= {"path": "cases.csv", "period": "month", "crosswalk": "mine.csv"}
    path.write_text(yaml.safe_dump(text), encoding="utf-8")
    ids = [f"M{k:02d}" for k in range(len(CALLED))]
    own = {"area_id": ids, "name": list(CALLED.values()), "seen": "by hand"}
    pd.DataFrame(own).to_csv(path.parent / "mine.csv", index=False)
    late = ["Kérann" if name == "KERAN" else name for name in CALLED.values()]
    rows = [(name, month, 5) for month, names in (("2024-01", CALLED.values()), ("2024-02", late))
            for name in names]  # fmt: skip
    table = pd.DataFrame(rows, columns=["district", "month", "cases"])
    table.to_csv(path.parent / "cases.csv", index=False)
    assert main(["check", str(path), "--fix"]) == 2
    printed = capsys.readouterr()
    assert "propose lines for mine.csv" in printed.err
    assert "in place of mine.csv" in printed.out
    new = pd.read_csv(path.parent / "run.crosswalk.new.csv", dtype=str)
    assert new["name"].tolist() == [*CALLED.values(), "Kérann"]
    # The area has a row in January, under its other name, and none in February.
    assert new["area_id"].tolist() == [*ids, "M00"]
    assert new["seen"].eq("by hand").sum() == len(CALLED)
    (path.parent / "run.crosswalk.new.csv").replace(path.parent / "mine.csv")
    assert main(["check", str(path)]) == 0


def test_lines_with_ids_of_no_area_are_proposed_anew_in_their_place(path, capsys):
    text = yaml.safe_load(path.read_text(encoding="utf-8"))
    text["counts"]["crosswalk"] = "mine.csv"
    path.write_text(yaml.safe_dump(text), encoding="utf-8")
    ids = ["gone", *(f"M{k:02d}" for k in range(1, len(CALLED)))]
    own = {"area_id": ids, "name": list(CALLED.values())}
    pd.DataFrame(own).to_csv(path.parent / "mine.csv", index=False)
    assert main(["check", str(path), "--fix"]) == 2
    assert "no area has the id gone" in capsys.readouterr().err
    new = pd.read_csv(path.parent / "run.crosswalk.new.csv", dtype=str)
    assert sorted(new["name"]) == sorted(CALLED.values())
    assert new.set_index("name")["area_id"][next(iter(CALLED.values()))] == "M00"
