"""The draws that predict leaves for evaluate are those that evaluate would draw."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np

from pipeline.config.context import StageContext
from pipeline.evaluation.posterior import draw_posterior
from pipeline.prediction.stage import predict_stage
from pipeline.products.area_draws import AREA_DRAWS, read_area_draws
from pipeline.store.bag_store import BagStore


def test_they_are_those_of_the_posterior_and_of_this_map_alone(world: Any, tmp_path: Any) -> None:
    shutil.copytree(world.directory / "out", tmp_path / "out")
    config = world.with_config(output={"dir": str(tmp_path / "out"), "draws": 40})
    predict_stage(StageContext(config))
    out, seed = tmp_path / "out", config.fit.seed
    store = BagStore.open(out / "work/bags.zarr").training
    found = read_area_draws(out, store, seed, 40)
    assert found is not None
    wanted = draw_posterior(world.model, store, 40, seed)
    np.testing.assert_array_equal(found, wanted.areas.expected)
    again = draw_posterior(world.model, store, 40, seed, expected=found)
    for name in ("expected", "counts", "log_lik", "log_density"):
        one, other = getattr(again.areas, name), getattr(wanted.areas, name)
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert read_area_draws(out, store, seed + 1, 40) is None
    assert read_area_draws(out, store, seed, 41) is None
    (out / AREA_DRAWS).write_bytes((out / AREA_DRAWS).read_bytes()[:1000])
    assert read_area_draws(out, store, seed, 40) is None
