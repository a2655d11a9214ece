"""What `auto` stands for, by size: no fit changes in small problems, nothing that users set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geo.core.errors import InputError
from pipeline.config.model_factory import new_model
from pipeline.config.reader import load_config
from pipeline.config.size_defaults import (
    LEAST_AREA_PIXELS,
    cap_for,
    settings,
    sized,
)
from pipeline.demo.country import simulate_country
from pipeline.demo.country_spec import CountrySpec

WHOLE_RUNS = True  # of what tests shorten elsewhere

SPEC = CountrySpec((36, 40), 1 / 12, 700, 16, 6, 4e5, covariates=("elevation",))
SMALL, LARGE = np.full(300, 1000.0), np.full(1600, 18_000.0)


@pytest.fixture(scope="module")
def country(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate_country(tmp_path_factory.mktemp("country"), SPEC)


def test_in_a_small_problem_auto_is_what_it_was(country: Path) -> None:
    found = settings(sized(load_config(country), SMALL))
    assert found["model"] == {"inducing": "auto", "precision": "float64", "pair_pixels": 64}
    assert found["fit"] == {"area_pixels": "all", "max_epochs": 200}
    assert found["evaluate"]["area_pixels"] == "all"
    assert found["evaluate"]["start"] == "warm"
    assert found["evaluate"]["leave_out"] == "importance"
    assert found["evaluate"]["epochs"] == 200
    refits = load_config(country, None, {"evaluate": {"leave_out": "refit"}})
    assert settings(sized(refits, SMALL))["evaluate"]["start"] == "cold"
    cold = load_config(country, None, {"evaluate": {"start": "cold"}})
    assert settings(sized(cold, SMALL))["evaluate"]["start"] == "cold"
    # What has not been settled stands for the same.
    settled = new_model(sized(load_config(country), SMALL)).get_params()
    assert settled == new_model(load_config(country)).get_params()
    assert settled["n_inducing"] == "auto"  # follows the number of areas


def test_in_a_large_problem_areas_are_thinned_and_folds_begin_warm(country: Path) -> None:
    found = settings(sized(load_config(country), LARGE))
    assert found["model"] == {"inducing": "auto", "precision": "float32", "pair_pixels": 64}
    assert found["fit"]["area_pixels"] == 93  # 150,000 pixels of 1,600 areas: 93.75, two digits
    assert found["evaluate"]["area_pixels"] == 93
    assert found["evaluate"]["start"] == "warm"
    assert found["evaluate"]["leave_out"] == "importance"
    assert found["evaluate"]["epochs"] == 60


def test_a_small_problem_is_simulated_twice_and_more_often_for_a_gate(country: Path) -> None:
    def calibration(pixels: np.ndarray, **sections: Any) -> Any:
        config = sized(load_config(country, None, sections), pixels)
        return settings(config)["evaluate"]["calibration"]

    gate = {"pixel_coverage": [0.85, 0.95]}
    assert calibration(SMALL) == 2
    assert calibration(SMALL, gates=gate) == 10
    assert calibration(LARGE) == calibration(LARGE, gates=gate) == "none"
    assert calibration(LARGE, evaluate={"calibration": 5}) == 5
    assert calibration(SMALL, evaluate={"calibration": "none"}) == "none"


def test_what_users_set_is_kept(country: Path) -> None:
    own: dict[str, Any] = {
        "model": {"inducing": 300, "precision": "float64", "pair_pixels": 64},
        "fit": {"area_pixels": "all"},
        "evaluate": {"area_pixels": 90, "start": "cold", "leave_out": "refit", "epochs": 7},
    }
    found = settings(sized(load_config(country, None, own), LARGE))
    for section, keys in own.items():
        assert {key: found[section][key] for key in keys} == keys


def test_thinning_that_users_set_holds_for_the_folds_and_sizing_is_done_once(
    country: Path,
) -> None:
    config = load_config(country, None, {"fit": {"area_pixels": 50}})
    assert settings(sized(config, SMALL))["evaluate"]["area_pixels"] == 50
    assert settings(sized(config, LARGE))["evaluate"]["area_pixels"] == 50
    once = sized(load_config(country), LARGE)
    assert sized(once, SMALL) == once


def test_classifiers_keep_their_own_defaults(tmp_path: Path) -> None:
    config = load_config(simulate_country(tmp_path, SPEC, labels=True))
    before = new_model(config).get_params()
    after = sized(config, LARGE)
    assert new_model(after).get_params() == before
    assert after.fit.area_pixels == "all"


@pytest.mark.parametrize("total", [1.0e6, 2.5e5, 3e4])
def test_the_cap_is_the_largest_whose_pixels_fit(total: float) -> None:
    sizes = np.random.default_rng(0).lognormal(6.0, 1.5, 2000)

    def kept(cap: float) -> float:
        return float(np.minimum(sizes, cap).sum())

    cap = cap_for(sizes, total)
    if cap > LEAST_AREA_PIXELS:
        # Two digits of the number that bisection finds.
        low, high = 1.0, float(sizes.max())
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if kept(middle) <= total else (low, middle)
        assert cap <= low < 1.1 * cap
        assert kept(cap) <= total
    else:
        assert kept(1.1 * cap) > total


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fit": {"area_pixels": 0}}, ["fit.area_pixels", "'all'", "at least 1"]),
        ({"evaluate": {"start": "hot"}}, ["evaluate.start", "hot"]),
        (
            {"model": {"kind": "nystrom", "area_effect": False}, "evaluate": {"start": "warm"}},
            ["evaluate.start: warm", "nystrom"],
        ),
    ],
)
def test_impossible_settings_are_refused(
    country: Path, changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        load_config(country, None, changes)
    for word in words:
        assert word in str(error.value)
