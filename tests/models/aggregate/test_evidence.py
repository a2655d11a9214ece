"""The bound's optimum over q against the evidence of the dense Gaussian process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from models import VBAgg
from models.aggregate import moment_matching
from models.training.executor import BagsSource
from tests.models.aggregate.country import Dense, country, matern32, profile_of
from tests.plain import plain

KERNEL = "ridge + matern32(space)"
# Variance of the slope and of the field, its range in pixels of a grid of 24: areas are 6 wide.
CASES = {
    "as drawn": (0.1, 0.25, 5.0),
    "short": (0.1, 0.25, 1.5),
    "large": (0.5, 1.0, 8.0),
}


@pytest.fixture(scope="module")
def setting():
    bags = country()
    model = plain(VBAgg, kernel=KERNEL, link="exp", pair_pixels=10**6, integrate="none")
    source, rng = BagsSource(bags, 0), np.random.default_rng(0)
    state = model.init(source.summary(rng), rng)
    profile = profile_of(model, bags)
    return bags, state, profile


def _at(setting, case):
    bags, state, profile = setting
    slope, variance, range_ = {**CASES, "short and large": (0.1, 1.0, 1.5)}[case]
    fixed = state.fixed
    scale, base = float(fixed["coord_scale"][0]), float(fixed["base_rate"][0])
    z = (bags.x - fixed["x_mean"]) / fixed["x_sd"]
    prior = variance * matern32(cdist(bags.coords, bags.coords), range_) + slope * z @ z.T
    dense = Dense(bags.y, bags.weight * base, bags.offsets, prior)
    phi = np.array([0.0, np.log(slope), np.log(variance), np.log(range_ / scale)])
    return dense, profile.at(profile.unpack(state, phi), 1e-5)


@pytest.mark.parametrize("case", CASES)
def test_the_best_bound_is_the_evidence_of_the_dense_process(setting, case):
    dense, point = _at(setting, case)
    evidence, error, _, _ = dense.evidence(4000, np.random.default_rng(1))
    assert error < 0.07
    assert point.value == pytest.approx(evidence, abs=0.05 + 4 * error)
    # Laplace's own error grows with what areas do not tell: 0.7 nats at the short range.
    assert point.value == pytest.approx(dense.laplace()[0], abs=1.0 if case == "short" else 0.1)


def test_without_what_is_integrated_out_short_ranges_lose_nats(setting, monkeypatch):
    """Why the bound has it: the loss would count as evidence against short ranges."""
    case, least = "short and large", 10.0
    dense, point = _at(setting, case)

    def all_lost(seen, c, v, linear):
        plain = moment_matching.log_normal(seen, c, v)
        return replace(plain, by_linear=np.zeros_like(linear))

    monkeypatch.setattr(moment_matching, "marginal", all_lost)
    lost = _at(setting, case)[1]
    assert lost.value < dense.laplace()[0] - least
    assert lost.value < point.value - least


def test_the_posterior_of_f_is_that_of_the_dense_process(setting):
    bags, _, profile = setting
    dense, point = _at(setting, "as drawn")
    _, error, mean, sd = dense.evidence(8000, np.random.default_rng(2))
    model = profile._model
    found = model.predict_block(model.block_params(point.state), bags.x, bags.coords)
    # Of 8000 draws, so many count as independent: their noise is 2 % of a deviation.
    assert 8000 / (1.0 + 8000 * error**2) > 2000
    # Averages stand for the field: single pixels are off, the map is not.
    off, ratio = (found.m - mean) / sd, np.sqrt(found.s) / sd
    assert np.sqrt((off**2).mean()) < 0.15
    assert np.abs(off).max() < 0.4
    assert ratio.mean() == pytest.approx(1.0, abs=0.05)
    assert np.abs(ratio - 1.0).max() < 0.2
