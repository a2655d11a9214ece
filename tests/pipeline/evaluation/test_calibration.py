"""Refits to simulated data find the coverage that a conjugate model has by its closed form."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from models.likelihoods.normal import Normal
from models.likelihoods.prediction import BagPrediction, Prediction
from pipeline.config.context import StageContext
from pipeline.config.schema import Config
from pipeline.core.json_values import jsonable
from pipeline.evaluation import fold_fits
from pipeline.evaluation.calibration import (
    Found,
    ScoredPixels,
    compare,
    effective_number,
    simulate,
)
from pipeline.evaluation.calibration_summary import cautions, summarise
from pipeline.evaluation.report import evaluation_table, render_report
from pipeline.evaluation.stage import evaluate_stage
from pipeline.publishing.gates import Check, check_gates
from pipeline.store.bag_store import BagStore
from pipeline.store.thinning import thinned_store
from tests.pipeline.stores import write_store

LEVELS = (0.5, 0.8, 0.9, 0.95)
N_BAG, N_TERM, NOISE = 25, 12, 0.3


def areas(path: Path, y: np.ndarray) -> BagStore:
    """Write areas of 6 to 15 pixels with one covariate and unequal people."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(6, 16, y.shape[0])
    middle = np.repeat(rng.uniform(-3, 3, y.shape[0]), sizes)
    x = (middle + 0.4 * rng.standard_normal(middle.size))[:, None].astype(np.float32)
    weight = rng.uniform(0.2, 2, middle.size)
    coords = np.repeat(np.arange(middle.size)[:, None], 2, 1).astype(float)
    return write_store(path, sizes, x, y, weight, coords, seed=1)


def terms(x: np.ndarray) -> np.ndarray:
    """Return the prior's basis, (n, N_TERM): a smooth function of the covariate."""
    k = np.arange(N_TERM)
    return np.cos(0.4 * k * np.asarray(x, float) + k) * 1.2 / (1 + 0.3 * k)


@dataclass(frozen=True)
class Surfaces:
    """Functions drawn from a :class:`Conjugate`: coefficients (n_draws, N_TERM)."""

    coefficients: np.ndarray

    def rate(self, x: np.ndarray, coords: Any = None) -> np.ndarray:
        return self.coefficients @ terms(x).T

    @property
    def clusters(self) -> np.ndarray:
        return np.zeros((len(self.coefficients), 2), np.int64)

    def alone(self, number: int) -> tuple[Surfaces, int]:
        return self, number

    def counted(self, bags: Any) -> Surfaces:
        return self

    def observed_factors(self, bags: Any, drawn: np.ndarray) -> np.ndarray:
        return np.ones_like(drawn)


@dataclass
class Conjugate:
    """``f(x) = terms(x) w``, ``w ~ N(0, I)``, sums of areas with known noise: all is closed.

    ``shrink`` multiplies the deviations that it claims.
    """

    store: BagStore
    y: np.ndarray
    shrink: float = 1.0
    predicts = ("pixels",)

    @cached_property
    def whole(self) -> Any:
        """Return every pixel of the store as one block of covariates, weights and offsets."""
        rows = self.store.read_rows(0, self.store.n_pix)
        return rows.x, rows.weight, self.store.offsets

    @cached_property
    def design(self) -> tuple[np.ndarray, np.ndarray]:
        """Sums of the basis over areas, and the variances of the areas' noise."""
        x, p, offsets = self.whole
        sums = np.add.reduceat(p[:, None] * terms(x), offsets[:-1], axis=0)
        return sums, NOISE * np.add.reduceat(p**2, offsets[:-1])

    @cached_property
    def gain(self) -> np.ndarray:
        """Posterior mean of the coefficients by response, (N_TERM, n_bag)."""
        a, noise = self.design
        return self.cov @ (a / noise[:, None]).T

    @cached_property
    def cov(self) -> np.ndarray:
        a, noise = self.design
        return np.linalg.inv(np.eye(N_TERM) + (a / noise[:, None]).T @ a)

    @property
    def mean(self) -> np.ndarray:
        return self.gain @ self.y

    def sample_functions(self, n: int, rng: np.random.Generator) -> Surfaces:
        root = self.shrink * np.linalg.cholesky(self.cov)
        return Surfaces(self.mean + rng.standard_normal((n, N_TERM)) @ root.T)

    def predict_pixels(self, x: np.ndarray, coords: Any = None) -> Prediction:
        phi = terms(x)
        variance = np.einsum("ij,jk,ik->i", phi, self.cov, phi)
        return Prediction("identity", phi @ self.mean, self.shrink**2 * variance, 1.0)

    def predict_bags(self, bags: Any, draws: Surfaces) -> BagPrediction:
        p = bags.weight[None, :] * draws.rate(bags.x)
        sums = np.add.reduceat(p, bags.offsets[:-1], axis=1)
        omega = np.add.reduceat(bags.weight**2, bags.offsets[:-1])
        return BagPrediction(sums, Normal(), {"log_noise": float(np.log(NOISE))}, omega)

    def closed_coverage(self, shrink: float = 1.0) -> dict[str, np.ndarray]:
        """Coverage of refits to data simulated from this posterior, by level: linear algebra.

        With truth ``w ~ N(m, S)`` and responses ``A w + e`` the error of the refit,
        ``w - G (A w + e)``, is normal with mean ``(I - G A) m`` and covariance
        ``(I - G A) S (I - G A)' + G T G'``.
        """
        x, p, _ = self.whole
        a, noise = self.design
        left = np.eye(N_TERM) - self.gain @ a
        off = left @ self.mean
        cov = left @ self.cov @ left.T + self.gain @ np.diag(noise) @ self.gain.T
        phi = terms(x)
        bias = phi @ off
        sd = np.sqrt(np.einsum("ij,jk,ik->i", phi, cov, phi))
        said = shrink * np.sqrt(np.einsum("ij,jk,ik->i", phi, self.cov, phi))
        z = norm.ppf((1 + np.asarray(LEVELS)) / 2)[:, None]
        share = norm.cdf((z * said - bias) / sd) - norm.cdf((-z * said - bias) / sd)
        return {"pixels": share.mean(axis=1), "people": share @ p / p.sum()}


def prior_data(store: BagStore, seed: int) -> np.ndarray:
    """Draw a function from the prior, and the responses of the areas."""
    rng = np.random.default_rng(seed)
    a, noise = Conjugate(store, store.y).design
    return a @ rng.standard_normal(N_TERM) + np.sqrt(noise) * rng.standard_normal(store.n_bag)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> BagStore:
    return areas(tmp_path_factory.mktemp("conjugate") / "bags.zarr", np.ones(N_BAG))


@pytest.fixture(scope="module")
def model(store: BagStore) -> Conjugate:
    return Conjugate(store, prior_data(store, 8))


def simulations(model: Conjugate, n: int, shrink: float = 1.0, seed: int = 0) -> list[Found]:
    store = model.store
    pixels = ScoredPixels.of(store, 0)
    found = []
    for number in range(n):
        key = (seed, 6, number)
        truth = simulate(model, store, pixels, key, n_thread=1)
        refit = Conjugate(store, truth.y, shrink)
        found.append(compare(refit, store, pixels, truth, LEVELS, 100, key))
    return found


@pytest.fixture(scope="module")
def many(model: Conjugate) -> list[Found]:
    return simulations(model, 200)


@pytest.mark.parametrize("way", ["pixels", "people"])
def test_coverage_is_that_of_the_closed_form(model: Conjugate, many: list[Found], way: str) -> None:
    measured = np.stack([getattr(one, way) for one in many])
    error = measured.std(axis=0, ddof=1) / np.sqrt(len(many))
    np.testing.assert_array_less(
        np.abs(measured.mean(axis=0) - model.closed_coverage()[way]), 4 * error
    )


def test_variances_that_are_too_small_are_found_out(model: Conjugate) -> None:
    found = simulations(model, 60, shrink=0.5)
    closed = model.closed_coverage(0.5)
    assert closed["pixels"][2] < 0.75  # of the intervals of 90 %
    measured = np.stack([one.pixels for one in found])
    error = measured.std(axis=0, ddof=1) / np.sqrt(len(found))
    np.testing.assert_array_less(np.abs(measured.mean(axis=0) - closed["pixels"]), 4 * error)


def test_over_data_of_the_prior_an_exact_posterior_covers_nominally(store: BagStore) -> None:
    closed = np.stack(
        [
            Conjugate(store, prior_data(store, seed)).closed_coverage()["pixels"]
            for seed in range(400)
        ]
    )
    error = closed.std(axis=0, ddof=1) / 20
    np.testing.assert_array_less(np.abs(closed.mean(axis=0) - LEVELS), 4 * error)
    # One data set is not far from it: what a single map can be off by through its data alone.
    assert closed.std(axis=0)[2] < 0.02


def test_areas_cover_their_true_expectations(model: Conjugate, many: list[Found]) -> None:
    a, noise = model.design
    left = np.eye(N_TERM) - model.gain @ a
    cov = left @ model.cov @ left.T + model.gain @ np.diag(noise) @ model.gain.T
    sd, said = (np.sqrt(np.einsum("ij,jk,ik->i", a, c, a)) for c in (cov, model.cov))
    bias = a @ left @ model.mean
    z = norm.ppf((1 + np.asarray(LEVELS)) / 2)[:, None]
    closed = norm.cdf((z * said - bias) / sd) - norm.cdf((-z * said - bias) / sd)
    measured = np.stack([one.areas for one in many])
    error = measured.std(axis=0, ddof=1) / np.sqrt(len(many))
    np.testing.assert_array_less(
        np.abs(measured.mean(axis=0) - closed.mean(axis=1)), 4 * error + 0.005
    )


# -- standard errors


def test_the_effective_number_is_that_of_the_covariance(model: Conjugate) -> None:
    phi = terms(model.whole[0])
    cov = phi @ model.cov @ phi.T
    sd = np.sqrt(np.diag(cov))
    exact = 1 / ((cov / np.outer(sd, sd)) ** 2).mean()
    rng = np.random.default_rng(0)
    found = []
    for _ in range(20):
        chosen = rng.choice(phi.shape[0], 300)
        draws = model.sample_functions(200, rng).coefficients @ phi[chosen].T
        found.append(effective_number(np.exp(draws), phi.shape[0]))
    assert np.mean(found) == pytest.approx(exact, rel=0.1)


def test_independent_pixels_count_alone_and_a_shift_of_all_counts_once() -> None:
    rng = np.random.default_rng(0)
    # 300 choices among 40 pixels: each pair is the same pixel with probability 1 / 40.
    draws = rng.standard_normal((200, 40))[:, rng.integers(0, 40, 300)]
    assert effective_number(draws, 1e9) == pytest.approx(40, rel=0.25)
    assert effective_number(rng.standard_normal((200, 1)) + np.arange(300), 1e9) == pytest.approx(1)
    assert effective_number(np.ones((200, 300)), 1e9) == 1  # a map without a spread


def test_the_bound_holds_what_simulations_vary_by(many: list[Found]) -> None:
    measured = np.stack([one.pixels for one in many])
    number = 1 / np.mean([1 / one.effective[0] for one in many])
    bound = np.sqrt(np.asarray(LEVELS) * (1 - np.asarray(LEVELS)) / number)
    # A deviation of 200 simulations is itself uncertain by 5 %.
    assert (measured.std(axis=0, ddof=1) < 1.15 * bound).all()
    assert (measured.std(axis=0, ddof=1) > 0.3 * bound).all()  # and is no empty promise


def test_the_standard_error_is_the_larger_of_two(many: list[Found]) -> None:
    two = summarise(many[:2], N_BAG)
    shares = np.array(two["pixels"]["by_simulation"]["0.9"])
    between = np.std(shares, ddof=1)
    assert two["pixels"]["between"]["0.9"] == pytest.approx(between)
    number = two["pixels"]["n_effective"]
    bound = np.sqrt(max(0.09, shares.mean() * (1 - shares.mean())) / (2 * number))
    error = two["pixels"]["standard_error"]["0.9"]
    assert error == pytest.approx(max(between / np.sqrt(2), bound))
    # Areas too: two simulations may agree by chance.
    share = np.mean(two["areas"]["by_simulation"]["0.9"])
    least = np.sqrt(max(0.09, share * (1 - share)) / (2 * N_BAG))
    assert two["areas"]["standard_error"]["0.9"] >= least * (1 - 1e-9)
    alone = summarise(many[:1], N_BAG)["pixels"]
    assert np.isnan(alone["between"]["0.9"])
    assert alone["standard_error"]["0.9"] > 0


# -- the gate


def checked(found: dict[str, Any], directory: Path, truth: Any = None) -> Check:
    """Check ``gates.pixel_coverage: [0.85, 0.95]`` against what simulations say."""
    report = {"calibration": found} | ({} if truth is None else {"truth": truth})
    (directory / "out").mkdir(exist_ok=True)
    (directory / "out" / "evaluation.json").write_text(json.dumps(report))
    config = Config.model_validate(
        {
            "areas": {"path": "areas.gpkg", "id": "id"},
            "counts": {"path": "cases.csv", "value": "cases"},
            "population": {"path": "population.tif"},
            "covariates": {"rain": {"path": "rain.tif"}},
            "gates": {"pixel_coverage": [0.85, 0.95], "better_than_constant": False},
            "output": {"dir": str(directory / "out")},
        },
        context={"base": directory},
    )
    (check,) = check_gates(config, None)
    assert check.gate == "pixel coverage"
    return check


def test_a_map_that_is_too_sure_cannot_pass_the_gate(
    model: Conjugate, many: list[Found], tmp_path: Path
) -> None:
    """The worst of what was measured counts, whichever it is."""
    good = jsonable(summarise(many[:60], N_BAG) | {"n_simulations": 60})
    assert checked(good, tmp_path).passed
    narrow = jsonable(summarise(simulations(model, 40, shrink=0.65), N_BAG) | {"n_simulations": 40})
    share = model.closed_coverage(0.65)["pixels"][2]
    assert share < 0.75
    held = checked(narrow, tmp_path)
    assert not held.passed
    assert held.value == pytest.approx(share, abs=0.08)
    assert "0.85 to 0.95 required" in held.reason
    true = {way: {"coverage": {"0.9": 0.9}} for way in ("pixels", "people")}
    assert checked(good, tmp_path, true).passed
    assert not checked(narrow, tmp_path, true).passed
    true["people"]["coverage"]["0.9"] = 0.7
    by_truth = checked(good, tmp_path, true)
    assert (by_truth.passed, by_truth.value) == (False, 0.7)
    assert "the true rates (by people)" in by_truth.reason
    wide = json.loads(json.dumps(good))
    wide["people"]["coverage"]["0.9"] = 0.99
    assert not checked(wide, tmp_path).passed


def test_two_simulations_cannot_tell_and_do_not_pass(many: list[Found], tmp_path: Path) -> None:
    found = summarise(many[:2], N_BAG) | {"n_simulations": 2}
    for way in ("pixels", "people"):
        found[way]["coverage"]["0.9"] = 0.9  # as good as can be
    error = max(found[way]["standard_error"]["0.9"] for way in ("pixels", "people"))
    assert error > 0.05
    held = checked(jsonable(found), tmp_path)
    assert not held.passed
    enough = int(held.reason.rsplit(" ", 1)[1])
    assert error * np.sqrt(2 / enough) <= 0.05 < error * np.sqrt(2 / (enough - 1))


@pytest.mark.parametrize(
    ("found", "remedy"),
    [
        ({"skipped": "set evaluate.calibration to 2"}, "set evaluate.calibration to 2"),
        ({}, "run `disagg evaluate` again"),
    ],
)
def test_a_map_whose_pixels_were_not_measured_is_held_back(
    found: dict[str, Any], remedy: str, tmp_path: Path
) -> None:
    true = {way: {"coverage": {"0.9": 0.9}} for way in ("pixels", "people")}
    for truth in (None, true):
        held = checked(found, tmp_path, truth)
        assert (held.passed, held.value) == (False, None)
        assert remedy in held.reason


# -- what is scored, what is simulated


def test_scored_pixels_stand_for_all_of_their_area(store: BagStore) -> None:
    all_of_them = ScoredPixels.of(store, 0)
    assert len(all_of_them) == store.n_pix
    large = _LargeAreas(store)
    some = ScoredPixels.of(large, 0, total=large.n_pix // 4)
    assert len(some) < large.n_pix / 2
    assert some.count.sum() == pytest.approx(large.n_pix)
    again = ScoredPixels.of(large, 0, total=large.n_pix // 4)
    np.testing.assert_array_equal(some.x, again.x)
    # The people of the sample estimate those of the map: within what a quarter of them varies by.
    assert some.people.sum() == pytest.approx(large.people, rel=0.05)


class _LargeAreas:
    """The areas of a store with every pixel twenty times."""

    def __init__(self, store: BagStore) -> None:
        self._store = store
        self.sizes = 20 * store.sizes
        self.n_pix = int(self.sizes.sum())
        self.people = 20 * float(store.bag_weight.sum())

    def blocks(self) -> Any:
        for block in self._store.blocks():
            rows = np.concatenate(
                [
                    np.tile(np.arange(a, b), 20)
                    for a, b in zip(block.offsets[:-1], block.offsets[1:], strict=True)
                ]
            )
            coords = None if block.coords is None else block.coords[rows]
            yield replace(
                block, x=block.x[rows], weight=block.weight[rows], coords=coords,
                offsets=20 * block.offsets,
            )  # fmt: skip


def test_threads_and_repetition_change_nothing(model: Conjugate) -> None:
    pixels = ScoredPixels.of(model.store, 0)
    one, two = (simulate(model, model.store, pixels, (1, 6, 0), n) for n in (1, 3))
    np.testing.assert_array_equal(one.y, two.y)
    np.testing.assert_array_equal(one.rate, two.rate)
    other = simulate(model, model.store, pixels, (1, 6, 1), 1)
    assert not np.array_equal(one.y, other.y)


def test_simulated_responses_scatter_around_the_true_expectation(model: Conjugate) -> None:
    """The areas' expectations are sums of the same function that the pixels have."""
    pixels = ScoredPixels.of(model.store, 0)
    off = []
    for number in range(60):
        truth = simulate(model, model.store, pixels, (2, 6, number), 1)
        sums = np.add.reduceat(pixels.people * truth.rate, model.store.offsets[:-1])
        np.testing.assert_allclose(sums, truth.expected, rtol=1e-9, atol=1e-9)
        off.append((truth.y - truth.expected) / np.sqrt(model.design[1]))
    assert np.std(off) == pytest.approx(1, abs=4 / np.sqrt(2 * np.size(off)))
    assert abs(np.mean(off)) < 4 / np.sqrt(np.size(off))


# -- other responses for the same pixels


def test_a_store_of_other_responses_has_the_same_pixels(store: BagStore, tmp_path: Path) -> None:
    y = np.arange(N_BAG, dtype=float)
    other = store.with_responses(y)
    for own, new in zip(store.blocks(), other.blocks(), strict=True):
        np.testing.assert_array_equal(own.x, new.x)
        np.testing.assert_array_equal(new.y, y[new.bag])
    assert other.fingerprint != store.fingerprint
    assert other.fingerprint == store.with_responses(y).fingerprint
    assert other.fingerprint != store.with_responses(y + 1).fingerprint
    thin = thinned_store(store, tmp_path / "thin.zarr", 5, 0)
    for one, two in zip(thin.with_responses(y).scaling(), store.scaling(), strict=True):
        np.testing.assert_array_equal(one, two)
    for wrong in (y[1:], np.where(y == 3, np.nan, y)):
        with pytest.raises(ValueError, match=rf"give \({N_BAG},\)"):
            store.with_responses(wrong)


# -- the stage


@pytest.fixture
def config(world: Any, tmp_path: Path) -> Any:
    shutil.copytree(world.directory / "out", tmp_path / "out")
    return world.with_config(
        output={"dir": str(tmp_path / "out")}, evaluate={"schemes": [], "calibration": 3}
    )


@pytest.mark.ci
def test_the_stage_simulates_and_goes_on_where_it_stopped(
    config: Any, world: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained: list[np.ndarray] = []
    fit = fold_fits.fit_model

    def spy(model: Any, store: Any, *args: Any, **options: Any) -> Any:
        trained.append(store.y)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return fit(model, store, *args, **options)

    monkeypatch.setattr(fold_fits, "fit_model", spy)
    monkeypatch.setattr(fold_fits, "shares", lambda *_: 1)  # this process sees them
    with pytest.raises(KeyboardInterrupt):
        evaluate_stage(StageContext(config))
    summary = evaluate_stage(StageContext(config))
    assert len(trained) == 4  # the first is not done again
    file = tmp_path / "out" / "evaluation.json"
    found = json.loads(file.read_text())["calibration"]
    assert found["n_simulations"] == 3
    assert len(list((tmp_path / "out/work/evaluate/calibration").iterdir())) == 3
    assert all(not np.array_equal(y, world.store.y) for y in trained)
    assert len({y.tobytes() for y in trained}) == 3
    for way in ("pixels", "people", "areas"):
        assert set(found[way]["coverage"]) == {"0.5", "0.8", "0.9", "0.95"}
        assert np.mean(found[way]["by_simulation"]["0.9"]) == pytest.approx(
            found[way]["coverage"]["0.9"]
        )
    assert summary["simulated_coverage_90"] == found["pixels"]["coverage"]["0.9"]
    assert "family" in found["about"]
    assert any("12 areas" in text for text in found["cautions"])
    said = render_report(json.loads(file.read_text()))
    assert "calibration: 3 refits" in said
    assert "caution: 12 areas" in said
    assert "rougher are covered less" in said
    share, error = (found["people"][key]["0.9"] for key in ("coverage", "standard_error"))
    line = "90 % intervals of 3 refits to data simulated from the map cover"
    page = evaluation_table(config).replace("\\", "")
    assert line in page
    assert share + error > 1  # told as an interval that ends at 100 %
    assert f"by people {100 * share:.1f} % ({100 * (share - error):.1f} to 100 %)" in page

    # More simulations keep those that are finished; as many fit nothing.
    dump, text = config.model_dump(mode="json"), file.read_text()
    dump["evaluate"]["calibration"] = 4
    evaluate_stage(StageContext(type(config).model_validate(dump)))
    assert len(trained) == 5
    more = json.loads(file.read_text())["calibration"]
    for way in ("pixels", "people"):
        assert more[way]["by_simulation"]["0.9"][:3] == found[way]["by_simulation"]["0.9"]
    evaluate_stage(StageContext(config))
    assert len(trained) == 5
    assert file.read_text() == text

    dump["evaluate"]["calibration"] = "none"
    evaluate_stage(StageContext(type(config).model_validate(dump)))
    report = json.loads(file.read_text())
    assert "set evaluate.calibration" in report["calibration"]["skipped"]
    assert "calibration of pixels: not measured" in render_report(report)


# -- cautions


class Named:
    def __init__(self, **named: float) -> None:
        self.named = named

    def named_hyperparameters(self) -> dict[str, float]:
        return self.named


@pytest.mark.parametrize(
    ("model", "y", "words"),
    [
        (Named(area_sd=0.2), np.full(200, 50.0), []),
        (Named(area_sd=0.2), np.full(29, 50.0), ["29 areas"]),
        (Named(area_sd=0.7), np.full(30, 50.0), ["factor of deviation 0.7"]),
        (Named(), np.concatenate([np.full(120, 2.0), np.full(80, 90.0)]), ["count below 5"]),
    ],
)
def test_designs_that_are_surer_than_they_should_be_are_named(
    model: Named, y: np.ndarray, words: list[str]
) -> None:
    said = cautions(model, y, counts=True)
    assert len(said) == len(words)
    assert all(word in text for word, text in zip(words, said, strict=True))
    assert all("docs/calibration.md" in text for text in said)
