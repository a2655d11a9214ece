"""GeoPackages: the same layer has the same bytes."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import geopandas as gpd
import pyogrio
import shapely

from geo.writers.geopackage import LayerDescription, describe_layer


def test_bytes_do_not_depend_on_how_often_a_file_was_changed(tmp_path: Path) -> None:
    boxes = [shapely.box(k, 0, k + 1, 1) for k in range(4)]
    frame = gpd.GeoDataFrame({"id": list("abcd")}, geometry=boxes, crs="EPSG:32736")
    files = [tmp_path / "one.gpkg", tmp_path / "two.gpkg"]
    for changes, path in enumerate(files):
        frame.to_file(path, layer="areas", driver="GPKG")
        with contextlib.closing(sqlite3.connect(path)) as database:
            for second in range(3 * changes):
                with database:
                    at = f"2026-01-01T00:00:{second:02d}.000Z"
                    database.execute("UPDATE gpkg_contents SET last_change = ?", (at,))
        describe_layer(path, "areas", LayerDescription("areas", "of a test", {"id": "Id"}))
    assert files[0].read_bytes() == files[1].read_bytes()
    assert pyogrio.read_dataframe(files[0], layer="areas")["id"].tolist() == list("abcd")
    with contextlib.closing(sqlite3.connect(files[0])) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
