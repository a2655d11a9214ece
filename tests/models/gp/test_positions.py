"""Coordinates of three axes: a third that is flat changes nothing; other widths are refused."""

import numpy as np
import pytest

from models import Bags, VBAgg
from models.core.errors import BagsError
from models.core.protocol import Summary
from models.gp.priors import log_prior
from models.gp.scaling import kernel_of, scaled_inputs, scaling_of
from tests.plain import plain


def test_a_flat_third_axis_changes_nothing():
    rng = np.random.default_rng(0)
    x, plane = rng.normal(size=(50, 2)), 100 * rng.normal(size=(50, 2))
    found = []
    for coords in (plane, np.column_stack([plane, np.full(50, -3.0)])):
        sample = Summary(x, coords, x.mean(0), x.std(0), np.ones(3), np.ones(3), 50)
        fixed = scaling_of(sample, 1.0)
        z = scaled_inputs(fixed, x, coords, np.float64)
        radial = kernel_of("additive", fixed)
        theta = radial.start(1.3)
        value, slope = log_prior(radial, theta, "exp")
        found.append([fixed["coord_scale"], radial.matrix(theta, z, z), value, slope])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_positions_with_other_axes_are_refused():
    rng = np.random.default_rng(1)
    x, coords = rng.normal(size=(40, 2)), 50 * rng.normal(size=(40, 2))
    bags = Bags(x, [0, 10, 20, 30, 40], [3.0, 1.0, 4.0, 2.0], coords=coords)
    model = plain(VBAgg, n_inducing=4, kernel="additive", max_epochs=1).fit(bags, n_thread=1)
    with pytest.raises(BagsError, match="fitted with 2 columns"):
        model.predict_pixels(x, np.column_stack([coords, np.zeros(40)]))
