"""People that a coarse grid moves across borders are told, as the raster itself has them."""

from __future__ import annotations

import re
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
from affine import Affine

from geo.sources.raster import RasterSource
from geo.sources.zonal import exact_people
from pipeline.ingest import coarse_grid
from pipeline.ingest.stage import check_inputs
from tests.pipeline.ingest.conftest import overlaps, shares

SIDE = 4  # pixels of the population along one of the grid


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
    quarters = np.repeat(np.repeat(files.population, 2, axis=0), 2, axis=1)
    files.raster("fine.tif", quarters, transform=files.transform @ Affine.scale(0.5))
    found = exact_people(RasterSource(files.directory / "fine.tif"), shapes, density=density)
    wanted = (shares(files) * files.population).sum(axis=(1, 2))
    # Four pixels have one square kilometre of the plane, a little more or less of the ellipsoid.
    expected = wanted if density else 4 * wanted
    np.testing.assert_allclose(found, expected, rtol=2e-3 if density else 1e-6)


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
        exact = (overlaps(polygon, files.shape) * files.population).sum()
        moved[name] = round(100 * ((overlaps(polygon, (8, 9), SIDE) * summed).sum() / exact - 1))
    said = {name: int(share) for name, share in re.findall(r"(M\d\d) ([+-]\d+) %", told.found)}
    assert said
    assert said == {name: moved[name] for name in said}
    assert all(abs(share) <= 10 for name, share in moved.items() if name not in said)


def test_large_windows_are_left_out_and_accepted_or_not_coarse_it_is_silent(
    files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> list[str]:
        examined = check_inputs(files.config()).examined
        assert examined is not None
        return [each.code for each in examined.suspicions]

    coarse(files)
    with monkeypatch.context() as patch:
        patch.setattr(coarse_grid, "N_WINDOW", 50)
        assert told() == []
    files.options["check"] = {"accept": ["resolution"]}
    assert told() == []
    files.options = {}
    assert "resolution" not in told()
