"""Tiles and STAC assets as one raster; what is not of one grid, or ambiguous, is one line."""

from __future__ import annotations

import json
import warnings
from datetime import UTC, datetime

import numpy as np
import pystac
import pytest
import rasterio
from affine import Affine
from pystac.extensions.projection import ProjectionExtension
from rasterio.merge import merge

from geo.core.errors import InputError
from geo.core.trust import Trust, trusting
from geo.grids.grid import Tile
from geo.sources import raster
from geo.sources.input_files import input_files
from geo.sources.raster_header import BandChoice, RasterHeader
from geo.sources.registry import open_source, source_of
from geo.sources.stac_address import stac_path
from tests.bands import write
from tests.geo.sources.source_conformance import SourceConformance

HERE = Affine(10.0, 0.0, 500_000.0, 0.0, -10.0, 900_000.0)
#: Row, column and shape of the tiles; two overlap, and a corner is nobody's.
TILES = ((0, 0, 6, 7), (0, 5, 6, 6), (6, 0, 5, 7))
RNG = np.random.default_rng(5)
WHOLE = RNG.normal(size=(11, 11)).round(3)
WHOLE[2, 3] = np.nan


def write_tiles(folder, shift=0.0, crs="EPSG:32629"):
    """Write the tiles of the whole; the pixels of each are its own where two overlap."""
    paths = []
    for k, (row, col, n_row, n_col) in enumerate(TILES):
        values = WHOLE[row : row + n_row, col : col + n_col] + shift + 10.0 * k
        path = folder / f"tile_{k}.tif"
        place = HERE @ Affine.translation(col, row)
        write(path, values, dtype="float64", crs=crs, transform=place, nodata=np.nan)
        paths.append(path)
    return paths


def merged(paths):
    """Return what rasterio's own merge makes of them: the first wins."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # of affine, by rasterio
        values, transform = merge([str(each) for each in paths], nodata=np.nan)
    assert transform == HERE
    return values[0]


def items_of(paths, times, folder, *, projection=True):
    """Return STAC items of some tiles, as pystac writes them."""
    found = []
    for number, (path, time) in enumerate(zip(paths, times, strict=True)):
        item = pystac.Item(f"i{number}", None, None, datetime.fromisoformat(time), {})
        with rasterio.open(path) as file:
            shape, transform = list(file.shape), list(file.transform)[:6]
        item.add_asset("rain", pystac.Asset(str(path), media_type=pystac.MediaType.COG))
        preview = pystac.Asset(str(path), media_type=pystac.MediaType.PNG, roles=["thumbnail"])
        item.add_asset("preview", preview)
        if projection:
            own = ProjectionExtension.ext(item, add_if_missing=True)
            own.apply(code="EPSG:32629", shape=shape, transform=transform)
        item.set_self_href(str(folder / f"i{number}.json"))
        found.append(item)
    return found


def collection_file(items, folder):
    """Write items as the result of a search."""
    path = folder / "found.json"
    pystac.ItemCollection(items).save_object(str(path))
    return path


def said(path, **choice):
    problems = []
    assert open_source(path, "covariates.rain", problems, BandChoice(**choice)) is None
    (problem,) = problems
    return str(problem)


class TestTiles(SourceConformance):
    @pytest.fixture
    def made(self, tmp_path):
        paths = write_tiles(tmp_path)
        return source_of(tmp_path / "tile_*.tif"), {"": merged(paths)}


class TestItems(SourceConformance):
    @pytest.fixture(params=[True, False])
    def made(self, tmp_path, request):
        first, second = tmp_path / "1", tmp_path / "2"
        first.mkdir()
        second.mkdir()
        paths = [*write_tiles(first), *write_tiles(second, 100.0)]
        days = ["2024-01-15T00:00:00+00:00"] * 3 + ["2024-02-15T00:00:00+00:00"] * 3
        items = items_of(paths, days, tmp_path, projection=request.param)
        source = source_of(stac_path(str(collection_file(items, tmp_path)), "rain"))
        assert source.crs.to_epsg() == 32629
        return source, {"2024-01-15": merged(paths[:3]), "2024-02-15": merged(paths[3:])}


class TestSharesOfTiles(SourceConformance):
    @pytest.fixture
    def made(self, tmp_path):
        whole, some = merged(write_tiles(tmp_path)), (WHOLE[0, 0], WHOLE[7, 2] + 20.0)
        known = np.where(np.isnan(whole), np.nan, np.isin(whole, some))
        assert np.nansum(known) >= 2
        return source_of(tmp_path / "tile_*.tif", BandChoice(share=some)), {"": known}


def test_a_slope_of_items_goes_over_their_borders(tmp_path):
    paths = write_tiles(tmp_path)
    items = items_of(paths, ["2024-01-15T00:00:00+00:00"] * 3, tmp_path)
    path, slope = (
        stac_path(str(collection_file(items, tmp_path)), "rain"),
        BandChoice(terrain="slope"),
    )
    place = {"crs": "EPSG:32629", "transform": HERE, "nodata": np.nan}
    write(tmp_path / "whole.tif", merged(paths), dtype="float64", **place)
    expected = source_of(tmp_path / "whole.tif", slope).read()
    assert np.isfinite(expected[5:7, 1:6]).all()  # both sides of a border
    np.testing.assert_allclose(source_of(path, slope).read(), expected, rtol=1e-4)
    assert source_of(path, slope).describe().unit == "degrees"


def test_only_tiles_that_a_window_meets_are_opened(tmp_path, monkeypatch):
    paths = write_tiles(tmp_path)
    items = items_of(paths, ["2024-01-15T00:00:00+00:00"] * 3, tmp_path)
    opened = []
    monkeypatch.setattr(
        raster, "open_dataset",
        lambda path, *rest, to=raster.open_dataset: (opened.append(path), to(path, *rest))[1],
    )  # fmt: skip
    source = source_of(stac_path(str(collection_file(items, tmp_path)), None))
    for _ in range(2):
        np.testing.assert_array_equal(source.read(Tile(7, 1, 3, 4)), merged(paths)[7:10, 1:5])
    # The first tells what all are of; the other is the one that has the window.
    assert opened == [str(paths[0]), str(paths[2])]
    assert np.isnan(source.unwritten(Tile(8, 8, 2, 2)))


def test_an_item_a_catalogue_and_steps_within_a_period(tmp_path):
    paths = write_tiles(tmp_path)
    days = [f"2024-0{month}-15T00:00:00+00:00" for month in (1, 1, 2)]
    items = items_of(paths, days, tmp_path)
    items[0].save_object(include_self_link=False)
    one = source_of(stac_path(str(tmp_path / "i0.json"), ""))
    np.testing.assert_array_equal(one.read(), WHOLE[:6, :7])
    extent = pystac.Extent(
        pystac.SpatialExtent([[-180, -90, 180, 90]]),
        pystac.TemporalExtent([[datetime(2024, 1, 1, tzinfo=UTC), None]]),
    )
    whole = pystac.Collection("rain", "of months", extent)
    whole.add_items(items)
    whole.normalize_and_save(str(tmp_path), pystac.CatalogType.SELF_CONTAINED)
    path = stac_path(str(tmp_path / "collection.json"), "rain")
    assert source_of(path).describe().times == ("2024-01-15", "2024-02-15")
    mean = source_of(path, BandChoice(time="2024-01", aggregate="mean")).read()
    expected = np.full((11, 11), np.nan)
    expected[:6] = merged(paths)[:6]
    np.testing.assert_array_equal(mean, expected)
    files = {each.rpartition("/")[2] for each in input_files(path, Trust()).files}
    assert files == {"collection.json", "tile_0.tif", "tile_1.tif", "tile_2.tif"}


def test_what_is_ambiguous_or_elsewhere_is_one_line(tmp_path):
    paths = write_tiles(tmp_path)
    items = items_of(paths, ["2024-01-15T00:00:00+00:00"] * 3, tmp_path)
    for item in items:
        item.add_asset("heat", item.assets["rain"].clone())
    path = str(collection_file(items, tmp_path))
    found = said(stac_path(path, None))
    assert "item i0 has 2 rasters among its assets (rain, heat); choose one with the key" in found
    assert "item i0 has no asset 'rani'; did you mean 'rain'?" in said(stac_path(path, "rani"))
    assert "has no time '2025'; " in said(stac_path(path, "rain"), time="2025")
    below = tmp_path / "below"
    below.mkdir()
    elsewhere = str(collection_file(items, below))
    assert f"refers to {paths[0]}; put the file beside it" in said(stac_path(elsewhere, "rain"))
    with trusting(Trust(folders=(str(tmp_path),))):
        assert source_of(stac_path(elsewhere, "rain")).read().any()
    document = json.loads((tmp_path / "found.json").read_text())
    document["features"][0]["assets"]["rain"]["href"] = "https://elsewhere.example/a.tif"
    (tmp_path / "web.json").write_text(json.dumps(document))
    assert "refers to https://elsewhere.example/a.tif" in said(
        stac_path(str(tmp_path / "web.json"), "rain")
    )
    for text, words in (("{}", "is no STAC item"), ('{"type": "FeatureCollection", "features": []}',
                                                     "has no item")):  # fmt: skip
        (tmp_path / "x.json").write_text(text)
        assert words in said(stac_path(str(tmp_path / "x.json"), "rain"))
    assert "no such file" in said(stac_path(str(tmp_path / "none.json"), "rain"))


def test_pieces_of_several_grids_are_refused(tmp_path):
    write_tiles(tmp_path)
    with rasterio.open(tmp_path / "tile_2.tif", "r+") as file:
        file.crs = "EPSG:32630"
    assert "has pieces in several CRS" in said(tmp_path / "tile_*.tif")
    header = RasterHeader(crs="EPSG:32629")
    assert source_of(tmp_path / "tile_*.tif", header=header).read().any()
    with rasterio.open(tmp_path / "tile_1.tif", "r+") as file:
        file.transform = file.transform @ Affine.translation(0.3, 0)
    with pytest.raises(InputError, match="has pieces of different pixels"):
        source_of(tmp_path / "tile_*.tif", header=header)
    assert "no such file" in said(tmp_path / "none_*.tif")
