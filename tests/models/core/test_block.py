"""Bags given by hand are checked; blocks are joined and taken apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models import Bags, Constant, Nystrom, VBAgg
from models.core.block import BagBlock, refuse_missing, refuse_weightless
from models.core.errors import BagsError
from tests.plain import plain


def parts(**changes: Any) -> dict[str, Any]:
    """Return the arrays of two good bags of 2 and 3 pixels, some of them changed."""
    good = {
        "x": np.arange(10.0).reshape(5, 2),
        "offsets": [0, 2, 5],
        "y": [1.0, 4.0],
        "weight": np.arange(1.0, 6.0),
        "coords": np.arange(10.0).reshape(5, 2),
        "trials": [2.0, 4.0],
    }
    return {**good, **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x": np.zeros(5)}, r"x has shape \(5,\)"),
        ({"y": [1.0]}, "offsets has shape"),
        ({"offsets": [0, 2, 4]}, "give 0 to n_pix = 5"),
        ({"offsets": [0, 0, 5]}, "bag 0 is empty"),
        ({"weight": np.ones(4)}, "weight has shape"),
        ({"coords": np.zeros((5, 4))}, "coords has shape"),
        ({"x": np.full((5, 2), np.nan)}, "x holds NaN or infinity, first in pixel 0"),
        ({"y": [1.0, np.inf]}, "y of bag 1 is not finite"),
        ({"weight": [1, 1, -1, 1, 1]}, "weight holds a negative"),
        ({"coords": np.full((5, 2), np.nan)}, "coords hold"),
        ({"trials": [2.0]}, "trials has shape"),
        ({"trials": [2.0, 3.0]}, "bag 1 has 4 positives of 3 tested"),
    ],
)
def test_what_is_wrong_with_bags_is_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BagsError, match=says):
        Bags(**parts(**changes))


def test_missing_covariates_are_a_choice() -> None:
    x = np.arange(10.0).reshape(5, 2)
    x[3, 1] = np.nan
    bags = Bags(**parts(x=x), allow_missing=True)
    with pytest.raises(BagsError, match="first in pixel 3"):
        refuse_missing(bags)
    refuse_missing(Bags(**parts()))
    with pytest.raises(BagsError, match="x holds infinity"):
        Bags(**parts(x=np.full((5, 2), np.inf)), allow_missing=True)


def test_bags_without_exposure_are_refused_by_a_fit_in_one_line() -> None:
    weightless = Bags(**parts(weight=[1, 1, 0, 0, 0], y=[1.0, 0.0], trials=None))
    says = "weight is 0 in all pixels of bag 1; drop bags without exposure from the fit"
    for model in (plain(VBAgg, kernel="ard"), plain(Nystrom), plain(Constant)):
        with pytest.raises(BagsError, match=says):
            model.fit(weightless)
    with pytest.raises(BagsError, match="of bag 0 and 2 more;"):
        refuse_weightless(np.array([0.0, 0.0, 1.0, 0.0]))
    refuse_weightless(np.array([0.5, 1.0]))


def test_joining_what_was_taken_apart_gives_the_same_bags() -> None:
    bags = Bags(**parts())
    apart = [bags.select(np.array(keep)) for keep in ([True, False], [False, True])]
    joined = BagBlock.join(apart)
    for name in ("x", "weight", "coords", "offsets", "y", "bag", "trials"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(bags, name))
