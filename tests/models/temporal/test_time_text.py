"""Descriptions of kernels of space and time, and how they are refused."""

from __future__ import annotations

import pytest

from models.core.errors import ParameterError
from models.gp.kernel_text import NAMED, parse_kernel
from models.temporal.markov import Constant, Matern12, Season, TimeSum
from models.temporal.time_text import STILL, auto_text, check_space_time, parse_space_time


def test_terms_in_one_pair_of_brackets_share_their_time() -> None:
    text = "ridge(x) + (linear + rbf(x)) * time(constant + matern12) + area * time(matern12)"
    found = parse_space_time(text)
    assert found.terms == ("ridge(x)", "linear", "rbf(x)", "area")
    assert found.time_of == (STILL, 0, 0, 1)
    first, second = found.times
    assert isinstance(first, TimeSum)
    assert [type(part) for part in first.parts] == [Constant, Matern12]
    assert isinstance(second, Matern12)
    assert found.has_area
    assert found.time_names == (
        "time[0].share[1]",
        "time[0].matern12.scale",
        "time[1].matern12.scale",
    )


def test_a_season_is_short_and_a_time_alone_is_a_level() -> None:
    found = parse_space_time("matern32(space) * season + time(matern12)", season=52.0, harmonics=3)
    assert found.terms == ("matern32(space)", "constant")
    assert found.times[0] == Season(52.0, 3)
    product = parse_space_time("matern32(space) * rbf(x) * season")
    assert product.terms == ("matern32(space) * rbf(x)",)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("linear * season * time(matern12)", "'time(matern12)' is the second time of a term"),
        ("(linear * season) * matern32(space)", "'season' is inside a product"),
        ("area * linear * season", "'area' is beside another kernel"),
        ("linear * time(rbf)", "'rbf' is no kernel in time"),
        ("linear * time", "'time' has 0 parts"),
        ("linear * time(constant, matern12)", "'time' has 2 parts"),
        ("nonsense * season", "'nonsense' is not known"),
    ],
)
def test_what_means_nothing_is_refused_with_its_column(text: str, found: str) -> None:
    with pytest.raises(ParameterError, match="at column") as error:
        check_space_time(text)
    assert found in str(error.value)


def test_area_is_no_kernel_of_one_period() -> None:
    with pytest.raises(ParameterError, match="several periods"):
        parse_kernel("linear + area", 2, has_coords=True)
    kernel = parse_kernel("linear + area", 2, has_coords=True, n_area=5)
    assert kernel.names[-1] == "area.variance"


def test_auto_has_of_covariates_what_one_period_has() -> None:
    for n_feat, begins in (
        (0, "matern32(space) + "),
        (1, "ridge(x) + smooth(x) + matern32(space) + "),
        (2, f"{NAMED['smooth_joint']} + "),
    ):
        text = auto_text(n_feat, placed=True, season=True)
        assert text.startswith(begins)
        assert text.endswith("season")
    assert "season" not in auto_text(2, placed=False, season=False)
