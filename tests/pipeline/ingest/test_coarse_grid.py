"""People that a coarse grid moves across borders are told, as the raster itself has them."""

from __future__ import annotations

import re
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import shapely
from affine import Affine

from geo.sources.raster import RasterSource
from geo.sources.zonal import exact_people
from pipeline.ingest import coarse_grid
from pipeline.ingest.stage import check_inputs

SIDE = 4  # pixels of the population along one of the grid


def overlaps(polygon: Any, side: float, shape: tuple[int, int]) -> np.ndarray:
    """Return the share of each pixel of ``side`` km in a polygon, by shapely."""
    row, col = np.mgrid[: shape[0], : shape[1]]
    left, top = 5e5 + 1000 * side * col, 8e6 - 1000 * side * row
    pixels = shapely.box(left, top - 1000 * side, left + 1000 * side, top)
    share: np.ndarray = shapely.area(shapely.intersection(pixels, polygon)) / (1000 * side) ** 2
    return share


def coarse(files: Any) -> Any:
    """Make the grid four times as coarse; the first area's people live along its border."""
    files.population[:] = 10.0
    files.population[2:10, 9] = 3000.0
    files.raster("population.tif", files.population)
    files.raster(
        "coarse.tif", np.zeros((8, 9)), transform=files.transform @ Affine.scale(SIDE, SIDE)
    )
    files.options["grid"] = {"like": "coarse.tif"}
    return files


@pytest.mark.parametrize("density", [False, True])
def test_people_by_the_raster_are_those_of_its_pixels(
    files: Any, density: bool, monkeypatch: Any
) -> None:
    monkeypatch.setattr("geo.sources.zonal.N_PIX", 30)  # an area is read in parts
    shapes = gpd.GeoSeries(files.polygons, crs=files.crs)
    found = exact_people(RasterSource(files.directory / "population.tif"), shapes, density=density)
    shares = [overlaps(polygon, 1, files.shape) for polygon in files.polygons]
    wanted = [(share * files.population).sum() for share in shares]
    # A pixel has one square kilometre of the plane, and a little more or less of the ellipsoid.
    np.testing.assert_allclose(found, wanted, rtol=2e-3 if density else 1e-6)


def test_a_coarse_grid_is_told_with_what_it_moves(files: Any) -> None:
    checked = check_inputs(coarse(files).config())
    assert checked.problems == []
    assert checked.examined is not None
    (told,) = checked.examined.suspicions
    assert told.code == "resolution"
    assert told.place.startswith("population (")
    padded = np.zeros((8 * SIDE, 9 * SIDE))
    padded[: files.shape[0], : files.shape[1]] = files.population
    summed = padded.reshape(8, SIDE, 9, SIDE).sum(axis=(1, 3))
    moved = {}
    for name, polygon in zip(files.ids, files.polygons, strict=True):
        exact = (overlaps(polygon, 1, files.shape) * files.population).sum()
        moved[name] = round(100 * ((overlaps(polygon, SIDE, (8, 9)) * summed).sum() / exact - 1))
    said = {name: int(share) for name, share in re.findall(r"(M\d\d) ([+-]\d+) %", told.found)}
    assert said
    assert said == {name: moved[name] for name in said}
    assert all(abs(share) <= 10 for name, share in moved.items() if name not in said)


def test_accepted_it_is_silent_and_the_own_grid_raises_none(files: Any) -> None:
    coarse(files)
    files.options["check"] = {"accept": ["resolution"]}
    examined = check_inputs(files.config()).examined
    assert examined is not None
    assert examined.suspicions == ()
    files.options = {}
    examined = check_inputs(files.config()).examined
    assert examined is not None
    assert "resolution" not in [each.code for each in examined.suspicions]


def test_large_windows_are_left_out(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coarse_grid, "N_WINDOW", 50)
    coarse(files)
    examined = check_inputs(files.config()).examined
    assert examined is not None
    assert examined.suspicions == ()
