"""A class in Python and a configuration start from the same settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models import Bags
from models.gp.kernel_text import SPACELESS
from pipeline.config.catalogue import catalogue, model_class
from pipeline.config.model_factory import new_model
from pipeline.config.schema import Config

# The model of several periods is fitted to a series: tests/pipeline/run/test_series.py.
SERIES = "space_time"
COUNTS = [each.kind for each in catalogue() if each.learns_from == "counts" and each.kind != SERIES]


def configured(kind: str) -> Any:
    return new_model(
        Config.model_validate(
            {
                "name": "x",
                "areas": {"path": "a.gpkg", "id": "i"},
                "counts": {"path": "c.csv", "id": "i", "value": "v"},
                "population": {"path": "p.tif"},
                "covariates": {"a": {"path": "a.tif"}},
                "model": {"kind": kind},
            }
        )
    )


def some_bags(*, placed: bool) -> Bags:
    rng = np.random.default_rng(4)
    x, coords = rng.normal(size=(60, 2)), rng.uniform(0, 80, (60, 2))
    y = rng.poisson(20 * np.exp(x[:, 0].reshape(12, 5).mean(axis=1))).astype(float)
    return Bags(x, np.arange(0, 61, 5), y, np.ones(60), coords if placed else None)


@pytest.mark.parametrize("kind", COUNTS)
def test_settings_and_fits_are_the_same(kind):
    assert configured(kind).get_params() == model_class(kind)().get_params()
    bags = some_bags(placed=True)
    few = {"max_epochs": 2}
    one = configured(kind).set_params(**few).fit(bags, n_thread=1)
    other = model_class(kind)(**few).fit(bags, n_thread=1)
    assert set(one.state_.params) == set(other.state_.params)
    for name, value in one.state_.params.items():
        np.testing.assert_array_equal(value, other.state_.params[name])
    assert "log_area_sd" in other.state_.params  # real counts differ by more than Poisson's law


@pytest.mark.parametrize("kind", ["vbagg", "bag_pixel", "nystrom"])
def test_the_kernel_is_found_at_the_fit(kind):
    model = model_class(kind)(max_epochs=2)
    named = "smooth_joint" if kind == "vbagg" else "additive"
    for placed, text in ((True, named), (False, SPACELESS[named])):
        model.fit(some_bags(placed=placed), n_thread=1)
        assert model.kernel == "auto"
        explicit = model_class(kind)(max_epochs=2, kernel=text)
        explicit.fit(some_bags(placed=placed), n_thread=1)
        np.testing.assert_array_equal(model.state_.params["theta"], explicit.state_.params["theta"])
        assert ("space" in " ".join(model.named_hyperparameters())) is placed
