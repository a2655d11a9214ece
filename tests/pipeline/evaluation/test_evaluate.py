"""Evaluation: nothing leaks out of a fold, nothing finished is done twice, the truth is found."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from geo.sources.raster import RasterSource
from models import VBAgg
from models.likelihoods.prediction import BagPrediction, Prediction
from pipeline.config.context import StageContext
from pipeline.core.progress import Silent
from pipeline.evaluation import fold_fits
from pipeline.evaluation.cross_validation import CountPredictor, cross_validate
from pipeline.evaluation.report import render_report
from pipeline.evaluation.stage import evaluate_stage
from pipeline.evaluation.truth import compare_with_truth
from pipeline.training.fit import fit as fit_model


class Flat:
    """Fits one rate to the training areas: what it predicts tells what it has seen."""

    def __init__(self, store, train):
        self.rate = store.y[train].sum() / store.bag_weight[train].sum()

    def sample_functions(self, n_draws, rng):
        return self.rate * rng.gamma(50, 1 / 50, n_draws)

    def predict_bags(self, bags, draws):
        people = np.add.reduceat(bags.weight, bags.offsets[:-1])
        return BagPrediction(draws[:, None] * people)

    def predict_pixels(self, x, coords):
        return Prediction("exp", np.zeros(x.shape[0]), np.full(x.shape[0], 0.04), self.rate)


class Counter:
    """A fitting function that remembers on what it was called, and may break down."""

    def __init__(self, store, break_at=None):
        self.store, self.break_at, self.trained = store, break_at, []

    def __call__(self, train, checkpoint, progress):
        checkpoint.mkdir(exist_ok=True)
        if len(self.trained) == self.break_at:
            raise KeyboardInterrupt
        self.trained.append(train.copy())
        return Flat(self.store, train)


def run(world, fit, directory, fold, fingerprint="f", **options):
    return cross_validate(
        fold, CountPredictor(world.store, 40, 0), fit, directory, fingerprint, **options
    )


FOLD = np.arange(12) % 3


def test_each_area_is_predicted_once_by_a_model_that_never_saw_it(world, tmp_path):
    fit = Counter(world.store)
    draws, fold_of = run(world, fit, tmp_path, FOLD)
    assert sorted(draws.bag.tolist()) == list(range(12))
    np.testing.assert_array_equal(fold_of, FOLD[draws.bag])
    for number, train in enumerate(fit.trained):
        np.testing.assert_array_equal(train, number != FOLD)
        rate = Flat(world.store, train).rate
        held_out = draws.select(fold_of == number)
        found = held_out.expected.mean(axis=0) / held_out.people / rate
        np.testing.assert_allclose(found, 1, atol=0.1)
    np.testing.assert_array_equal(draws.y, world.store.y[draws.bag])
    np.testing.assert_allclose(draws.people, world.store.bag_weight[draws.bag])


def test_areas_without_a_fold_train_always_and_are_never_predicted(world, tmp_path):
    fold = np.where(np.arange(12) < 4, -1, FOLD)
    fit = Counter(world.store)
    draws, _ = run(world, fit, tmp_path, fold)
    assert sorted(draws.bag.tolist()) == list(range(4, 12))
    assert all(train[:4].all() for train in fit.trained)


def test_an_interrupted_evaluation_goes_on_where_it_stopped(world, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(world, Counter(world.store, break_at=2), tmp_path, FOLD)
    again = Counter(world.store)
    draws, _ = run(world, again, tmp_path, FOLD)
    assert len(again.trained) == 1
    whole, _ = run(world, Counter(world.store), tmp_path / "new", FOLD)
    np.testing.assert_array_equal(draws.counts, whole.counts)
    assert not list(tmp_path.glob("*.checkpoint"))


def test_other_data_or_folds_are_never_taken_for_these(world, tmp_path):
    run(world, Counter(world.store), tmp_path, FOLD)
    (tmp_path / "fold-0-of-an-older-model.checkpoint").mkdir()
    for fold, fingerprint in ((FOLD, "other"), (np.roll(FOLD, 1), "other")):
        fit = Counter(world.store)
        run(world, fit, tmp_path, fold, fingerprint)
        assert len(fit.trained) == 3
    assert len(list(tmp_path.iterdir())) == 3


# -- the truth


def test_scores_of_pixels_by_a_second_route(world):
    report = compare_with_truth(
        world.model, world.store, RasterSource(world.directory / "truth.tif"), [0.9], one_rate=0.06
    )
    rows = world.store.read_rows(0, world.store.n_pix)
    truth = world.truth[world.grid.row_col(rows.pixel)]
    p = world.model.predict_pixels(rows.x, rows.coords)
    a, b = np.log(truth), np.log(p.mean)
    assert report["pixels"]["log_rate"]["correlation"] == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert report["people"]["log_rate"]["rmse"] == pytest.approx(
        np.sqrt(np.average((a - b) ** 2, weights=rows.weight))
    )
    inside = (p.quantile(0.05) <= truth) & (truth <= p.quantile(0.95))
    assert report["pixels"]["coverage"]["0.9"] == pytest.approx(inside.mean())
    people = np.average(inside, weights=rows.weight)
    assert report["people"]["coverage"]["0.9"] == pytest.approx(people)
    inner = [each - np.repeat(np.add.reduceat(each, world.store.offsets[:-1]) / world.store.sizes,
                              world.store.sizes) for each in (a, b)]  # fmt: skip
    within = report["pixels"]["within_areas"]["correlation"]
    assert within == pytest.approx(np.corrcoef(*inner)[0, 1])
    rate = np.repeat(world.store.y / world.store.bag_weight, world.store.sizes)
    observed = report["pixels"]["observed_rate"]["log_rate"]["rmse"]
    assert observed == pytest.approx(np.sqrt(np.mean((a - np.log(rate)) ** 2)))
    one = report["people"]["one_rate"]
    assert one["rate"]["mae"] == pytest.approx(
        np.average(np.abs(truth - 0.06), weights=rows.weight)
    )
    assert one["log_rate"]["rmse"] == pytest.approx(
        np.sqrt(np.average((a - np.log(0.06)) ** 2, weights=rows.weight))
    )
    assert np.isnan(one["rate"]["correlation"])


def test_the_observed_rate_of_a_survey_is_that_of_the_tested(world):
    class Surveyed:
        def __init__(self, store):
            self.store = store

        def __getattr__(self, name):
            return getattr(self.store, name)

        def read_block(self, number):
            block = self.store.read_block(number)
            return replace(block, trials=block.y / 0.25)

    source = RasterSource(world.directory / "truth.tif")
    store = Surveyed(world.store)
    flat = compare_with_truth(world.model, store, source, [0.9])["pixels"]["observed_rate"]
    rows = world.store.read_rows(0, world.store.n_pix)
    truth = world.truth[world.grid.row_col(rows.pixel)]
    assert flat["rate"]["bias"] == pytest.approx((0.25 - truth).mean())


def test_areas_without_a_case_are_among_the_observed_rates(world):
    """As among the map's: of their logarithm half a case stands for none."""
    y = np.where(np.arange(world.store.n_bag) % 3 == 0, 0.0, world.store.y)
    store = world.store.with_responses(y)
    source = RasterSource(world.directory / "truth.tif")
    flat = compare_with_truth(world.model, store, source, [0.9])["pixels"]["observed_rate"]
    rows = store.read_rows(0, store.n_pix)
    truth = world.truth[world.grid.row_col(rows.pixel)]
    rate = np.repeat(y / store.bag_weight, store.sizes)
    assert flat["rate"]["rmse"] == pytest.approx(np.sqrt(np.mean((rate - truth) ** 2)))
    of_log = np.log(np.repeat(np.maximum(y, 0.5) / store.bag_weight, store.sizes))
    error = np.sqrt(np.mean((of_log - np.log(truth)) ** 2))
    assert flat["log_rate"]["rmse"] == pytest.approx(error)


# -- the stage


def spied(patch):
    """Return the list of what the engine is given to train on."""
    trained = []

    def spy(model, store, client=None, *, bags, **options):
        trained.append(bags)
        return fit(model, store, client, bags=bags, **options)

    fit = fold_fits.fit_model
    patch.setattr(fold_fits, "fit_model", spy)
    patch.setattr(fold_fits, "shares", lambda *_: 1)  # this process sees them
    return trained


@pytest.fixture
def config(world, tmp_path):
    """Return a configuration whose output directory is a copy."""
    shutil.copytree(world.directory / "out", tmp_path / "out")
    return world.with_config(
        output={"dir": str(tmp_path / "out")},
        evaluate={"leave_out": "refit", "calibration": "none"},
        truth={"path": str(world.directory / "truth.tif")},
    )


@pytest.mark.ci
def test_the_stage_writes_a_report_and_its_second_run_fits_nothing(
    config, world, tmp_path, monkeypatch
):
    fits, said, progress = spied(monkeypatch), [], Silent()
    progress.log = said.append
    summary = evaluate_stage(StageContext(config, progress))
    assert len(fits) == 6  # three folds each of two schemes
    text = (tmp_path / "out" / "evaluation.json").read_text()
    report = json.loads(text)
    assert set(report["held_out"]) == {"area", "block"}
    for held_out in report["held_out"].values():
        assert held_out["model"]["n_areas"] == held_out["constant"]["n_areas"] == 12
        assert sum(fold["n_areas"] for fold in held_out["by_fold"]) == 12
        assert set(held_out["model"]["intervals"]) == {"0.5", "0.8", "0.9", "0.95"}
    assert report["truth"]["pixels"]["log_rate"]["correlation"] > 0.5
    assert summary["area_nll"] == report["held_out"]["area"]["model"]["nll"]
    assert next(iter(report)) == "better_than_constant"
    first = report["better_than_constant"]["sentence"]
    assert said[0].splitlines()[0] == first
    assert first.startswith("better than one rate for the whole country: by area ")
    for scheme, held_out in report["held_out"].items():
        gain = report["better_than_constant"][scheme]
        nll = held_out["constant"]["nll"] - held_out["model"]["nll"]
        assert gain["gain"] == pytest.approx(nll)
        assert gain["answer"] == summary[f"{scheme}_better_than_constant"]
        assert gain["n_groups"] == (12 if scheme == "area" else 3)
    assert "held out" in said[0]
    assert "NLL per area" in said[0]

    # Blocks are regions, and random folds are not.
    row, col = world.grid.row_col(world.store.read_rows(0, world.store.n_pix).pixel)
    centre = np.add.reduceat(np.column_stack([row, col]), world.store.offsets[:-1], axis=0)
    centre = centre / np.diff(world.store.offsets)[:, None]

    def spread(train):
        return np.linalg.norm(centre[~train] - centre[~train].mean(axis=0), axis=1).mean()

    assert np.mean([spread(t) for t in fits[3:]]) < np.mean([spread(t) for t in fits[:3]])

    evaluate_stage(StageContext(config))
    assert len(fits) == 6
    assert (tmp_path / "out" / "evaluation.json").read_text() == text

    # Folds at the same time, in processes of their own, give the same bits.
    shutil.rmtree(tmp_path / "out/work/evaluate")
    monkeypatch.setattr(fold_fits, "shares", lambda *_: 2)
    evaluate_stage(StageContext(config))
    assert len(fits) == 6
    assert (tmp_path / "out" / "evaluation.json").read_text() == text


@pytest.mark.ci
def test_folds_of_the_default_model_are_regressed(world, tmp_path, monkeypatch):
    """They are of the fit's own evidence; a second run, and processes, give the same bits."""
    shutil.copytree(world.directory / "out", tmp_path / "out")
    config = world.with_config(
        output={"dir": str(tmp_path / "out")},
        evaluate={"folds": 3, "calibration": "none"},
        model={"kernel": "ridge + matern32(space)", "priors": "weak"},
    )
    model = VBAgg(kernel="ridge + matern32(space)", link="exp", area_effect=True)
    fit_model(model, world.store)
    model.save(tmp_path / "out/work/model")
    fits, texts = spied(monkeypatch), []
    for at_once in (1, 2):
        monkeypatch.setattr(fold_fits, "shares", lambda *_, n=at_once: n)
        evaluate_stage(StageContext(config))
        texts.append((tmp_path / "out/evaluation.json").read_text())
        shutil.rmtree(tmp_path / "out/work/evaluate")
    assert fits == []
    assert texts[0] == texts[1]
    held_out = json.loads(texts[0])["held_out"]
    assert {scheme["fits"] for scheme in held_out.values()} == {"regression"}
    how = [fold["how"] for fold in held_out["block"]["by_fold"]]
    assert set(how) <= {"regression", "weights"}
    assert "regression" in how
    said = render_report(json.loads(texts[0]))
    n = how.count("regression")
    assert f"{n} by {'regression' if n == 1 else 'regressions'} between the others" in said


def test_a_folds_file_decides_who_is_held_out_together(config, world, tmp_path, monkeypatch):
    fits = spied(monkeypatch)
    lines = [f"{area},{'ab'[int(area) % 2]}" for area in world.store.ids]
    (tmp_path / "folds.csv").write_text("\n".join(["code,part", *lines]))
    path = {"path": str(tmp_path / "folds.csv"), "id": "code", "fold": "part"}
    dump = config.model_dump(mode="json")
    # leave_out: auto
    dump["evaluate"] = {"folds": path, "schemes": ["area"], "calibration": "none"}
    dump["truth"] = None
    evaluate_stage(StageContext(type(config).model_validate(dump)))
    odd = np.array([int(area) % 2 == 1 for area in world.store.ids])
    assert len(fits) == 2
    np.testing.assert_array_equal(fits[0], odd)
    report = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert "truth" not in report
    assert "-" in render_report(report)
