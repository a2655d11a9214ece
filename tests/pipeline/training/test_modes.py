"""The sentence about overdispersion, from modes of every kind."""

from __future__ import annotations

import pytest

from pipeline.reporting.words import cautions
from pipeline.training.modes import KEY, NOISE, SHORT, WIDE, overdispersion


def _mode(explains, weight, area_sd=0.46, range_km=11.3, field_sd=0.43):
    return {
        "explains": explains,
        "weight": weight,
        "area_sd": area_sd,
        "range_km": range_km,
        "field_sd": field_sd,
    }


def test_no_modes_no_sentence():
    assert overdispersion([], "exp") == {}


@pytest.mark.parametrize("modes", [[_mode(NOISE, 1.0)], [_mode(SHORT, 0.05), _mode(NOISE, 0.95)]])
def test_noise_between_areas(modes):
    found = overdispersion(modes, "exp")
    assert found["decided"]
    assert found["modes"] == modes[::-1]  # the likeliest first
    # e^.46 = 1.584
    assert found["sentence"] == (
        "The counts vary between areas by more than chance: noise between areas, deviation 0.46 "
        "(a factor of about 1.6)."
    )


def test_a_field_shorter_than_an_area():
    modes = [_mode(SHORT, 0.92, area_sd=0.02), _mode(NOISE, 0.08)]
    # e^.43 = 1.537
    assert overdispersion(modes, "exp", "positives")["sentence"] == (
        "The positives vary between areas by more than chance: a rate that varies within short "
        "distances, about 11 km, less than the width of a typical area, deviation 0.43 (a factor "
        "of about 1.5). Where inside an area it is high, its positives hardly tell."
    )
    # Under the square link a deviation of f is no factor of the rate.
    assert "factor" not in overdispersion(modes, "square")["sentence"]


@pytest.mark.parametrize("order", [1, -1])
def test_modes_that_share_the_weight_are_told_apart_by_nobody(order):
    modes = [_mode(NOISE, 0.64), _mode(SHORT, 0.36)][::order]
    found = overdispersion(modes, "exp")
    assert not found["decided"]
    assert found["sentence"].startswith(
        "The counts cannot tell noise between areas (weight 64 %) from a rate that varies within "
        "short distances (36 %); intervals hold both."
    )
    # Of the report: what one of them explains is no reason for care.
    assert found["sentence"] in cautions({}, {KEY: found}, None, "one rate", technical=False)
    sure = overdispersion([_mode(NOISE, 1.0)], "exp")
    assert cautions({}, {KEY: sure}, None, "one rate") == []


def test_a_wide_field_is_no_overdispersion():
    found = overdispersion(
        [_mode(WIDE, 0.96, area_sd=0.05, range_km=42.0), _mode(NOISE, 0.04)], "exp"
    )
    assert found["sentence"] == (
        "The counts of neighbouring areas differ as a rate does that varies over distances of "
        "about 42 km, wider than a typical area; noise between areas has a deviation of 0.05."
    )
    three = overdispersion([_mode(WIDE, 0.5), _mode(NOISE, 0.3), _mode(SHORT, 0.2)], "exp")
    assert "(weight 50 %) from noise between areas (30 %) from a rate" in three["sentence"]
    assert "intervals hold all" in three["sentence"]


def test_noise_that_is_no_noise_is_not_called_more_than_chance():
    found = overdispersion([_mode(NOISE, 1.0, area_sd=0.012)], "exp")
    assert "hardly more than chance" in found["sentence"]
    assert "0.012" in found["sentence"]


def test_no_figure_has_an_exponent():
    told = overdispersion([_mode(WIDE, 1.0, area_sd=0.0163, range_km=1329.6)], "exp")
    assert "of about 1,300 km," in told["sentence"]
    assert told["sentence"].endswith("a deviation of 0.016.")
