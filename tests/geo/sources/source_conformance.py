"""What every source does; a test of one makes it and says what it holds."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from geo.core.errors import InputError
from geo.grids.grid import Tile


class SourceConformance:
    """The fixture ``made`` gives a source and the values of each of its times ("" for none).

    At least one pixel is missing, and each array is of 3 x 4 pixels or more.
    """

    def test_the_description_agrees_with_what_is_read(self, made):
        source, expected = made
        about = source.describe()
        assert about == source.describe()
        assert list(about.times) == [time for time in expected if time]
        assert len(about.bands) == len(expected)
        for time, values in expected.items():
            found = source.read(time=time or None)
            assert found.shape == about.shape == values.shape
            assert found.dtype == np.float64
            np.testing.assert_array_equal(found, values)
            assert np.isnan(found).any()
            assert not np.isinf(found).any()
        if about.grid is not None:
            assert (source.grid, source.north_up) == (about.grid, True)
            assert about.grid.shape == about.shape
        assert (source.crs, source.transform, source.shape) == (
            about.crs, about.transform, about.shape,
        )  # fmt: skip

    def test_a_window_is_the_slice_of_the_whole(self, made):
        source, expected = made
        n_row, n_col = source.shape
        for time, values in expected.items():
            for tile in (Tile(1, 2, n_row - 1, n_col - 2), Tile(0, 0, 1, 1), Tile(2, 1, 1, 3)):
                found = source.read(tile, time or None)
                np.testing.assert_array_equal(found, values[tile.slices])

    def test_values_that_are_missing_are_not_stored_as_such(self, made):
        source, expected = made
        about, values = source.describe(), next(iter(expected.values()))
        again = about.values(about.stored(values[~np.isnan(values)]).astype(about.dtype))
        np.testing.assert_allclose(again, values[~np.isnan(values)])
        for nodata in about.nodata:
            assert np.isnan(about.values(np.array([nodata], about.dtype))).all()

    def test_a_time_is_asked_for_where_there_are_several(self, made):
        source, expected = made
        if len(expected) == 1:
            np.testing.assert_array_equal(source.read(), *expected.values())
        else:
            first, second, *_ = expected
            asked = rf"has {len(expected)} times \({first}, {second}.*`time: {first}`"
            with pytest.raises(InputError, match=asked):
                source.read()
        with pytest.raises(InputError, match="has no time '1066-10-14'"):
            source.read(time="1066-10-14")

    def test_it_reads_on_after_it_is_closed_or_sent(self, made):
        source, expected = made
        time, values = next(iter(expected.items()))
        source.close()
        np.testing.assert_array_equal(source.read(time=time or None), values)
        sent = pickle.loads(pickle.dumps(source))
        assert str(sent.describe()) == str(source.describe())  # NaN is not itself
        np.testing.assert_array_equal(sent.read(time=time or None), values)
        assert source.damage() == ""
        assert source.squeezed() is None or source.squeezed() > 0
