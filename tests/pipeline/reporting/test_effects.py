"""Effects in words under every link, against sentences whose numbers are computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from models.aggregate.effects import Effect
from models.likelihoods.links import LINKS
from models.likelihoods.registry import LIKELIHOODS
from pipeline.reporting.effects import effects
from pipeline.responses.registry import response_of
from pipeline.responses.response import Given
from pipeline.training.effects import told


def _response(likelihood, rate_per, **given):
    return response_of(Given("counts", "n", LIKELIHOODS[likelihood], rate_per=rate_per, **given))


RATE = _response("poisson", 1000)
PREVALENCE = _response("binomial", 100, tested="m")
VALUE = _response("normal", 1, weight="ha", unit="t/ha")
EVEN = norm.ppf((np.arange(100_000) + 0.5) / 100_000)  # as many normal draws, without chance
Z = norm.ppf([0.05, 0.5, 0.95])


def _line(link, level, slope, sd, base=1.0, **given):
    """A straight effect: ``f = level`` at the mean, ``level + slope`` a deviation above."""
    f = np.stack([np.full(EVEN.size, level), level + slope + sd * EVEN], axis=1)
    found = LINKS[link]
    fields = dict(column=0, at=np.array([2.0, 5.0]), percentiles=False, linear=True)
    fields |= dict(beside=frozenset(), rate=base * found.value(f))
    fields |= dict(relative=found.relative, everywhere=found.level_free)
    return Effect(**{**fields, **given})


def _said(effect, words=RATE, slope=None, transform="none"):
    fit = {"effects": {"rain": told(effect, ("rain", "heat", "east", "north"), transform)}}
    if slope is not None:
        fit["coefficients"] = {"rain": {"mean": slope, "sd": 0.1}}
    (row,) = effects(fit, words)
    return row


def _percents(change):
    """The three changes in words: size, and signed ends."""
    low, mid, high = (
        ("+" if value >= 0 else "\u2212") + f"{100 * abs(value):.3g} %" for value in sorted(change)
    )
    return mid[1:], low, high


def test_exp_is_a_share_of_the_rate_and_every_link_has_words():
    assert all(_said(_line(link, 0.5, 0.2, 0.1)).meaning for link in LINKS)
    row = _said(_line("exp", 0.4, math.log(1.6), 0.1, base=0.02), slope=math.log(1.6))
    size, low, high = _percents(1.6 * np.exp(0.1 * Z) - 1)
    assert row.meaning == (
        f"Where rain is one standard deviation larger, the rate is about {size} higher "
        f"({low} to {high}), all else equal."
    )
    assert (row.estimate, row.interval) == ("0.47", "0.306 to 0.634")


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_square_is_a_share_of_the_rate_at_the_mean_level_whatever_the_sign_of_f(sign):
    row = _said(_line("square", sign * 1.2, sign * -0.31, 0.05, base=0.02))
    size, low, high = _percents(((1.2 - 0.31 + 0.05 * Z) / 1.2) ** 2 - 1)
    before, after = 1000 * 0.02 * 1.2**2, 1000 * 0.02 * 0.89**2
    assert row.meaning == (
        "Where rain is one standard deviation above its mean (5 instead of 2), the rate is about "
        f"{size} lower ({low} to {high}): {after:.3g} instead of {before:.3g} cases per 1,000 "
        "people, with all other covariates at their means, on average over places."
    )


def test_identity_is_a_difference_in_the_unit():
    row = _said(_line("identity", 2.0, -0.02, 0.05, base=3.0), VALUE)
    low, mid, high = 3.0 * (-0.02 + 0.05 * Z)
    assert row.meaning == (
        f"Where rain is one standard deviation larger, the value is about {abs(mid):.3g} t/ha "
        f"lower (\u2212{abs(low):.3g} to +{high:.3g}), all else equal. The interval includes no "
        "change."
    )


def test_probit_is_a_difference_of_probabilities_at_the_mean_level():
    row = _said(_line("probit", -1.0, 0.4, 0.1), PREVALENCE)
    low, mid, high = 100 * (norm.cdf(-1 + 0.4 + 0.1 * Z) - norm.cdf(-1))
    before, after = 100 * norm.cdf([-1, -0.6])
    assert row.meaning == (
        "Where rain is one standard deviation above its mean (5 instead of 2), the prevalence is "
        f"about {mid:.3g} positives per 100 tested higher (+{low:.3g} to +{high:.3g}): "
        f"{after:.3g} instead of {before:.3g} positives per 100 tested, with all other covariates "
        "at their means, on average over places."
    )


def _bent(middle, **given):
    f = np.stack([0.1 * EVEN, middle + 0.1 * EVEN[::-1], 0.5 + 0.1 * EVEN], axis=1)
    at = np.log1p([9.0, 19.0, 39.0])
    fields = {"at": at, "percentiles": True, "linear": False, "rate": np.exp(f)}
    return _line("exp", 0.0, 0.0, 0.0, **{**fields, **given})


def test_a_smooth_is_told_by_its_percentiles_and_its_slope_by_no_word():
    row = _said(_bent(0.2), slope=0.1, transform="log1p")
    size = f"{100 * math.expm1(0.5):.3g} %"
    assert row.meaning == (
        f"Where rain is at its 90th percentile (39) instead of its 10th (9), the rate is about "
        f"{size} higher (+{size} to +{size}), all else equal."
    )
    assert row.estimate == "0.1"


def test_an_effect_that_turns_in_the_middle_is_told():
    assert "median" not in _said(_bent(0.2)).meaning
    assert "At its median the rate is higher than at both." in _said(_bent(1.5)).meaning
    assert "At its median the rate is lower than at both." in _said(_bent(-1.5)).meaning
    # As likely as not: nothing is said.
    assert "median" not in _said(_bent(0.5)).meaning


@pytest.mark.parametrize(
    ("beside", "words"),
    [({1}, "heat"), ({1, 2, 3}, "heat and places"), ({2, 3}, "places")],
)
def test_interactions_are_named_and_all_else_is_not_said_to_be_equal(beside, words):
    row = _said(_bent(0.2, beside=frozenset(beside), everywhere=False, varies=0.1))
    assert f" Its effect differs with {words}." in row.meaning
    assert "with all other covariates at their means, on average over places" in row.meaning
    assert "all else equal" not in row.meaning


def test_interactions_that_change_little_are_not_named():
    # The effect is 65 %: a tenth of it is.
    for varies, named in ((0.06, False), (0.07, True)):
        row = _said(_bent(0.2, beside=frozenset({1}), everywhere=False, varies=varies))
        assert ("differs with heat" in row.meaning) == named
        assert "all else equal" not in row.meaning
    flat = _bent(0.0, beside=frozenset({1}), everywhere=False, rate=np.ones((10, 3)))
    for varies, named in ((0.019, False), (0.021, True)):
        row = _said(replace(flat, varies=varies))
        assert ("differs with heat" in row.meaning) == named


def test_a_trend_of_places_is_no_effect_of_them_and_a_record_without_effects_claims_nothing():
    fit = {"coefficients": {"north": {"mean": 0.2, "sd": 0.1}}, "effects": {}}
    (row,) = effects(fit, RATE)
    assert "other parts of the kernel may follow them too" in row.meaning
    assert "all else equal" not in row.meaning
    (row,) = effects({"coefficients": {"rain": {"mean": 0.2, "sd": 0.1}}}, RATE)
    assert (row.estimate, row.meaning) == ("0.2", "")
    assert effects({}, RATE) == []


def test_a_covariate_that_moves_is_said_with_its_period():
    effect = _line("exp", 0.4, math.log(1.6), 0.1, base=0.02, percentiles=True)
    fit = {"effects": {"rain": told(effect, ("rain", "heat", "east", "north"), "none")}}
    (row,) = effects(fit, RATE, ["rain"], "2023-08")
    assert row.meaning.startswith("Where rain in 2023-08 is at its 90th percentile (5) instead")
    (row,) = effects(fit, RATE, ["heat"], "2023-08")
    assert row.meaning.startswith("Where rain is at its 90th")
