"""People between two years, against compound growth."""

from __future__ import annotations

import numpy as np
import pytest

from geo.core.errors import InputError
from geo.grids.grid import Grid
from geo.grids.owners import Owners
from geo.sources.area_source import AreaSource
from geo.sources.between import BetweenSource, between
from tests.geo.sources.source_conformance import SourceConformance

GRID = Grid.from_bounds("EPSG:32629", (0.0, 0.0, 7.0, 4.0), 1.0)


def source(values, grid=GRID):
    """Return a source whose pixels are areas of their own."""
    owners = Owners(np.arange(grid.n_pix), np.arange(grid.n_pix, dtype=np.int32))
    return AreaSource("people.csv", grid, owners, np.ravel(values), "people")


class TestBetween(SourceConformance):
    @pytest.fixture
    def made(self):
        rng = np.random.default_rng(1)
        a, b = rng.gamma(1.0, 50.0, (2, *GRID.shape))
        a[1, 2] = np.nan
        made = BetweenSource(source(a), source(b), 0.25)
        return made, {"": made.read()}


def test_a_pixel_grows_by_the_same_share_each_year() -> None:
    growth = np.array([1.0, 1.03, 0.8])
    start = np.array([120.0, 40.0, 9.0])
    for year in range(6):
        found = between(start, start * growth**5, year / 5)
        np.testing.assert_allclose(found, start * growth**year, rtol=1e-12)


def test_from_nobody_it_is_linear_and_what_is_missing_stays() -> None:
    found = between(np.array([0.0, 10.0, np.nan, 4.0]), np.array([10.0, 0.0, 1.0, np.nan]), 0.2)
    np.testing.assert_allclose(found, [2.0, 8.0, np.nan, np.nan])


def test_other_grids_are_refused() -> None:
    other = Grid.from_bounds("EPSG:32629", (0.5, 0.0, 7.5, 4.0), 1.0)
    with pytest.raises(InputError, match="has another grid than"):
        BetweenSource(source(np.ones(28)), source(np.ones(28), other), 0.5)
