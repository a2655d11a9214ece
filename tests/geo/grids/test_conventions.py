"""CF and GeoZarr attributes of grids, read back by pyproj and GDAL."""

from __future__ import annotations

import pytest
from affine import Affine
from pyproj import CRS

from geo.grids.conventions import axis_attributes, geozarr_attributes, grid_mapping
from geo.grids.grid import Grid


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:32738", "EPSG:3031", "EPSG:2263", "ESRI:54009"])
def test_a_grid_mapping_is_the_crs(crs):
    own = CRS.from_user_input(crs)
    found = grid_mapping(own)
    assert CRS.from_cf(found).equals(own, ignore_axis_order=True)
    assert CRS.from_wkt(found["spatial_ref"]) == own
    assert "GeoTransform" not in found


def test_the_geotransform_is_gdals():
    grid = Grid("EPSG:32738", Affine(1000, 0, 5e5, 0, -500, 8e6), (3, 4))
    numbers = [float(v) for v in grid_mapping(grid.crs, grid)["GeoTransform"].split()]
    assert Affine.from_gdal(*numbers) == grid.transform


@pytest.mark.parametrize(
    ("crs", "name", "unit"),
    [
        ("EPSG:4326", "longitude", "degrees_east"),
        ("EPSG:32738", "projection_x_coordinate", "metre"),
        ("EPSG:2263", "projection_x_coordinate", "0.304800609601219 metre"),
        ("EPSG:3031", "projection_x_coordinate", "metre"),
    ],
)
def test_the_axes_have_the_names_of_the_convention(crs, name, unit):
    x, y = (axis_attributes(CRS.from_user_input(crs), axis) for axis in "XY")
    assert x["standard_name"] == name
    assert x["units"] == unit
    assert x["axis"] == "X"
    assert y["axis"] == "Y"
    assert y["standard_name"] == name.replace("longitude", "latitude").replace("_x_", "_y_")


def test_a_crs_without_a_code_has_its_wkt():
    crs = CRS.from_proj4("+proj=laea +lat_0=7.77 +lon_0=20 +type=crs")
    found = geozarr_attributes(Grid(crs, Affine(1000, 0, 0, 0, -1000, 0), (3, 4)))
    assert "proj:code" not in found
    assert CRS.from_wkt(found["proj:wkt2"]) == crs
    assert found["spatial:bbox"] == [0.0, -3000.0, 4000.0, 0.0]
