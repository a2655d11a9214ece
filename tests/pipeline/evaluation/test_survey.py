"""A survey whose map loses to the national mean by region is not scored as a win, nor published."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import expit

from models.likelihoods.negative_binomial import CountRate
from pipeline.config.context import StageContext
from pipeline.core.progress import Silent
from pipeline.evaluation.folds import area_centres
from pipeline.evaluation.held_out import folds_of
from pipeline.evaluation.leave_out import leave_each_out
from pipeline.evaluation.stage import evaluate_stage
from pipeline.evaluation.tasks import score
from pipeline.products.areas import draw_areas, tabulate_areas
from pipeline.publishing.gates import check_gates
from tests.pipeline.evaluation.survey import simulate_survey

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def survey(tmp_path_factory):
    # Of ten seeds the map loses by region on nine; on this one its regions agree.
    return simulate_survey(tmp_path_factory.mktemp("survey"), seed=6)


@pytest.fixture(scope="module")
def evaluated(survey):
    """Return the report and what the stage said."""
    said = []
    progress = Silent()
    progress.log = said.append
    evaluate_stage(StageContext(survey.config, progress))
    report = json.loads((survey.config.output.dir / "evaluation.json").read_text())
    return report, "\n".join(said)


def by_fold(survey, scheme, score):
    """Score each fold by what ``score(train, held_out)`` says of its areas, in the fold's order."""
    fold = folds_of(survey.config, survey.store, scheme, lambda: area_centres(survey.store))
    return [score(fold != k, fold == k) for k in range(int(fold.max()) + 1)]


@pytest.mark.parametrize("scheme", ["area", "block"])
def test_the_constant_is_scipys_beta_binomial_of_the_tested(survey, evaluated, scheme):
    y, n = survey.store.y, survey.store.trials

    def held_out(train, test):
        def law(p, of):
            a, b = np.exp(p[1]) * expit(p[0]), np.exp(p[1]) * expit(-p[0])
            return stats.betabinom.logpmf(y[of], n[of], a, b)

        found = minimize(lambda p: -law(p, train).sum(), [-1.0, 2.0], method="BFGS")
        return law(found.x, test)

    theirs = np.concatenate(by_fold(survey, scheme, held_out))
    own = evaluated[0]["held_out"][scheme]["constant"]
    assert own["nll"] == pytest.approx(-theirs.mean(), abs=1e-4)


def test_the_national_mean_wins_by_region_where_the_population_said_it_lost(survey, evaluated):
    report, said = evaluated
    held_out, verdict = report["held_out"]["block"], report["better_than_constant"]
    assert verdict["block"]["answer"] == "no"
    # The regions differ by more than the covariates say.
    assert verdict["block"]["gain"] < -0.2
    assert verdict["block"]["n_groups"] == 4
    assert said.splitlines()[0] == verdict["sentence"]
    assert "by region no (-" in said.splitlines()[0]

    def per_person(train, test):  # what the constant was: counts of the population
        one = CountRate.fit(survey.store.y[train], survey.store.bag_weight[train])
        return one.log_density(
            survey.store.y[test], survey.store.bag_weight[test], np.ones(test.sum())
        )

    before = -np.concatenate(by_fold(survey, "block", per_person)).mean()
    assert before - held_out["model"]["nll"] > 0.5


def test_the_gates_hold_the_map_back_unless_told_not_to(survey, evaluated):
    checks = {each.gate: each for each in check_gates(survey.config, None)}
    region = checks["better than a constant by region"]
    assert not region.passed
    assert region.value == evaluated[0]["better_than_constant"]["block"]["gain"]
    assert "yes or unclear is required" in region.reason
    area = checks["better than a constant by area"]
    assert area.reason.startswith(f"{area.gate}: unclear, the gain")
    dump = survey.config.model_dump(mode="json")
    for asked, failed in ((False, []), (["block"], [region.gate]), (["area"], [area.gate])):
        config = type(survey.config).model_validate(
            {**dump, "gates": {"better_than_constant": asked}}
        )
        found = check_gates(config, None)
        assert [each.gate for each in found if not each.passed] == failed


def test_people_and_tested_are_two_columns(survey, evaluated):
    import models

    model = models.load(survey.config.output.dir / "work" / "model")
    table = tabulate_areas(
        draw_areas(model, survey.store, 50, 0), list(survey.store.ids), 0.9, 1000.0
    )
    order = table.index.astype(int)
    np.testing.assert_allclose(table["people"], survey.people[order], rtol=1e-6)
    np.testing.assert_array_equal(table["tested"], survey.tested[order])
    rate = 1000 * survey.positive / survey.tested
    np.testing.assert_allclose(table["observed_rate"], rate[order])
    assert table["fitted_rate"].between(100, 700).all()
    scores = evaluated[0]["in_sample"]
    assert "poisson_deviance" not in scores
    people = scores["by_people"]["rates"]
    assert 0 < people["mae"] < people["rmse"] < 0.1


def test_areas_left_out_by_weights_are_those_of_the_draws(survey):
    import models

    model = models.load(survey.config.output.dir / "work" / "model")
    left = leave_each_out(model, survey.store, 200, 0)
    drawn = draw_areas(model, survey.store, 200, 0)
    for name in ("y", "people", "tested", "exposure"):
        np.testing.assert_array_equal(getattr(left, name), getattr(drawn, name), name)
    scores = score(left, [0.9])
    assert "poisson_deviance" not in scores
    assert "nll_moments" not in scores
    weight = survey.people[np.array(survey.store.ids, int)]
    assert scores["by_people"]["nll"] == pytest.approx(
        -np.average(left.log_density, weights=weight), rel=1e-5
    )
