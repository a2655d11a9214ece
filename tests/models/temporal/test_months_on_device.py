"""Blocks of a period on a device, or on a strict stand-in of one."""

from __future__ import annotations

import numpy as np
import pytest

from models import PeriodSource
from models.backend.arrays import count_devices
from models.training.device import block_executor, find_device
from models.training.executor import ThreadExecutor
from tests.models.backend import strict_cupy
from tests.models.temporal.world import Held, model_of, months

ON = ["strict", *([pytest.param("real", marks=pytest.mark.gpu)] if count_devices() else [])]


@pytest.mark.parametrize("on", ON)
def test_sums_of_a_period_are_the_hosts(on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(model_of(n_inducing=8), months(2))
    state = held.profile.at(held.start, 1.0, slopes=False).state
    basis, now = held.profile.smoothed(state)
    params = {**held.model.shared_params(state), **basis.block_arrays(now.mean[1], now.cov[1])}
    params["slopes"] = np.array([True])
    source = PeriodSource(months(2), block_pixels=32)
    numbers = np.flatnonzero(source.block_period == 1).tolist()
    with ThreadExecutor(held.model, source, 1) as executor:  # type: ignore[arg-type]
        here = executor.sum(params, numbers)
    if on == "strict":
        strict_cupy.install(monkeypatch)
    with block_executor(held.model, source, 1, find_device("gpu")) as executor:  # type: ignore[arg-type]
        there = executor.sum(params, numbers)
    assert there.bound == pytest.approx(here.bound, rel=1e-11)
    for name, value in here.sums.items():
        most = float(np.abs(value).max())
        np.testing.assert_allclose(there.sums[name], value, atol=1e-9 * most, err_msg=name)
