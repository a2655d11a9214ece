"""Features without spread, and features of any size, change nothing of what is learnt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import models
from models.core.errors import BagsError
from models.mil.data.spread_columns import USED, classifier_scaling, scaled_columns
from models.training.executor import BagsSource

FIXED = {"calibrate": "none", "variance": 5.0, "lengthscale": 1.0}
MAKE = {
    "psi": lambda: models.PsiVGPMIL(n_inducing=15, start=0.5, **FIXED),
    "psi, default": lambda: models.PsiVGPMIL(n_inducing=10, max_epochs=5),
    "psi, float32": lambda: models.PsiVGPMIL(n_inducing=15, start=0.5, dtype="float32", **FIXED),
    "psi, svi": lambda: models.PsiVGPMILSVI(n_inducing=15, start=0.5, max_epochs=9, **FIXED),
    "vwsgp": lambda: models.VWSGP(n_inducing=15, aggregate="sum", **FIXED),
    "vwsgp, linear": lambda: models.VWSGP(
        n_inducing=15, aggregate="sum", kernel="linear + rbf", **FIXED
    ),
    "gpmil": lambda: models.GPMIL(calibrate="none", max_epochs=1),
    "gpmil-s": lambda: models.GPMILS(n_inducing=15, max_epochs=9, calibrate="none"),
    "gpmil-s, range": lambda: models.GPMILS(
        n_inducing=15, max_epochs=9, scaling="range", kernel="ard", calibrate="none"
    ),
    "pooled": lambda: models.PooledGP(n_inducing=15, n_starts=1, max_epochs=5),
    "pooled, deviation": lambda: models.PooledGP(
        n_inducing=15, n_starts=2, max_epochs=5, scaling="deviation", kernel="ard"
    ),
}
CONSTANTS = [0.1, 7.0, 0.0, 1e6 / 3.0]  # the mean of many 0.1 is not 0.1


def with_constants(x, off=0.0):
    """Return the features between constants: two before, two after."""
    more = np.tile(np.array(CONSTANTS) + off, (x.shape[0], 1))
    return np.concatenate([more[:, :2], x, more[:, 2:]], axis=1)


@pytest.fixture(scope="module")
def given():
    rng = np.random.default_rng(0)
    bag = np.repeat(np.arange(30), rng.integers(1, 6, 30))
    x = rng.normal(size=(bag.size, 3)) * [1.0, 20.0, 0.1] + [0.0, 5.0, 1.0]
    y = np.zeros(30, int)
    np.maximum.at(y, bag, (x[:, 0] > 1.0).astype(int))
    return x, y, bag


@pytest.fixture(scope="module", params=MAKE)
def make(request):
    return MAKE[request.param]


def proba(model, x, bag):
    return model.predict_proba(x, bag)[:, 1]


def test_features_without_spread_change_nothing(make, given, tmp_path):
    x, y, bag = given
    plain = proba(make().fit(x, y, bags=bag), x, bag)
    assert np.ptp(plain) > 0.1
    names = [f"f{k}" for k in range(7)]
    model = make().fit(pd.DataFrame(with_constants(x), columns=names), y, bags=bag)
    model.save(tmp_path / "m")
    for each in (model, models.load(tmp_path / "m")):
        assert each.n_features_in_ == 7
        assert each.feature_names_in_.tolist() == names
        for off in (0.0, 3.0):  # a value that no training instance has says nothing either
            table = pd.DataFrame(with_constants(x, off), columns=names)
            np.testing.assert_allclose(proba(each, table, bag), plain, atol=1e-6)
            one = each.predict_instance_proba(table.iloc[:4])
            # BLAS may sum the products of four rows in another order than those of many.
            all_rows = each.predict_instance_proba(table)
            np.testing.assert_allclose(one, all_rows[:4], rtol=2e-6)
    with pytest.raises(BagsError, match="fitted with 7 covariates"):
        model.predict_pixels(x)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("unit", [1e200, 1e-160, 1e-300])
def test_size_of_the_features_changes_nothing(make, given, unit):
    """Squares of such numbers are infinite, or 0."""
    x, y, bag = given
    plain = proba(make().fit(x, y, bags=bag), x, bag)
    found = proba(make().fit(x * unit, y, bags=bag), x * unit, bag)
    np.testing.assert_allclose(found, plain, atol=1e-4)


def test_columns_of_parameters_have_their_numbers_among_all(given):
    x, y, bag = given
    model = models.GPMILS(n_inducing=10, max_epochs=2, kernel="ard", calibrate="none")
    named = model.fit(with_constants(x), y, bags=bag).named_hyperparameters()
    scales = [name for name in named if "lengthscale" in name]
    assert scales == [f"ard_x.lengthscale[{k}]" for k in (2, 3, 4)]


def test_positions_stand_beside_the_features_with_spread(given):
    x, y, bag = given
    at = np.random.default_rng(1).normal(size=(bag.size, 2)) * 10.0
    how = {"n_inducing": 15, "start": 0.5, "kernel": "ard + matern32(space)", **FIXED}
    one = models.PsiVGPMIL(**how).fit(x, y, bags=bag, coords=at)
    other = models.PsiVGPMIL(**how).fit(with_constants(x), y, bags=bag, coords=at)
    np.testing.assert_allclose(
        other.predict_proba(with_constants(x, 2.0), bag, coords=at),
        one.predict_proba(x, bag, coords=at),
        atol=1e-8,
    )
    # With no other feature the columns stay: the kernel needs some.
    none = models.PsiVGPMIL(**how).fit(np.ones((bag.size, 2)), y, bags=bag, coords=at)
    assert np.isfinite(none.predict_proba(np.ones((bag.size, 2)), bag, coords=at)).all()


def test_models_saved_before_have_all_columns(given):
    x, y, bag = given
    model = models.VWSGP(n_inducing=15, aggregate="sum", **FIXED).fit(x, y, bags=bag)
    assert USED not in model.state_.fixed  # nothing to leave out: as it was
    wide = with_constants(x)
    scaling = {name: np.zeros(7) + value for name, value in (("x_mean", 0.0), ("x_sd", 1.0))}
    np.testing.assert_array_equal(scaled_columns(scaling, wide, None, np.float64), wide)


def test_rare_feature_that_the_sample_misses_stays(given):
    x, y, bag = given
    offsets = np.append(0, np.cumsum(np.bincount(bag)))
    bags = models.Bags(np.column_stack([x, np.eye(bag.size)[0]]), offsets, y)
    whole = BagsSource(bags, 0).summary(np.random.default_rng(0))
    part = replace(whole, x=whole.x[1:])
    assert np.ptp(part.x[:, 3]) == 0.0
    assert USED not in classifier_scaling(part)
