"""The parts of the peers' benchmark that are ours: the loss, the scores, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, stats
from scipy.special import gammaln

from benchmarks import peer_answers, peer_kriging, peer_maps, peer_svgp, peers
from benchmarks.grids import Design, simulate

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def grid():
    return simulate(Design("linear", 14, cases=60.0, area_sd=0.2, n_side=14), 1)


@pytest.mark.parametrize(
    ("y", "mean", "sd"), [(0.0, 3.0, 1.0), (40.0, 55.0, 20.0), (300.0, 250.0, 9.0)]
)
def test_the_loss_of_an_area_is_the_integral(y, mean, sd):
    size = 15.0
    spread = np.sqrt(np.log(1.0 + (sd / mean) ** 2))
    law = stats.norm(np.log(mean) - spread**2 / 2, spread)

    def integrand(log_s):
        p = size / (size + np.exp(log_s))
        return law.pdf(log_s) * stats.nbinom.logpmf(y, size, p)

    ends = law.mean() - 9 * spread, law.mean() + 9 * spread
    exact = integrate.quad(integrand, *ends, epsabs=1e-11, epsrel=1e-11, limit=200)[0]
    found = peer_svgp.expected_log_density(np.array([y]), np.array([mean]), np.array([sd**2]), size)
    np.testing.assert_allclose(found, exact, rtol=1e-7)


def test_the_loss_is_the_same_in_pytorch_and_has_a_gradient():
    torch = pytest.importorskip("torch")
    ops = SimpleNamespace(exp=torch.exp, log=torch.log, sqrt=torch.sqrt, lgamma=torch.lgamma)
    y, mean, variance = (np.array(v) for v in ([3.0, 80.0], [5.0, 70.0], [2.0, 900.0]))
    numpy = peer_svgp.expected_log_density(y, mean, variance, np.float64(12.0))
    at = [torch.tensor(v, dtype=torch.float64) for v in (y, mean, variance)]
    size = torch.tensor(12.0, dtype=torch.float64, requires_grad=True)
    told = peer_svgp.expected_log_density(*at, size, ops)
    np.testing.assert_allclose(told.detach().numpy(), numpy, rtol=1e-12)
    told.sum().backward()
    step = 1e-5
    ends = [
        peer_svgp.expected_log_density(y, mean, variance, 12.0 + h).sum() for h in (step, -step)
    ]
    assert float(size.grad) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_rows_of_areas_have_each_pixel_once():
    place, mask = peer_svgp.padded(np.array([0, 2, 5, 6]))
    assert place.shape == (3, 3)
    assert place[mask > 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert (place[mask == 0] == [0, 5, 5]).all()


def test_density_and_distribution_of_a_map_agree(grid):
    n = grid.rate.size
    mixture = peer_answers.log_normal(
        np.log(grid.rate) + RNG.normal(0, 0.2, (3, n)),
        RNG.uniform(0.1, 0.5, (3, n)),
        [0.2, 0.5, 0.3],
    )
    plain = peer_answers.normal(grid.rate * 1.1, 0.3 * grid.rate)
    for answer in (mixture, plain):
        h = 1e-5
        ends = [peer_answers.distribution(answer, grid.rate * np.exp(s)) for s in (h, -h)]
        density = peer_answers.log_density(answer, grid.rate)
        np.testing.assert_allclose(np.exp(density), (ends[0] - ends[1]) / (2 * h), rtol=1e-5)
        drawn = peer_answers.sample(answer, 4000, np.random.default_rng(1))
        np.testing.assert_allclose(drawn.mean(axis=0), answer.mean, rtol=0.1)


def test_scores_know_the_truth_and_refuse_other_units(grid):
    rng = np.random.default_rng(0)
    truth = peer_answers.Answer(grid.rate)
    found = peer_answers.scores(truth, grid, rng)
    assert found["correlation"] == pytest.approx(1)
    assert found["rmse"] == found["rmse_cases"] == found["crps"] == 0
    assert found["coverage"] is found["log_density"] is None
    sure = peer_answers.log_normal(np.log(grid.rate), np.full(grid.rate.size, 0.1))
    assert peer_answers.scores(sure, grid, rng)["coverage"] == 1
    assert peer_answers.scores(peer_maps.one_rate(grid), grid, rng)["correlation"] is None
    with pytest.raises(SystemExit, match="not the same inputs"):
        peer_answers.scores(replace(truth, mean=1000 * grid.rate), grid, rng)


def test_what_conserves_must_give_the_counts_back(grid):
    cases = grid.people * peer_maps.own_rate(grid).mean
    peer_maps.conserved("own", cases, grid)
    cases[0] *= 1.01
    with pytest.raises(SystemExit, match="own: cases of areas differ"):
        peer_maps.conserved("own", cases, grid)


def test_contestants_without_further_libraries_map_a_grid(grid):
    rng = np.random.default_rng(0)
    for name in ("own_rate", "poisson_regression", "random_forest"):
        found = peer_answers.scores(getattr(peer_maps, name)(grid), grid, rng)
        assert found["correlation"] > 0.2, name


def test_means_of_areas_are_by_people(grid):
    means, pixels, target, people = peer_maps.features(grid)
    own = slice(grid.offsets[3], grid.offsets[4])
    np.testing.assert_allclose(means[3], np.average(pixels[own], axis=0, weights=grid.people[own]))
    assert people @ target == pytest.approx(people.sum())


def test_geometries_and_mask_are_where_the_pixels_are(grid, tmp_path):
    import rasterio

    areas, pixels = peer_maps.frames(grid)
    np.testing.assert_allclose(areas.area, np.diff(grid.offsets) * peer_maps.METRES**2)
    centre = pixels.centroid
    place = peer_maps.place_of(grid, centre.x.to_numpy(), centre.y.to_numpy())
    assert (place == np.arange(place.size)).all()
    peer_maps.write_mask(grid, tmp_path / "mask.tif")
    with rasterio.open(tmp_path / "mask.tif") as file:
        points = zip(centre.x, centre.y, strict=True)
        held = np.array([value[0] for value in file.sample(points)], bool)
    area = peer_maps.area_of(grid)
    share = np.bincount(area, grid.people * held) / np.bincount(area, grid.people)
    assert (share >= peer_maps.INHABITED).all()
    assert not held.all()


def test_semivariances_are_read_in_the_order_of_the_points():
    # Two neighbours and three points, whose order is not that of their coordinates.
    points = np.array([[2.0, 0.0], [1.0, 5.0], [1.0, 3.0]])
    rows = pd.DataFrame(
        [(x, y, k) for k in (7, 9) for x, y in points], columns=["ux", "uy", "known"]
    )
    rows["value"] = 100 * rows["known"] + 10 * rows["ux"] + rows["uy"]
    data = SimpleNamespace(
        kriging_input=rows, ng_ux_col="ux", ng_uy_col="uy", unknown_n=3,
        point_to_block_ps_semivariance=lambda: rows.groupby(["ux", "uy", "known"])["value"].sum(),
    )  # fmt: skip
    wanted = [[100 * k + 10 * x + y for x, y in points] for k in (7, 9)]
    np.testing.assert_allclose(peer_kriging.semivariances(data), wanted)


def test_other_inputs_and_missing_libraries_are_refused(monkeypatch):
    record = {"design": "linear", "grid": 0, "contestant": "disagg", "inputs": "a"}
    peers.check_inputs([record, {**record, "grid": 1, "inputs": "b"}])
    with pytest.raises(SystemExit, match="areal had other inputs on linear 0"):
        peers.check_inputs([record, {**record, "contestant": "areal", "inputs": "b"}])
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"no module tobler: pip install 'disagg\[peers\]'"):
        peers.check_modules(["disagg", "areal"])


def test_a_case_is_a_pure_function_and_tells_its_inputs():
    first, second = (peers.measure("own_rate", "bent", 3) for _ in range(2))
    first.pop("seconds"), second.pop("seconds")
    assert first == second
    assert first["inputs"] != peers.measure("own_rate", "bent", 4)["inputs"]


def test_means_name_who_is_ahead(tmp_path):
    base = {key: 1.0 for key in peers.KEYS} | {"design": "bent", "grid": 0}
    records = [
        {**base, "contestant": "disagg", "correlation": 0.9, "crps": 0.2},
        {**base, "contestant": "gpflow", "correlation": 0.8, "crps": 0.1},
        {**base, "contestant": "areal", "correlation": 0.95, "crps": 0.3, "coverage": None},
    ]
    table = peers.means([*records, {**records[0], "grid": 1, "correlation": 0.7}])
    assert table["bent"]["disagg"]["correlation"] == pytest.approx(0.8)
    assert table["bent"]["areal"]["coverage"] is None
    assert peers.ahead(table["bent"], "correlation") == ["areal"]
    assert peers.ahead(table["bent"], "crps") == ["gpflow"]
    assert peers.ahead(table["bent"], "coverage") == []
    near = {"disagg": {"coverage": 0.97}, "gpflow": {"coverage": 0.89}, "areal": {"coverage": None}}
    assert peers.ahead(near, "coverage") == ["gpflow"]
    assert peers.ahead(near, "coverage", "gpflow") == []
    peers.draw(table, tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 5000


def test_the_negative_binomial_becomes_poisson():
    y, mean = np.array([7.0]), np.array([5.0])
    found = peer_svgp.expected_log_density(y, mean, np.array([1e-14]), 1e7)
    np.testing.assert_allclose(found, y * np.log(mean) - mean - gammaln(y + 1), rtol=1e-5)
