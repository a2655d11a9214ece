"""Where displaced points may be, against draws of the displacement and plane geometry."""

from __future__ import annotations

import numpy as np
import pytest
from affine import Affine
from pyproj import Transformer

from geo.grids.displacement import RURAL, candidates, catchments
from geo.grids.grid import Grid

GRID = Grid("EPSG:32738", Affine(500, 0, 5e5, 0, -500, 8e6), (60, 70))
CENTRE = np.array([5e5 + 35.5 * 500, 8e6 - 30.2 * 500])
LON, LAT = Transformer.from_crs(GRID.crs, "EPSG:4326", always_xy=True).transform(*CENTRE)
HERE = np.array([LON]), np.array([LAT])


def _distance(pixel):
    row, col = GRID.row_col(pixel)
    return np.hypot(5e5 + (col + 0.5) * 500 - CENTRE[0], 8e6 - (row + 0.5) * 500 - CENTRE[1]) / 1e3


def test_masses_are_those_of_drawn_displacements():
    found = candidates(GRID, *HERE, [((4.0, 1.0),)])
    rng = np.random.default_rng(0)
    angle, distance = rng.uniform(0, 2 * np.pi, 200_000), rng.uniform(0, 4000.0, 200_000)
    x, y = CENTRE[0] + distance * np.sin(angle), CENTRE[1] + distance * np.cos(angle)
    col, row = np.floor((x - 5e5) / 500).astype(int), np.floor((8e6 - y) / 500).astype(int)
    drawn = np.bincount(row * 70 + col, minlength=GRID.n_pix) / distance.size
    mass = np.zeros(GRID.n_pix)
    mass[found.pixel] = found.mass
    assert mass.sum() == pytest.approx(1.0)
    near = _distance(np.arange(GRID.n_pix)) < 2.0
    assert mass[near].sum() == pytest.approx(drawn[near].sum(), abs=0.02)
    assert np.abs(mass - drawn).sum() < 0.2  # pixels of few of the 720 nodes
    assert (np.diff(found.pixel) > 0).all()


@pytest.mark.parametrize(
    ("law", "beyond", "expected"), [(((0.0, 1.0),), 0.36, 0.0), (RURAL, 5.4, 0.005)]
)
def test_few_points_are_far_and_none_without_a_radius(law, beyond, expected):
    found = candidates(GRID, *HERE, [law])
    far = _distance(found.pixel) > beyond
    assert found.mass[far].sum() == pytest.approx(expected, abs=0.002)


def test_a_catchment_has_the_surface_of_its_circle_and_the_grid_has_an_edge():
    found = catchments(GRID, *HERE, 6.0)
    assert 0.25 * found.mass.sum() == pytest.approx(np.pi * 36.0, rel=0.02)
    assert (_distance(found.pixel) < 6.4).all()
    corner = Transformer.from_crs(GRID.crs, "EPSG:4326", always_xy=True).transform(5e5, 8e6)
    cut = candidates(GRID, *(np.array([each]) for each in corner), [((2.0, 1.0),)])
    assert cut.mass.sum() == pytest.approx(0.25, abs=0.01)
