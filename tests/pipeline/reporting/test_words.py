"""What findings become in words."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from models.likelihoods.area_effect import AreaEffect
from models.likelihoods.registry import LIKELIHOODS, find_likelihood
from models.temporal.time_text import auto_text, parse_space_time
from pipeline.reporting.in_time import PartsInTime
from pipeline.reporting.tables import name_column
from pipeline.reporting.words import answers, cautions, hyperparameters, influence, number
from pipeline.store.balance import balance_rows

GAIN = {"answer": "unclear", "better": True, "gain": 0.2, "interval": [-0.1, 0.5]}
GAIN |= {"share_better": 0.6, "n_areas": 50}


def test_answers_say_what_was_hidden_and_what_an_interval_over_zero_means():
    skipped = {"answer": "not measured", "better": None, "reason": "block was not held out"}
    evaluation = {"better_than_constant": {"area": GAIN, "block": skipped}}
    area, block = answers(evaluation, "counts", "one rate")
    assert (area.question, area.answer) == ("By area", "unclear")
    assert "ahead in 60 % of 50 areas" in area.text
    # A ratio of probabilities: readers of a first screen know no nats.
    assert "gave them 1.22 times the probability of one rate" in area.text
    assert "90 % interval 0.905 to 1.65" in area.text
    assert "includes 1:" in area.text
    assert "nats" not in area.text
    assert block.text == "Not measured: block was not held out."
    said = cautions(evaluation, {}, None, "one rate")
    assert said[0] == "By area, it is not clear that the map is better than one rate."
    assert answers(None, "counts", "one rate") == []


@pytest.mark.parametrize(("covered", "warned"), [(0.9, False), (0.86, False), (0.7, True)])
def test_intervals_that_cover_too_little_are_a_caution(covered, warned):
    scores = {"n_areas": 100, "intervals": {"0.9": {"coverage": covered}}}
    said = cautions({"held_out": {"area": {"model": scores}}}, {}, None, "one rate")
    assert any("cover only 70 %" in each for each in said) == warned


def test_what_was_left_out_is_a_caution_from_half_a_per_cent():
    balance = {
        "unit": "people",
        "people": {"inside_areas": 1000.0, "no_covariate": 4.0, "counted_twice": 6.0},
        "cases": {"unit": "cases", "given": 50.0, "left_out": 3.0},
        "areas": {"left_out": ["A"]},
    }
    said = cautions({}, {"converged": False}, balance, "one rate")
    assert [each.split()[0] for each in said] == ["The", "3", "Areas", "1"]


def test_counts_far_from_foreseen_ones_and_a_fit_that_is_due_are_cautions():
    far = ["A05 has 2,430, where 98 to 529 were foreseen"]
    fit = {"far": {"2024-06": far}, "refit": "few draws suit"}
    said = cautions({}, fit, None, "one rate")
    assert said[:2] == [
        "2024-06: A05 has 2,430, where 98 to 529 were foreseen. Look at this count.",
        "A new fit is due, for few draws suit. Until then rates and intervals of this map may be "
        "wrong: fit anew before you publish it.",
    ]


def test_people_without_a_label_are_in_areas_without_a_label():
    people = {"inside_areas": 1000.0, "without_counts": 30.0}
    cases = {"unit": "positives", "noun": "label"}
    balance = {"unit": "people", "people": people, "cases": cases}
    said = cautions({}, {}, balance, "one probability")
    assert said == ["3 % of the people are in areas without a label: predicted only."]
    words = [row[0] for row in balance_rows(balance)]
    assert "in areas without a label: predicted only" in words


def test_one_area_is_one():
    balance = {"unit": "people", "people": {}, "cases": {}, "areas": {"left_out": ["M03"]}}
    assert cautions({}, {}, balance, "one rate") == ["1 area is not in the fit: M03."]
    balance["areas"]["left_out"].append("M04")
    assert cautions({}, {}, balance, "one rate") == ["2 areas are not in the fit: M03, M04."]


def test_a_period_without_a_case_is_a_map_of_upper_limits():
    cases = {"unit": "cases", "given": 0.0}
    balance = {"unit": "people", "people": {}, "cases": cases}
    first = cautions(None, {}, balance, "one rate")[0]
    assert first.startswith("No area has any cases: the map tells how high rates may be")
    fitted = {"interval": 0.95, "expected_upper": 3.69}
    first = cautions(None, {}, {**balance, "cases": {**cases, "fitted": fitted}}, "one rate")[0]
    assert "3.69 cases expected in all are the upper end of the 95 % interval" in first
    some = cautions(None, {}, {**balance, "cases": {**cases, "given": 1.0}}, "one rate")
    assert not any("any cases" in each for each in some)


def test_the_area_effect_is_a_factor():
    """Of totals ``eta e^(sd z)``: by its own draws."""
    law = find_likelihood("poisson", area_effect=True)
    (row,) = hyperparameters({"hyperparameters": {"area_sd": 0.5}}, law)
    rng, eta = np.random.default_rng(0), np.full(200_000, 1e6)
    drawn = AreaEffect(LIKELIHOODS["poisson"]).draw(eta, {"log_area_sd": np.log(0.5)}, None, rng)
    factor = np.exp(np.log(drawn / 1e6).std())
    assert row.meaning == f"Areas differ beyond the map by a factor of about {number(1.65)}."
    assert factor == pytest.approx(1.65, abs=0.01)


def test_the_size_of_the_negative_binomial_is_a_factor_too():
    (row,) = hyperparameters({"hyperparameters": {"size": 4.0}}, LIKELIHOODS["negative_binomial"])
    assert row.meaning == f"Areas differ beyond the map by a factor of about {number(1.65)}."


def test_noise_in_the_units_of_values_is_told_whatever_its_size():
    fit = {"hyperparameters": {"noise": 4.4e6, "area_noise": 1516.0}}
    noise, areas = hyperparameters(fit, find_likelihood("normal", area_effect=True))
    assert noise.meaning == ""
    assert "differ by about 1,516 per unit" in areas.meaning
    (row,) = hyperparameters({"hyperparameters": {"size": 1e-7}}, LIKELIHOODS["negative_binomial"])
    assert "by a factor of about" in row.meaning


def test_length_scales_are_said_with_their_unit():
    fit = {
        "hyperparameters": {"matern32_space.lengthscale": 80.0, "rbf.lengthscale[rain]": 1.5},
        "hyperparameter_intervals": {
            "matern32_space.lengthscale": {"mean": 90.0, "lower": 60.0, "upper": 120.0}
        },
    }
    space, rain = hyperparameters(fit, None)
    assert (space.estimate, space.interval) == ("90", "60 to 120")
    assert "90 km" in space.meaning
    assert rain.interval == ""
    assert "1.5 standard deviations of rain" in rain.meaning


def test_intervals_that_miss_known_true_rates_are_a_caution():
    truth = {"pixels": {"coverage": {"0.9": 0.88}}, "people": {"coverage": {"0.9": 0.78}}}
    said = cautions({"truth": truth}, {}, None, "one rate")
    wanted = "The true rates are known here: 90 % intervals cover only 78 % of people's pixels."
    assert [each for each in said if "true rates" in each] == [wanted]


def test_influence_names_areas_and_groups():
    left = {"method": "weights", "limit": 0.7, "k_max": 1.2, "k_median": 0.1, "above": 2}
    left |= {"refitted": 1, "unreliable_areas": ["north <i>"]}
    by_fold = [{"fold": 0, "how": "refit", "n_areas": 15, "k": 1.2}]
    held = {"leave_out": left, "model": {"n_areas": 30}, "by_fold": by_fold}
    said, rows = influence({"held_out": {"block": held}})
    assert any("largest Pareto k is 1.2" in each for each in said)
    assert said[-1].endswith("north <i>.")
    assert rows == [
        {"Left out": "region group 1", "Areas": "15", "Pareto k": "1.2", "How": "a fit without it"}
    ]
    assert influence(None) == ([], [])


def test_areas_are_named_by_a_text_that_differs_for_all_and_numbers_have_three_digits():
    table = pd.DataFrame({"id": [1, 2], "region": ["a", "a"], "district": ["b", "c"], "n": [3, 4]})
    assert name_column(table, "id") == "district"
    assert name_column(table, "id", "id") == "id"
    more = table.assign(district_name=table["district"] + "!")
    assert name_column(more, "id") == "district_name"
    assert name_column(more, "district_name") == "district_name"
    assert name_column(table[["id", "region"]], "id") == "id"
    values = {0.01234: "0.0123", 48.0: "48", 999.4: "999", 1234.5: "1,234", -2.0: "−2", None: "–"}
    assert {value: number(value) for value in values} == values


def test_parts_of_a_series_say_whose_they_are_and_times_have_their_unit():
    parts = PartsInTime(parse_space_time(auto_text(0, placed=True, season=True)), "month")
    told = {
        "matern32_space.variance": "What neighbouring places share, alike in all months, varies",
        "matern12_space.variance": "What neighbouring places share, drifting in time, varies",
        "area.variance": "What each area has of its own, drifting in time, varies",
        "constant.variance": "The season that all areas share varies",
        "matern32_space_2.variance": "The season that neighbouring places share varies",
    }
    fit = {"hyperparameters": dict.fromkeys(told, 0.04)}
    rows = hyperparameters(fit, None, parts.meaning)
    assert {row.name: row.meaning for row in rows} == {
        name: f"{text} by about 0.2 before the link." for name, text in told.items()
    }
    names = ("time[0].matern12.scale", "time[1].matern12.scale")
    fit = {"hyperparameters": dict.fromkeys(names, 3.5)}
    places, areas = hyperparameters(fit, None, parts.meaning)
    # The correlation is exp(-1) at the scale.
    start = "Two months that are 3.5 months apart have a correlation of 0.368 in the drift of what"
    assert places.meaning == f"{start} neighbouring places share."
    assert areas.meaning == f"{start} each area has of its own."
    assert "269 months later" in parts.meaning("time[2].season.damping", 269.0)
    assert "0.15 times the variance" in parts.meaning("time[2].season.ratio", 0.15)
    assert parts.meaning("matern12_space.lengthscale", 80.0) == ""  # has words already


def test_shares_and_smoother_drifts_have_words_too():
    text = "area + (constant + matern32(space)) * time(constant + matern32)"
    parts = PartsInTime(parse_space_time(text), "week")
    assert parts.meaning("area.variance", 0.04).startswith("What each area has of its own, alike")
    for name in parts.text.time_names:
        assert parts.meaning(name, 4.0).endswith(".")
    # (1 + sqrt(3)) exp(-sqrt(3))
    assert "correlation of 0.483" in parts.meaning("time[0].matern32.scale", 4.0)
