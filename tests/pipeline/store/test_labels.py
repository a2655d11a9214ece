"""Both stores open in xarray with names, coordinates and CRS; those of earlier versions as well."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
import rioxarray  # noqa: F401 (registers .rio)
import xarray as xr
import zarr
from odc.geo.xr import assign_crs
from pyproj import CRS

from geo.grids.grid import same_crs
from pipeline import BagStore, open_labelled
from pipeline.config.context import StageContext
from pipeline.core.errors import StoreError
from pipeline.ingest.stage import ingest
from pipeline.store.labels import BAG_DIMENSIONS, GRID_DIMENSIONS
from tests.archives import unpack

ARCHIVE = Path(__file__).parents[2] / "compatibility" / "written_by_0.1.0.tar.xz"

# affine warns of its own operator, which rioxarray uses.
pytestmark = pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Both stores of a country of 3 x 3 areas, and its files."""
    from tests.pipeline.conftest import Files

    files = Files(tmp_path_factory.mktemp("labels"))
    config = files.config()
    (config.output.dir / "work").mkdir(parents=True)
    ingest(StageContext(config))
    return files, config.output.dir / "work"


def test_every_array_has_named_dimensions(work):
    for name, known in (("grid.zarr", GRID_DIMENSIONS), ("bags.zarr", BAG_DIMENSIONS)):
        arrays = sorted((work[1] / name).glob("*/zarr.json"))
        assert set(known) <= {path.parent.name for path in arrays}
        for path in arrays:
            key, about = path.parent.name, json.loads(path.read_text(encoding="utf-8"))
            assert len(about.get("dimension_names", [])) == len(about["shape"]), key
            if key in known:
                assert tuple(about["dimension_names"]) == known[key]
                assert about["attributes"]["long_name"]


def test_the_grid_opens_without_a_word(work):
    # pytest makes every warning an error: no argument is needed.
    files, directory = work
    found = xr.open_zarr(directory / "grid.zarr")
    with rasterio.open(files.directory / "population.tif") as source:
        crs, bounds, transform, shape = source.crs, source.bounds, source.transform, source.shape
        people = source.read(1)
        column = [source.xy(0, k)[0] for k in range(source.width)]
        row = [source.xy(k, 0)[1] for k in range(source.height)]
    assert found.rio.crs == crs
    assert found.population.rio.crs == crs
    assert found.sizes == {"covariate": 2, "y": shape[0], "x": shape[1]}
    np.testing.assert_allclose(found.x, column, rtol=1e-12)
    np.testing.assert_allclose(found.y, row, rtol=1e-12)
    np.testing.assert_allclose(found.population.rio.bounds(), bounds, rtol=1e-12)
    assert found.population.rio.transform().almost_equals(transform)
    np.testing.assert_array_equal(found.population, people)
    wave = found.covariates.sel(covariate="wave")
    np.testing.assert_allclose(wave, files.x["wave"], rtol=1e-6)
    assert found.x.attrs["standard_name"] == "projection_x_coordinate"
    assert found.x.attrs["units"] == "metre"
    assert found.population.attrs["units"] == "people"
    assert CRS.from_cf(found.spatial_ref.attrs).to_epsg() == 32738


def test_odc_geo_knows_the_grid_too(work):
    files, directory = work
    found = xr.open_zarr(directory / "grid.zarr").population
    with rasterio.open(files.directory / "population.tif") as source:
        assert found.odc.crs.to_epsg() == source.crs.to_epsg()
        assert tuple(found.odc.geobox.transform)[:6] == pytest.approx(tuple(source.transform)[:6])
        assert found.odc.geobox.shape == source.shape
    assert assign_crs(found, found.odc.crs).odc.crs == found.odc.crs


def test_geozarr_attributes_are_those_of_the_grid(work):
    attrs = zarr.open_group(work[1] / "grid.zarr", mode="r").attrs
    assert {each["name"] for each in attrs["zarr_conventions"]} == {"proj:", "spatial:"}
    assert attrs["proj:code"] == "EPSG:32738"
    assert CRS.from_wkt(attrs["proj:wkt2"]).to_epsg() == 32738
    assert attrs["spatial:dimensions"] == ["y", "x"]
    assert attrs["spatial:shape"] == list(work[0].shape)
    assert attrs["spatial:transform"] == list(work[0].transform)[:6]
    left, bottom, right, top = attrs["spatial:bbox"]
    assert (right - left) / 1000 == work[0].shape[1]
    assert (top - bottom) / 1000 == work[0].shape[0]


def test_the_bag_store_opens_without_a_word(work):
    files, directory = work
    found, store = xr.open_zarr(directory / "bags.zarr"), BagStore.open(directory / "bags.zarr")
    assert found.rio.crs.to_epsg() == 32738
    assert tuple(found.bag.values) == store.ids
    assert float(open_labelled(directory / "bags.zarr").value.sel(bag="M03")) == float(
        files.cases["M03"]
    )
    assert list(found.covariate.values) == ["wave", "north"]
    assert list(found.axis.values) == ["east", "north", "up"]
    # The moments of one area by their names are those of its rows.
    number = store.ids.index("M03")
    rows = found.x.isel(row=slice(*store.offsets[number : number + 2]))
    mean = found.moments.sel(bag="M03", moment="mean", covariate="north")
    assert float(mean) == pytest.approx(float(rows.sel(covariate="north").astype(float).mean()))
    assert found.coords_crs.attrs["crs_wkt"] == store.attrs["coords_crs"]
    assert found["coords"].attrs["units"] == "km"
    # Where a row's pixel lies, by the CRS of the grid and by the positions in km.
    row, col = divmod(int(found.pixel[7]), files.shape[1])
    assert int(found.pixel[7]) == int(store.read_rows(0, store.n_pix).pixel[7])
    assert 0 <= row < files.shape[0]
    assert 0 <= col < files.shape[1]


@pytest.mark.parametrize("name", ["grid.zarr", "bags.zarr"])
def test_open_labelled_is_what_xarray_opens(work, name):
    ours, theirs = open_labelled(work[1] / name), xr.open_zarr(work[1] / name)
    assert set(ours.coords) == set(theirs.coords)
    assert set(ours.data_vars) - set(theirs.data_vars) <= {"value"}
    for key in (*theirs.data_vars, *ours.coords):
        assert ours[key].dims == theirs[key].dims, key
        np.testing.assert_array_equal(ours[key].values, theirs[key].values, err_msg=key)
    assert ours.rio.crs == theirs.rio.crs


def test_stores_of_an_earlier_version_are_labelled_as_they_are_opened(tmp_path):
    unpack(ARCHIVE, tmp_path)
    (grid,) = tmp_path.rglob("grid.zarr")
    group = zarr.open_group(grid, mode="r")
    assert "x" not in group  # no coordinates, no names
    assert group["population"].metadata.dimension_names is None
    found = open_labelled(grid)
    described = group.attrs["grid"]
    assert same_crs(CRS.from_user_input(found.rio.crs), CRS.from_wkt(described["crs"]))
    assert list(found.population.rio.transform())[:6] == pytest.approx(described["transform"])
    assert found.covariates.dims == ("covariate", "y", "x")
    np.testing.assert_array_equal(found.coverage.values, group["coverage"][:])
    bags = next(path for path in tmp_path.rglob("bags.zarr"))
    store, opened = BagStore.open(bags), open_labelled(bags)
    assert tuple(opened.bag.values) == store.ids
    np.testing.assert_array_equal(opened.y, store.y)
    assert opened.sizes["axis"] == store.n_axis


def test_what_is_no_store_is_told(tmp_path):
    zarr.create_group(tmp_path / "a.zarr")
    with pytest.raises(StoreError, match="give a bag store or an aligned grid"):
        open_labelled(tmp_path / "a.zarr")
