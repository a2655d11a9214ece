"""One rate for the country: each likelihood's own, from the training areas alone."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from models.likelihoods.area_effect import AreaEffect
from models.likelihoods.poisson import Poisson
from models.likelihoods.registry import LIKELIHOODS, find_likelihood
from pipeline.core.json_values import jsonable
from pipeline.evaluation.constant import Areas, hold_out_constant, hold_out_share
from pipeline.evaluation.scores import moment_log_density
from pipeline.evaluation.tasks import score

FOLD = np.arange(12) % 3


def areas(y, people, tested=None, noise=None):
    y, people = np.asarray(y, float), np.asarray(people, float)
    tested = np.full(y.shape, np.nan) if tested is None else np.asarray(tested, float)
    return Areas(y, people, tested, np.ones(y.shape) if noise is None else noise)


def test_the_constant_knows_the_training_areas_alone(world):
    own = Areas.of(world.store, Poisson())
    draws = hold_out_constant(Poisson(), own, FOLD, 4000, 0)
    np.testing.assert_array_equal(draws.bag, np.argsort(FOLD, kind="stable"))
    first = draws.select(FOLD[draws.bag] == 0)
    one = own.fit(Poisson(), FOLD != 0)
    np.testing.assert_allclose(first.mean, one.rate * world.store.bag_weight[FOLD == 0])
    np.testing.assert_allclose(first.counts.mean(axis=0), first.mean, rtol=0.05)
    by_moments = moment_log_density(first.y, first.expected)
    np.testing.assert_allclose(by_moments, first.log_density, atol=0.2)
    changed = own.y.copy()
    changed[FOLD == 0] *= 7
    other = areas(changed, own.people)
    again = hold_out_constant(Poisson(), other, FOLD, 50, 0).select(FOLD[draws.bag] == 0)
    np.testing.assert_array_equal(again.mean, first.mean)


@pytest.mark.parametrize("name", list(LIKELIHOODS))
@pytest.mark.parametrize("y", [np.zeros(6), np.full(6, 4.0), np.array([0, 0, 0, 0, 0, 9.0])])
def test_constant_and_zero_responses_have_scores(name, y):
    likelihood = LIKELIHOODS[name]
    tested = np.full(6, 9.0) if likelihood.needs_trials else None
    own = areas(y + (0.1 if name in ("exponential", "gamma") else 0.0), np.full(6, 100.0), tested)
    draws = hold_out_constant(likelihood, own, np.arange(6) % 2, 50, 0)
    report = jsonable(score(draws, [0.9], counts=likelihood.counts))
    json.dumps(report, allow_nan=False)
    assert report["nll"] is not None
    assert report["n_impossible"] == 0


@pytest.mark.parametrize("name", list(LIKELIHOODS))
def test_areas_without_exposure_neither_teach_nor_fail(name):
    rng = np.random.default_rng(3)
    likelihood = LIKELIHOODS[name]
    people, tested = np.full(12, 500.0), np.full(12, 60.0)
    y = rng.integers(5, 40, 12).astype(float)
    exposure = tested if likelihood.needs_trials else people
    exposure[:4] = 0
    y[:4] = 0
    own = areas(y, people, tested if likelihood.needs_trials else None)
    draws = hold_out_constant(likelihood, own, FOLD, 30, 0)
    without = hold_out_constant(
        likelihood,
        areas(y[4:], people[4:], tested[4:] if likelihood.needs_trials else None),
        FOLD[4:],
        30,
        0,
    )
    empty = draws.bag < 4
    assert (draws.log_density[empty] == 0).all()
    assert (draws.counts[:, empty] == 0).all()
    np.testing.assert_allclose(draws.log_density[~empty], without.log_density, rtol=1e-9)


def test_positives_are_measured_by_the_tested_and_not_by_the_people():
    rng = np.random.default_rng(0)
    tested = rng.integers(50, 400, 12).astype(float)
    y = rng.binomial(tested.astype(int), 0.3).astype(float)
    found = [
        hold_out_constant(
            find_likelihood("binomial"), areas(y, people, tested, tested), FOLD, 40, 0
        )
        for people in (rng.uniform(1e4, 1e6, 12), np.full(12, 5.0))
    ]
    np.testing.assert_array_equal(found[0].log_density, found[1].log_density)
    np.testing.assert_allclose(found[0].mean / tested[found[0].bag], 0.3, atol=0.03)
    assert found[0].people.max() > 1e4
    np.testing.assert_array_equal(found[0].tested, tested[found[0].bag])


def test_an_area_effect_changes_nothing_of_a_law_that_has_a_spread(world):
    own = Areas.of(world.store, Poisson())
    plain = hold_out_constant(Poisson(), own, FOLD, 5, 0)
    effect = hold_out_constant(AreaEffect(Poisson()), own, FOLD, 5, 0)
    np.testing.assert_array_equal(plain.log_density, effect.log_density)


def test_the_normal_noise_of_an_area_is_read_from_its_pixels(world):
    own = Areas.of(world.store, find_likelihood("normal"))
    rows = world.store.read_rows(0, world.store.n_pix)
    squares = np.add.reduceat(np.asarray(rows.weight, float) ** 2, world.store.offsets[:-1])
    np.testing.assert_allclose(own.noise, squares)


def test_a_likelihood_without_noise_of_its_own_reads_no_pixel(world):
    store = SimpleNamespace(bag_weight=np.ones(3), y=np.ones(3), margin=None)  # no blocks
    np.testing.assert_array_equal(Areas.of(store, Poisson()).noise, 1)


def test_labels_are_held_out_against_the_share_of_the_others():
    y = np.array([1, 1, 0, 0, 0, 1.0])
    fold = np.array([0, 0, 1, 1, -1, -1])
    found = hold_out_share(fold, y)
    np.testing.assert_array_equal(found.bag, [0, 1, 2, 3])
    np.testing.assert_allclose(found.probability, [1.5 / 5] * 2 + [3.5 / 5] * 2)


def test_noise_of_two_kinds_is_held_out_and_drawn_from(world):
    """Of each area two numbers: its pixels' squared weights, and its own, squared."""
    law = find_likelihood("normal", area_effect=True)
    own = Areas.of(world.store, law)
    rows = world.store.read_rows(0, world.store.n_pix)
    weight = np.asarray(rows.weight, float)
    first = world.store.offsets[:-1]
    squares, total = (np.add.reduceat(weight**2, first), np.add.reduceat(weight, first))
    np.testing.assert_allclose(own.noise, [squares, total**2])
    alone = Areas.of(world.store, find_likelihood("normal"))
    found = hold_out_constant(law, own, FOLD, 20, 0)
    before = hold_out_constant(find_likelihood("normal"), alone, FOLD, 20, 0)
    np.testing.assert_array_equal(found.log_density, before.log_density)
    np.testing.assert_array_equal(found.counts, before.counts)
