"""Numbers that JSON lacks."""

from __future__ import annotations

import numpy as np

from pipeline.core.json_values import jsonable


def test_json_gets_no_numbers_that_it_lacks() -> None:
    value = {"a": [np.float64("nan"), np.float32(1.5), (np.int64(3), float("inf"))], "b": "x"}
    assert jsonable(value) == {"a": [None, 1.5, [3, None]], "b": "x"}
