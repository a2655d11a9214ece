"""Series drawn from the priors of the model of months: their covariance, ranks and records."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import sbc, sbc_page
from benchmarks import sbc_months as benchmark
from benchmarks.prior_draws import TOTALS, Design, make_geometry
from benchmarks.sbc_months import MONTHS, draw_fields, draw_series, make_model
from models import Period
from models.gp.priors import LARGE_NOISE, TAIL_NOISE
from models.gp.scaling import scaled_inputs
from models.temporal.periods import PeriodSource

SMALL = Design(n_side=5, n_area=4)


@pytest.mark.ci
def test_fields_have_the_covariance_of_space_and_time_by_hand():
    model = make_model()
    bags = make_geometry(SMALL, np.random.default_rng(3))
    source = PeriodSource([Period(float(t), bags) for t in range(MONTHS)])
    state = model.init(source.summary(np.random.default_rng(0)), np.random.default_rng(0))
    theta, of_time = state.params["theta"] + 0.2, state.params["time"]
    z = scaled_inputs(state.fixed, bags.x, bags.coords, np.float64)
    rng, n = np.random.default_rng(4), 5000
    phi = np.concatenate([theta, of_time])
    f = np.stack([draw_fields(model, state, phi, z, rng) for _ in range(n)])
    names = model._kernel(state.fixed).names
    named = dict(zip(names, np.exp(theta), strict=True))
    slopes = np.array([v for name, v in named.items() if name.startswith("linear")]) * np.ones(2)
    r = np.linalg.norm(z[:, None, 2:] - z[None, :, 2:], axis=-1)
    smooth = np.sqrt(3.0) * r / named["matern32_space.lengthscale"]
    still = (z[:, :2] * slopes) @ z[:, :2].T
    still += named["matern32_space.variance"] * (1 + smooth) * np.exp(-smooth)
    moving = named["matern12_space.variance"] * np.exp(-r / named["matern12_space.lengthscale"])
    for a, b in ((0, 0), (0, 3), (2, MONTHS)):
        k = still + moving * np.exp(-abs(a - b) / np.exp(of_time[0]))
        whole = still + moving
        error = np.sqrt((np.outer(np.diag(whole), np.diag(whole)) + k**2) / n)
        assert (np.abs(f[:, a].T @ f[:, b] / n - k) < 5 * error).all()


@pytest.mark.ci
def test_a_series_is_what_it_says():
    series = draw_series(make_model(area_effect=False), SMALL, np.random.default_rng(5))
    assert series.own == {}
    assert [period.time for period in series.periods] == list(range(MONTHS))
    y = np.stack([period.bags.y for period in series.periods])
    assert TOTALS[0] <= y.sum() <= TOTALS[1]
    bags = series.ahead
    sums = [np.add.reduceat(bags.weight * each, bags.offsets[:-1]) for each in series.rate]
    np.testing.assert_allclose(series.eta, sums)
    assert np.abs(y - series.eta[:MONTHS]).max() < 6 * np.sqrt(series.eta.max()) + 3


@pytest.mark.ci
def test_noise_of_areas_is_drawn_from_its_prior_and_moves_counts():
    model, rng = make_model(area_effect=True), np.random.default_rng(6)
    source = PeriodSource([Period(float(t), make_geometry(SMALL, rng)) for t in range(MONTHS)])
    prior = benchmark.prior_of(model, model.init(source.summary(rng), np.random.default_rng(0)))
    sd = np.exp([prior.draw(rng)[-1] for _ in range(600)])
    assert np.mean(sd > LARGE_NOISE) == pytest.approx(TAIL_NOISE, abs=0.04)
    series = draw_series(model, SMALL, rng)
    y, eta = np.stack([period.bags.y for period in series.periods]), series.eta[:MONTHS]
    sd = np.exp(series.own["log_area_sd"])
    ratio = np.mean((y - eta) ** 2) / np.mean(eta + eta**2 * np.expm1(sd**2))
    assert 0.3 < ratio < 3.0
    assert np.mean((y - eta) ** 2 / eta) > 1.5


@pytest.mark.ci
@pytest.mark.parametrize("case", benchmark.CASES)
def test_a_series_is_fitted_and_ranked_and_goes_on_where_it_ended(case, tmp_path, monkeypatch):
    changed = {"n_inducing": 8, "n_moving": 4, "max_epochs": 3}
    records = benchmark.run(case, 2, 1, tmp_path, SMALL, **changed)
    wanted = {"pixel 0", "ahead area 2", "ahead total", "change", "slope 1"}
    assert wanted <= set(records[0]["ranks"])
    assert all(0 < u < 1 for record in records for u in record["ranks"].values())
    assert np.sum(records[0]["pixels"]) == pytest.approx(1, abs=1e-3)
    monkeypatch.setattr(benchmark, "measure", dict)  # measures nothing
    assert benchmark.run(case, 2, 1, tmp_path, SMALL, **changed) == records
    found = benchmark.summary(records)
    ahead = np.mean([record["cover_ahead"]["90"][0] for record in records])
    assert found["coverage_ahead"]["pixels"]["90"][0] == pytest.approx(ahead, abs=1e-4)


def test_the_page_names_what_deviates(tmp_path):
    flat = {"n": 100, "p": 0.4, "bias_z": 0.5, "spread": 1.02, "spread_se": 0.03}
    off = {**flat, "p": 1e-9, "bias_z": -6.0}
    level = {of: {"90": [0.9, 0.01]} for of in ("pixels", "areas")}
    row = {"countries": 100, "failed": 1, "converged": 0.99, "coverage": level}
    ranks = {"pixel 0": flat, "area 0": flat, "total": flat, "slope 0": flat, "hyper mean": off}
    ahead = {f"ahead {key}": test for key, test in ranks.items() if key != "hyper mean"}
    series = {**row, "ranks": {**ranks, **ahead}, "coverage_ahead": level}
    likelihoods = {"poisson": {**row, "ranks": ranks}}
    (tmp_path / "sbc.json").write_text(json.dumps({"likelihoods": likelihoods}))
    (tmp_path / "sbc_months.json").write_text(json.dumps({"series": {"months": series}}))
    found = sbc_page.rows_of(tmp_path)
    assert set(found["months ahead"]["ranks"]) == {"pixel 0", "area 0", "total", "slope 0"}
    page = tmp_path / "page.md"
    page.write_text(f"a\n{sbc_page.BEGIN}\nold\n{sbc_page.END}\nb\n")
    sbc_page.write_page(page, tmp_path)
    text = page.read_text()
    assert f"| Poisson | 100 | 2 |{2 * ' 0.900 ± 0.010 |'}{4 * ' 0.4 |'} 1e-09 |" in text
    assert text.count("| mean | 1e-09 | -6.0 |") == 2
    assert "pixel 0" not in text
    assert "old" not in text


def test_likelihoods_that_are_not_asked_for_keep_their_countries(tmp_path, monkeypatch):
    design = Design(n_side=6, n_area=4)
    monkeypatch.setattr(sbc, "Design", lambda: design)
    monkeypatch.setattr(sbc, "measure", lambda name, *_: {"tried": 1, "error": f"made up: {name}"})
    monkeypatch.setattr(sbc, "draw_ranks", lambda *_: None)
    for asked in ("poisson", "gamma"):
        words = ["sbc", "--likelihood", asked, "--countries", "2", "--records", str(tmp_path)]
        monkeypatch.setattr("sys.argv", [*words, "--results", str(tmp_path)])
        sbc.main()
    found = json.loads((tmp_path / "sbc.json").read_text())["likelihoods"]
    assert {name: row["failed"] for name, row in found.items()} == {"poisson": 2, "gamma": 2}
