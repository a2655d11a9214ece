"""Points beside areas, from their table to the map, the table and the folds."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import yaml
from pyproj import Transformer

from geo.core.errors import InputError
from geo.grids.displacement import candidates
from geo.sources.raster import RasterSource
from models.core.block import BagBlock
from pipeline.cli.main import main
from pipeline.config.context import StageContext
from pipeline.config.point_schema import Points
from pipeline.config.schema import Config
from pipeline.core.progress import Silent
from pipeline.ingest.point_tables import read_source
from pipeline.ingest.stage import check, ingest
from pipeline.store.bag_store import BagStore
from pipeline.store.point_store import BesideSource, PointStore
from tests.typed import run_each

POINTS = {
    "name": "dhs", "path": "clusters.csv", "id": "cluster", "value": "positive",
    "tested": "examined", "radius": 3,
}  # fmt: skip


def clusters(files: Any, n: int = 24, **changes: Any) -> pd.DataFrame:
    """Write clusters about the country, some with columns changed."""
    rng = np.random.default_rng(3)
    x, y = 5e5 + 1000 * rng.uniform(4, 25, n), 8e6 - 1000 * rng.uniform(4, 25, n)
    lon, lat = Transformer.from_crs(files.crs, "EPSG:4326", always_xy=True).transform(x, y)
    table = pd.DataFrame(
        {"cluster": np.arange(n) + 1, "lon": lon, "lat": lat, "positive": rng.binomial(30, 0.2, n)}
    ).assign(examined=30, x=x, y=y)
    for name, (row, value) in changes.items():
        table[name] = table[name].astype(object)
        table.loc[row, name] = value
    table.to_csv(files.directory / "clusters.csv", index=False)
    return table


def ingested(files: Any) -> tuple[BagStore, PointStore]:
    config = files.config()
    ingest(StageContext(config, Silent(), "of-the-inputs"))
    work = config.output.dir / "work"
    return BagStore.open(work / "bags.zarr"), PointStore.open(work / "points.zarr")


def test_a_cluster_is_the_people_within_its_reach(files: Any) -> None:
    table = clusters(files, positive=(2, ""), lon=(5, 0.0), lat=(5, 0.0))
    files.options = {"points": [POINTS]}
    assert check(files.config()) == []
    areas, points = ingested(files)
    assert points.about["left_out"] == {"dhs": {"without_value_or_place": 2, "outside": 0}}
    kept = table.drop(index=[2, 5]).reset_index(drop=True)
    assert points.about["id"] == kept["cluster"].astype(str).tolist()
    np.testing.assert_array_equal(points.store.y, kept["positive"].astype(float))
    grid = RasterSource(files.directory / "population.tif").grid
    found = candidates(grid, *kept[["lon", "lat"]].to_numpy(float).T, [((3.0, 1.0),)] * len(kept))
    usable = np.unique(areas.read_rows(0, areas.n_pix).pixel)
    for k in (0, 7, 21):
        span = slice(*points.store.offsets[k : k + 2].tolist())
        rows = points.store.read_rows(span.start, span.stop)
        own = slice(*found.offsets[k : k + 2].tolist())
        weight = found.mass[own] * files.population.ravel()[found.pixel[own]]
        weight *= np.isin(found.pixel[own], usable)
        np.testing.assert_array_equal(rows.pixel, found.pixel[own][weight > 0])
        np.testing.assert_allclose(rows.weight, weight[weight > 0] / weight.sum())
        np.testing.assert_allclose(rows.x[:, 1], files.x["north"].ravel()[rows.pixel], rtol=1e-6)
        col, row = (kept.loc[k, "x"] - 5e5) / 1e3, (8e6 - kept.loc[k, "y"]) / 1e3
        if all(2 < (each - 2.33) % 8 < 6 for each in (row, col)):  # well inside an area
            assert points.area[k] == f"M{3 * int((row - 2.33) // 8) + int((col - 2.33) // 8):02d}"


def test_a_catchment_counts_its_people(files: Any) -> None:
    clusters(files)
    facility = {"name": "clinic", "path": "clusters.csv", "id": "cluster", "value": "positive"}
    files.options = {"points": [{**facility, "catchment": 2}]}
    files.raster("population.tif", np.full(files.shape, 10.0))
    areas, points = ingested(files)
    source = BesideSource.of(areas, points, None)  # neither has trials, and blocks are joined
    whole = BagBlock.join([source.read(k) for k in np.flatnonzero(source.block_bags)])
    assert np.isnan(whole.trials).all()
    inside = np.array([10 * np.pi * 4.0])  # of those that no border cuts
    assert np.isclose(points.store.bag_weight, inside, rtol=0.03).sum() > 12
    assert (points.store.bag_weight < 1.03 * inside).all()


def test_held_out_areas_take_their_clusters_with_them(files: Any) -> None:
    clusters(files)
    files.options = {"points": [POINTS]}
    areas, points = ingested(files)
    train = np.array([name not in ("M04", "M08") for name in areas.ids])
    source = BesideSource.of(areas, points, train)
    gone = np.isin(points.area, ["M04", "M08"])
    assert 0 < gone.sum() < 24
    assert source.n_bag == 7 + 24 - gone.sum()
    blocks = [source.read(k) for k in np.flatnonzero(source.block_bags)]
    bags = np.concatenate([block.bag for block in blocks])
    of = np.concatenate([block.source for block in blocks])
    np.testing.assert_array_equal(np.sort(bags[of == 1]) - areas.n_bag, np.flatnonzero(~gone))
    sent = pickle.loads(pickle.dumps(source.reference)).open()
    assert sent.fingerprint() == source.fingerprint()
    np.testing.assert_array_equal(sent.read(0).weight, source.read(0).weight)
    alone = BesideSource.of(areas, points, None).summary(np.random.default_rng(0))
    assert (alone.source == 1).sum() == 24
    assert np.isnan(alone.trials[alone.source == 0]).all()
    mean, sd = areas.scaling()
    np.testing.assert_array_equal([alone.x_mean, alone.x_sd], [mean, sd])


def test_blocks_of_points_have_margins_where_areas_are_suppressed(files: Any) -> None:
    clusters(files)
    files.options = {"points": [POINTS]}
    path = files.directory / "cases.csv"
    table = pd.read_csv(path, dtype=str)
    table.loc[[1, 4], "cases"] = "<5"
    table.to_csv(path, index=False)
    areas, points = ingested(files)
    source = BesideSource.of(areas, points, None)
    whole = BagBlock.join([source.read(k) for k in np.flatnonzero(source.block_bags)])
    at = [areas.ids[k] for k in whole.bag[whole.margin > 0]]
    assert sorted(at) == sorted(table.loc[[1, 4], table.columns[0]])
    assert (whole.source[whole.margin > 0] == 0).all()
    assert set(whole.y[whole.margin > 0]) == {2.0}


def written(files: Any, **options: Any) -> Path:
    files.options = {
        "points": [POINTS],
        "model": {"kernel": "linear + matern32(space)", "integrate": "none"},
        "output": {"dir": str(files.directory / "out"), "draws": 40},
        **options,
    }
    path: Path = files.directory / "disagg.yaml"
    path.write_text(yaml.safe_dump(files.mapping()))
    return path


@pytest.mark.slow
def test_a_run_with_points_has_their_table_and_leaves_them_out_by_folds(files: Any) -> None:
    clusters(files)
    path = written(files, evaluate={"folds": 2, "schemes": ["area"]})
    assert main(["run", str(path), "--quiet"]) == 0
    out = files.directory / "out"
    table = pd.read_csv(out / "points.csv")
    assert len(table) == 24
    assert (table["value_lower"] <= table["value_upper"]).all()
    assert table["expected"].between(table["expected_lower"], table["expected_upper"]).all()
    assert table["expected"].sum() == pytest.approx(table["value"].sum(), rel=0.1)
    page = (out / "report.html").read_text()
    assert "Points beside the areas" in page
    assert "in most pixels nothing was observed" in page
    held = json.loads((out / "evaluation.json").read_text())["held_out"]["area"]
    assert [row["how"] for row in held["by_fold"]] == ["refit", "refit"]
    written(files, points=[])
    run_each(path, "ingest", "fit", "predict")
    assert not (out / "points.csv").exists()
    assert not (out / "work/points.zarr").exists()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"lat": (3, 95)}, r"clusters.csv\) row 5: latitude 95; give degrees"),
        ({"positive": (1, 31)}, r"row 3: 31 positives of 30 tested"),
        ({"positive": (1, 0.4)}, r"row 3: 0.4 positives of 30 tested; give whole numbers"),
        ({"positive": (1, "many")}, r"column 'positive' has 'many' \(row 3\), which is no number"),
        ({"cluster": (1, 1)}, r"row 3: repeats the id '1'"),
        ({"examined": (0, 0)}, r"row 2: 0 tested"),
    ],
)
def test_a_table_with_a_mistake_is_refused_by_its_row(files: Any, changes: Any, found: str) -> None:
    clusters(files, **changes)
    files.options = {"points": [POINTS]}
    with pytest.raises(InputError, match=found):
        ingested(files)
    assert not (files.directory / "out/work/points.zarr").exists()


@pytest.mark.parametrize(
    ("points", "others", "found"),
    [
        ({"radius": "dhs"}, {}, "`radius: dhs` and `urban`"),
        ({"tested": None}, {}, "values without `tested` are counts"),
        ({"likelihood": "poisson"}, {}, "poisson is no law of positives"),
        ({"likelihood": "beta_binomial"}, {}, "give binomial, whose clusters differ"),
        ({"catchment": 3}, {}, "given with a radius"),
        ({}, {"time": {"step": "month"}}, "these are of one period"),
        ({}, {"model": {"kind": "constant"}}, "give vbagg, or leave the points out"),
        ({}, {"model": {"likelihood": "gamma"}}, "gamma.* of areas is not of counts"),
        ({"offset": False}, {}, "the scale between binomial"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(
    files: Any, points: Any, others: Any, found: str
) -> None:
    files.options = {"points": [{**POINTS, **points}], **others}
    with pytest.raises(ValueError, match=found):
        Config.model_validate(files.mapping(), context={"base": files.directory})


def test_points_that_lie_elsewhere_are_refused(files: Any) -> None:
    table = clusters(files)
    table.rename(columns={"lon": "lat", "lat": "lon"}).to_csv(
        files.directory / "clusters.csv", index=False
    )
    files.options = {"points": [POINTS]}
    with pytest.raises(InputError, match="no point is on a pixel"):
        ingested(files)


def test_points_of_a_vector_file_are_where_its_geometry_is(tmp_path: Path) -> None:
    points = gpd.GeoDataFrame(
        {"id": [1, 2], "positive": [3, 4], "examined": [30, 25]},
        geometry=gpd.points_from_xy([500000.0, 510000.0], [100000.0, 110000.0]),
        crs="EPSG:32636",
    )
    points.to_file(tmp_path / "p.gpkg")
    spec = Points.model_validate(
        {"name": "dhs", "path": str(tmp_path / "p.gpkg"), "id": "id", "value": "positive",
         "tested": "examined"},
        context={"base": tmp_path},
    )  # fmt: skip
    found = read_source(spec, [])
    expected = points.to_crs("EPSG:4326").geometry
    np.testing.assert_allclose(found["lon"].astype(float), expected.x)
    np.testing.assert_allclose(found["lat"].astype(float), expected.y)
    assert found["value"].tolist() == [3.0, 4.0]
