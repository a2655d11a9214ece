"""The simulated grids are what they say, their scores what they are called, no record is lost."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.spatial.distance import cdist
from scipy.special import j0
from scipy.stats import lognorm, norm

from benchmarks import design_tables, designs
from benchmarks.grid_scores import area_scores, pixel_scores, slope_scores
from benchmarks.grids import (
    AREA_SD,
    FIELD_SD,
    Design,
    Grid,
    centres,
    covariate_effect,
    matern,
    matern_root,
    simulate,
)
from benchmarks.grids import voronoi as draw_voronoi
from models.likelihoods.prediction import Prediction
from pipeline.evaluation.scores import LEVELS, crps

SMALL = Design("linear", 20, n_side=18)


# -- the simulator -----------------------------------------------------------------------------


@pytest.mark.parametrize("smoothness", [1.0, 1.5])
def test_matern_is_the_transform_of_its_spectrum(smoothness):
    """In the plane the spectrum is (2 nu / l^2 + w^2)^-(nu + 1), up to a factor."""
    length, r = 6.0, 5.0
    power = smoothness + 1

    def density(w):
        return w * (2 * smoothness / length**2 + w * w) ** -power

    total = quad(density, 0, np.inf)[0]
    waved = quad(lambda w: j0(w * r) * density(w), 0, 60, limit=2000)[0]
    assert matern(r, length, smoothness) == pytest.approx(waved / total, abs=2e-5)


def test_the_field_has_the_covariance_that_it_says():
    n, length, n_draw = 7, 4.0, 40_000
    noise = np.random.default_rng(0).standard_normal((n * n, n_draw))
    field = matern_root(n, length, 1.5) @ noise
    found = field @ field.T / n_draw
    h = np.sqrt(3.0) * cdist(centres(n), centres(n)) / length
    k = (1 + h) * np.exp(-h)
    error = np.sqrt((1 + k**2) / n_draw)  # of a product's mean, Isserlis
    z = ((found - k) / error)[np.triu_indices(n * n)]
    assert np.abs(z).max() < 5
    wrong = ((found - np.exp(-h)) / error)[np.triu_indices(n * n)]
    assert np.abs(wrong).max() > 20


def test_areas_share_out_the_pixels_and_are_cells_of_points():
    grid = simulate(SMALL, 3)
    assert sorted(grid.pixel) == list(range(18 * 18))
    assert grid.offsets[0] == 0
    assert grid.offsets[-1] == 18 * 18
    assert (np.diff(grid.offsets) > 0).all()
    coords = centres(18)
    np.testing.assert_array_equal(coords[grid.pixel], grid.coords)
    area = draw_voronoi(coords, 20, np.random.default_rng([2, 3, 20]))
    for number in range(20):
        own = grid.pixel[grid.offsets[number] : grid.offsets[number + 1]]
        assert set(own) == set(np.flatnonzero(area == number))
    rng = np.random.default_rng([2, 3, 20])
    points = coords[rng.choice(18 * 18, 20, replace=False)]
    points = points + rng.uniform(-1e-3, 1e-3, points.shape)
    np.testing.assert_array_equal(area, cdist(coords, points).argmin(axis=1))


def test_every_area_of_the_finest_design_has_a_pixel():
    area = draw_voronoi(centres(60), 1000, np.random.default_rng(0))
    assert np.bincount(area, minlength=1000).min() >= 1


def test_expected_counts_are_sums_over_pixels_and_average_what_the_design_says():
    grid = simulate(replace(SMALL, cases=30.0), 1)
    for number in range(20):
        part = slice(grid.offsets[number], grid.offsets[number + 1])
        total = sum(p * r for p, r in zip(grid.people[part], grid.rate[part], strict=True))
        assert grid.expected[number] == pytest.approx(total)
    assert grid.expected.mean() == pytest.approx(30.0)
    assert (grid.cases == np.round(grid.cases)).all()


def test_counts_vary_as_poisson_ones_or_by_the_factor_of_the_area():
    many = Design("linear", 500, cases=2000.0, n_side=24)
    grid = simulate(many, 0)
    square = np.sum((grid.cases - grid.expected) ** 2 / grid.expected)
    assert abs(square - 500) < 4 * np.sqrt(2 * 500)
    noisy = simulate(replace(many, cases=1e6, area_sd=AREA_SD), 0)
    ratio = noisy.cases / noisy.expected
    assert abs(ratio.mean() - 1) < 4 * AREA_SD / np.sqrt(500)
    assert np.log(ratio).std() == pytest.approx(AREA_SD, rel=4 / np.sqrt(2 * 500))
    np.testing.assert_allclose(noisy.rate, grid.rate * 500)  # the truth knows no factor


def test_linear_truth_is_slopes_and_a_field_and_noise_has_no_effect():
    grids = [simulate(SMALL, seed) for seed in range(40)]
    fields = []
    for grid in grids:
        assert np.count_nonzero(grid.slopes) == 3
        assert grid.slopes[-1] == 0
        np.testing.assert_allclose(grid.x.mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(grid.x.std(axis=0), 1)
        fields.append(np.log(grid.rate) - grid.x @ grid.slopes)
    # Semivariance at one kilometre, which does not depend on the unknown level.
    half = []
    for grid, field in zip(grids, fields, strict=True):
        flat = np.empty(18 * 18)
        flat[grid.pixel] = field
        expected = FIELD_SD**2 * (1 - matern(1.0, grid.length, 1.5))
        half.append(0.5 * np.mean(np.diff(flat.reshape(18, 18), axis=1) ** 2) / expected)
    assert abs(np.mean(half) - 1) < 4 * np.std(half, ddof=1) / np.sqrt(len(half))


def test_bent_truth_is_not_linear_and_rough_fields_are_rougher():
    grids = {name: simulate(replace(SMALL, truth=name), 5) for name in ("linear", "rough", "bent")}
    assert np.isnan(grids["bent"].slopes).all()

    def roughness(grid):
        flat = np.empty(18 * 18)
        flat[grid.pixel] = np.log(grid.rate) - grid.x @ grid.slopes
        return np.mean(np.diff(flat.reshape(18, 18), axis=1) ** 2)

    assert roughness(grids["rough"]) > 1.5 * roughness(grids["linear"])
    x = np.random.default_rng(0).standard_normal((500, 6))
    effect, _ = covariate_effect("bent", x, np.array([3, 0, 4, 1, 2]), np.array([1.0, 0.9, 1.1]))
    for row, value in zip(x, effect, strict=True):
        a, b, c, d = row[3], row[0], row[4], row[1]
        by_hand = 0.5 * math.tanh(2 * a) + 0.9 * 0.2 * (b**2 - 1) + 1.1 * 0.3 * c * d
        assert value == pytest.approx(by_hand)
    left = np.linalg.lstsq(np.c_[np.ones(500), x], effect, rcond=None)[1]
    assert left[0] > 0.3 * 500 * effect.var()


def test_a_seed_gives_the_same_grid_and_designs_share_the_surface():
    one, two, other = simulate(SMALL, 7), simulate(SMALL, 7), simulate(SMALL, 8)
    for name in ("pixel", "x", "people", "rate", "cases"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert not np.array_equal(one.cases, other.cases)
    coarse = simulate(replace(SMALL, n_area=5), 7)
    rates = [grid.rate[np.argsort(grid.pixel)] for grid in (one, coarse)]
    np.testing.assert_allclose(rates[1] / rates[0], 5 / 20)


def test_designs_that_cannot_be_say_so():
    with pytest.raises(ValueError, match="use one of linear, rough, rougher, smoother, bent"):
        Design("straight", 20)
    with pytest.raises(ValueError, match="give fewer areas"):
        Design("linear", 400, n_side=18)


# -- the scores --------------------------------------------------------------------------------


def _drawn_from(prediction: Prediction, rng: np.random.Generator) -> Grid:
    """Return a grid whose truth is a draw of the prediction: the prediction is then perfect."""
    n = prediction.m.size
    rate = prediction.sample(1, rng)[0]
    people = rng.lognormal(size=n)
    return Grid(
        np.arange(n), np.zeros((n, 6)), np.zeros((n, 2)), people, np.arange(n + 1), rate,
        people * rate, people, np.zeros(6), 1.0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def perfect():
    rng = np.random.default_rng(1)
    prediction = Prediction("exp", rng.normal(size=20_000), rng.uniform(0.01, 1, 20_000), 0.3)
    return prediction, _drawn_from(prediction, rng)


def test_a_perfect_posterior_covers_what_it_says(perfect):
    prediction, grid = perfect
    found = pixel_scores(prediction, grid, np.random.default_rng(2))
    share = grid.people / grid.people.sum()
    for level in LEVELS:
        spread = np.sqrt(level * (1 - level))
        error = abs(found["coverage"][f"{level:g}"] - level)
        assert error < 4 * spread / np.sqrt(20_000)
        error = abs(found["coverage_people"][f"{level:g}"] - level)
        assert error < 4 * spread * np.sqrt(np.sum(share**2))


def test_coverage_is_that_of_the_quantiles_and_of_half_the_deviation(perfect):
    prediction, grid = perfect
    narrow = replace(prediction, s=prediction.s / 4)
    found = pixel_scores(narrow, grid, np.random.default_rng(2))
    for level in LEVELS:
        low, high = (narrow.quantile(q) for q in ((1 - level) / 2, (1 + level) / 2))
        inside = (grid.rate >= low) & (grid.rate <= high)
        assert found["coverage"][f"{level:g}"] == pytest.approx(inside.mean(), abs=1e-12)
        by_people = sum(grid.people[inside]) / sum(grid.people)
        assert found["coverage_people"][f"{level:g}"] == pytest.approx(by_people)
        expected = 2 * norm.cdf(norm.ppf((1 + level) / 2) / 2) - 1
        assert inside.mean() == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(20_000))
    width = np.mean(2 * norm.ppf(0.95) * np.sqrt(narrow.s))
    assert found["width"] == pytest.approx(width)


def test_crps_from_draws_is_that_of_the_log_normal_distribution(perfect):
    """Baran and Lerch 2015, Log-normal distribution based EMOS models, eq. 6."""
    prediction, grid = perfect
    country = grid.expected.sum() / grid.people.sum()
    m, s = prediction.m + np.log(0.3 / country), np.sqrt(prediction.s)
    y = grid.rate / country
    z = (np.log(y) - m) / s
    closed = y * (2 * norm.cdf(z) - 1) - 2 * np.exp(m + s * s / 2) * (
        norm.cdf(z - s) + norm.cdf(s / np.sqrt(2)) - 1
    )
    found = crps(prediction.sample(200, np.random.default_rng(3)) / country, y)
    difference = found - closed
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(difference.size)
    scored = pixel_scores(prediction, grid, np.random.default_rng(3))["crps"]
    assert scored == pytest.approx(closed.mean(), rel=0.01)


def test_brier_scores_and_errors_of_logs_are_those_of_a_loop(perfect):
    prediction, grid = perfect
    found = pixel_scores(prediction, grid, np.random.default_rng(3))
    country = sum(grid.expected) / sum(grid.people)
    for times in (1.0, 2.0):
        above = lognorm.sf(times * country, np.sqrt(prediction.s), scale=0.3 * np.exp(prediction.m))
        loss = [
            (p - float(r > times * country)) ** 2 for p, r in zip(above, grid.rate, strict=True)
        ]
        assert found["brier"][f"{times:g}"] == pytest.approx(np.mean(loss), rel=1e-9)
    error = np.log(0.3) + prediction.m + prediction.s / 2 - np.log(grid.rate)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    error = np.log(0.3) + prediction.m - np.log(grid.rate)
    assert found["rmse_median"] == pytest.approx(np.sqrt(np.mean(error**2)))
    correlation = np.corrcoef(prediction.m + prediction.s / 2, np.log(grid.rate))[0, 1]
    assert found["correlation"] == pytest.approx(correlation)


def test_areas_are_covered_as_often_as_draws_of_the_truth_say():
    rng = np.random.default_rng(4)
    centre = rng.normal(5, 0.3, 4000)
    draws = np.exp(centre + 0.2 * rng.standard_normal((99, 4000)))
    truth = np.exp(centre + 0.2 * rng.standard_normal(4000))
    found = area_scores(draws, truth)
    for level in LEVELS:
        error = abs(found["coverage"][f"{level:g}"] - level)
        assert error < 4 * np.sqrt(level * (1 - level) / 4000)
    late = area_scores(draws, truth * 1.5)
    assert late["total"] == 1.0
    assert late["coverage"]["0.9"] < 0.6


def test_slopes_are_compared_in_the_models_units():
    class Fitted:
        link_name = "exp"
        state_ = type("State", (), {"fixed": {"x_sd": np.array([2.0] * 6)}})
        coefficients_ = [
            type("C", (), {"column": 1, "mean": 0.5, "sd": 0.1}),
            type("C", (), {"column": 6, "mean": 9.0, "sd": 0.1}),  # a coordinate
        ]

    grid = simulate(SMALL, 0)
    grid = replace(grid, slopes=np.array([0, 0.3, 0, 0, 0, 0]))
    (found,) = slope_scores(Fitted(), grid)
    assert found["true"] == pytest.approx(0.6)
    assert found["z"] == pytest.approx(-1.0)
    assert slope_scores(Fitted(), replace(grid, slopes=np.full(6, np.nan))) == []


# -- runs and records --------------------------------------------------------------------------


def _record(task: designs.Task) -> designs.Record:
    value = np.random.default_rng([len(task.design), task.grid]).uniform(0.5, 1)
    level = {f"{q:g}": value * q for q in LEVELS}
    return {
        "label": task.label,
        "design": task.design,
        "grid": task.grid,
        "model": dict(task.model),
        "code": "abc",
        "seconds": {"fit": 1.0, "scores": 1.0},
        "true_range_km": 6.0,
        "fit": {"converged": True, "epochs": 3, "bound": -1.0},
        "pixels": {
            "coverage": level, "coverage_people": level, "correlation": value, "rmse": value,
            "rmse_median": value, "crps": value, "brier": {"1": value, "2": value}, "width": value,
        },
        "areas": {"coverage": level, "correlation": value, "rmse": value, "total": 0.5},
        "slopes": [],
        "hyperparameters": {},
        "range_km": 7.0,
    }  # fmt: skip


def _tasks(label="now", model=()):
    names = ("linear-20", "bent-100")
    return [designs.Task(label, name, grid, model) for grid in range(3) for name in names]


def test_an_interrupted_run_goes_on_to_the_same_file(tmp_path):
    designs.run(_tasks(), tmp_path / "whole.json", one=_record)
    done = []

    def interrupted(task):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(task)
        return _record(task)

    path = tmp_path / "parts.json"
    with pytest.raises(KeyboardInterrupt):
        designs.run(_tasks(), path, one=interrupted)
    left = designs.missing(_tasks(), designs.read_records(path))
    assert [task.key for task in left] == [task.key for task in _tasks()[3:]]
    designs.run(left, path, one=_record)
    assert path.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert [p.name for p in tmp_path.glob("*.part")] == []


def test_labels_stand_side_by_side_and_hold_one_model(tmp_path):
    path = tmp_path / "designs.json"
    designs.run(_tasks("before"), path, one=_record)
    designs.run(_tasks("now"), path, one=_record)
    records = designs.read_records(path)
    assert len(records) == 12
    assert designs.missing(_tasks("now"), records) == []
    other = _tasks("now", (("kernel", "linear"),))
    with pytest.raises(ValueError, match="give another label"):
        designs.missing(other, records)


@pytest.mark.ci
def test_a_small_grid_is_fitted_scored_and_written(tmp_path, monkeypatch):
    monkeypatch.setitem(designs.DESIGNS, "linear-20", SMALL)
    kernel = "linear + matern32(space)"
    task = designs.Task("now", "linear-20", 0, (("inducing", 30), ("kernel", kernel)))
    record = designs.measure(task)
    again = designs.measure(task)
    assert {**record, "seconds": 0} == {**again, "seconds": 0}
    designs.add_record(tmp_path / "designs.json", record)
    (read,) = designs.read_records(tmp_path / "designs.json").values()
    assert read["pixels"]["coverage"]["0.9"] == pytest.approx(
        record["pixels"]["coverage"]["0.9"], rel=1e-5
    )
    assert [each["covariate"] for each in read["slopes"]] == list(range(6))
    assert read["range_km"] > 0
    assert read["pixels"]["correlation"] > 0.5


def test_the_model_is_the_configurations_default():
    grid = simulate(SMALL, 0)
    model = designs.default_model(grid, {})
    assert type(model).__name__ == "VBAgg"
    assert model.link_name == "exp"
    assert model.area_effect
    assert designs.default_model(grid, {"kernel": "linear"}).kernel == "linear"
    with pytest.raises(ValueError, match="kernle"):
        designs.default_model(grid, {"kernle": "linear"})


def test_a_wrong_setting_ends_before_any_fit(capsys, monkeypatch, tmp_path):
    path = tmp_path / "designs.json"
    designs.run(_tasks("now"), path, one=_record)
    arguments = ["--results", str(path), "--grids", "1", "--kernel", "linear"]
    monkeypatch.setattr("sys.argv", ["designs", *arguments])
    with pytest.raises(SystemExit, match="another label"):
        designs.main()


def test_records_of_another_machine_are_taken_in(monkeypatch, tmp_path):
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    designs.run(_tasks("before"), here, one=_record)
    designs.run(_tasks("now"), there, one=_record)
    arguments = ["--results", str(here), "--merge", str(there), "--table"]
    monkeypatch.setattr("sys.argv", ["designs", *arguments])
    designs.main()
    assert len(designs.read_records(here)) == 12


# -- tables ------------------------------------------------------------------------------------


def _records():
    return {task.key: _record(task) for label in ("now", "before") for task in _tasks(label)}


def test_summaries_are_means_with_their_errors():
    grids = design_tables.grids_of(_records(), "now", "bent-100")
    values = [each["pixels"]["correlation"] for each in grids]
    mean, error, n = design_tables.summary(grids, design_tables.ACCURACY["correlation"])
    assert n == 3
    assert mean == pytest.approx(sum(values) / 3)
    assert error == pytest.approx(np.sqrt(np.var(values, ddof=1) / 3))
    assert design_tables.summary(grids, lambda _: None)[2] == 0


def test_the_page_is_written_between_its_markers_and_nowhere_else(tmp_path):
    page = tmp_path / "page.md"
    names = ("coverage", "accuracy", "differences", "learnt", "warnings")
    marked = "".join(f"<!-- designs: {n} -->\n<!-- designs: end {n} -->\n" for n in names)
    page.write_text(f"# Title\n\n{marked}\nThe end.\n")
    design_tables.write_page(_records(), page)
    text = page.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith("\nThe end.\n")
    rows = [line for line in text.splitlines() if line.startswith("| linear-20 |")]
    assert [row.split(" | ")[1] for row in rows[:2]] == ["before", "now"]
    assert "20 areas, linear truth, 300 cases an area" in text
    design_tables.write_page(_records(), page)
    assert page.read_text() == text
    page.write_text(text.replace("<!-- designs: end learnt -->", ""))
    with pytest.raises(ValueError, match="end learnt"):
        design_tables.write_page(_records(), page)


def test_differences_are_by_grid():
    records = _records()
    assert "both labels" in design_tables.differences({("now", "x", 0): {}})
    del records["before", "linear-20", 1]
    shift = {0: 0.01, 2: 0.03}
    for grid, by in shift.items():
        record = json.loads(json.dumps(records["now", "linear-20", grid]))
        record["pixels"]["correlation"] += by
        records["now", "linear-20", grid] = record
    (row,) = (r for r in design_tables.differences(records).splitlines() if "linear-20" in r)
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[2] == "2"
    assert cells[3] == "0.000 ± 0.000"
    assert cells[6] == "0.020 ± 0.010"  # mean and error of .01 and .03


def test_warnings_sort_designs_by_what_their_intervals_cover():
    records = _records()
    for key, coverage in ((("now", "linear-20"), 0.7), (("now", "bent-100"), 0.9)):
        for grid in range(3):
            levels = {f"{q:g}": coverage for q in LEVELS}
            record = json.loads(json.dumps(records[*key, grid]))
            record["pixels"] |= {"coverage": levels, "coverage_people": levels}
            records[*key, grid] = record
    text = design_tables.warnings(records)
    low, _, fine = text.partition("cover 86 % to 94 %")
    assert "`linear-20`" in low
    assert "0.70 of pixels" in low
    assert "3 grids only" in low
    assert "`bent-100`" in fine
    assert "`linear-1000`" in text.partition("Not measured")[2]
    assert design_tables.warnings({}) == "No design has been measured."


def test_the_figure_is_drawn(tmp_path):
    design_tables.draw(_records(), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_the_page_in_docs_has_the_figures_of_the_results(tmp_path):
    """A table that was not written again after a run would tell old figures."""
    records = designs.read_records(designs.RESULTS / "designs.json")
    page = tmp_path / "page.md"
    page.write_text(design_tables.PAGE.read_text())
    design_tables.write_page(records, page)
    assert page.read_text() == design_tables.PAGE.read_text()
