"""Settings that end within a time: the most accurate first, nothing that users set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.config.model_factory import resolved
from pipeline.config.reader import load_config
from pipeline.config.schema import Config
from pipeline.config.size_defaults import sized
from pipeline.demo.country import simulate_country
from pipeline.demo.country_spec import CountrySpec
from pipeline.plan import estimate as plans
from pipeline.plan import proposal as proposals
from pipeline.plan.duration import parse_duration
from pipeline.plan.estimate import foresee
from pipeline.plan.probe import Probe
from pipeline.plan.proposal import MARGIN, Proposal, applied, ladder, propose, total_seconds
from pipeline.plan.sizes import Sizes, measure_inputs, passage


def measure(config: Config, mean_pixels: float, n_areas: int = 0) -> Probe:
    """Time as a core of 5e10 products a second would take, twice as fast in single precision."""
    del mean_pixels, n_areas
    m = resolved(config, "inducing")
    rate = 5e10 if resolved(config, "precision") == "float64" else 1e11
    pixel = 4 * m**2 / rate
    draw = 2e-8 * config.output.draws
    return Probe(rate, pixel, 2e-8 * m**2, pixel / 2, draw)


@pytest.fixture(scope="module")
def country(country: Path) -> Path:
    """The country whose user has set nothing that a proposal chooses."""
    text = country.read_text().replace(", draws: 500", "")
    path = country.with_name("free.yaml")
    path.write_text(text.replace("folds: 5, schemes: [area, block], ", ""))
    return path


@pytest.fixture(scope="module")
def large(country: Path) -> Sizes:
    """The sizes of 1,600 areas and 29.5 million pixels."""
    small = measure_inputs(load_config(country))
    n = 29_500_000
    held = {**small.bytes, "bags.zarr": 56 * n, "maps": 4 * n, "inputs": 28 * n}
    return replace(
        small,
        n_areas=1600,
        area_pixels=np.full(1600, n / 1600),
        n_tile_pixels=n,
        n_blocks=1600,
        n_steps=50,
        bytes=held,
    )


def proposed(country: Path, sizes: Sizes, hours: float, **changes: Any) -> Proposal:
    config = load_config(country, None, changes)
    return propose(config, 3600 * hours, 2, sizes, measure)


def test_the_defaults_of_a_large_problem_end_in_two_hours(country: Path, large: Sizes) -> None:
    config = load_config(country)
    own = sized(config, large.area_pixels)
    found = foresee(own, large, measure(own, 0.0), 2)
    seconds = {stage.name: stage.seconds[2] for stage in found.stages}
    assert seconds["fit"] + seconds["evaluate"] < 7200
    every = applied(config, next(iter(ladder(config, large.area_pixels))))
    before = foresee(sized(every, large.area_pixels), large, measure(every, 0.0), 2)
    total = {stage.name: stage.seconds[2] for stage in before.stages}
    # Climbs read few pixels whatever the size: all pixels cost the last passes and the draws.
    ratio = (total["fit"] + total["evaluate"]) / (seconds["fit"] + seconds["evaluate"])
    assert ratio > 3


@pytest.mark.parametrize("hours", [300.0, 1.0, 0.14])
def test_what_is_proposed_ends_in_time_and_nothing_better_does(
    country: Path, large: Sizes, hours: float
) -> None:
    found = proposed(country, large, hours)
    if hours == 300:  # more time keeps more pixels
        few = proposed(country, large, 0.16)
        kept = [passage(p.config, large, p.config.fit.area_pixels).n_pixels for p in (few, found)]
        assert kept[0] < kept[1]
    assert MARGIN * found.seconds <= 3600 * hours
    assert total_seconds(found.plan) == found.seconds
    config = load_config(country)
    for rung in ladder(config, large.area_pixels):
        tried = sized(applied(config, rung), large.area_pixels)
        if tried.model_dump() == found.config.model_dump():
            break
        total = total_seconds(foresee(tried, large, measure(tried, 0.0), 2))
        assert total is not None
        assert MARGIN * total > 3600 * hours
    else:
        pytest.fail("the proposal is no rung of the ladder")


def test_what_users_set_is_kept_and_told(country: Path, large: Sizes) -> None:
    own = {"model": {"inducing": 150, "precision": "float64"}, "evaluate": {"folds": 4}}
    found = proposed(country, large, 0.16, **own)
    assert found.config.model.inducing == 150
    assert found.config.model.precision == "float64"
    assert found.config.evaluate.folds == 4
    assert "model.precision" in found.kept
    assert "model.precision" not in found.loss
    assert found.config.fit.area_pixels != "all"


def test_too_little_time_is_refused_with_the_least(country: Path, large: Sizes) -> None:
    with pytest.raises(InputError) as error:
        proposed(country, large, 0.01, fit={"area_pixels": "all"})
    told = str(error.value)
    assert "no settings end within 36s; the least foreseen is " in told
    assert "fit.area_pixels" in told  # what users set, and what would have to give
    least = told.partition("give --within ")[2].partition(",")[0]
    with pytest.raises(InputError):
        proposed(country, large, 0.01)
    again = proposed(country, large, parse_duration(least) / 3600, fit={"area_pixels": "all"})
    assert again.config.fit.area_pixels == "all"


def test_the_yaml_is_the_proposal(country: Path, large: Sizes) -> None:
    found = proposed(country, large, 1.0)
    pasted = load_config(country, None, yaml.safe_load(found.yaml))
    assert sized(pasted, large.area_pixels).model_dump() == found.config.model_dump()
    # Estimated sizes and those of the store differ by a little: nothing may depend on them then.
    assert sized(pasted, 0.9 * large.area_pixels).model_dump() == found.config.model_dump()


def test_a_model_whose_time_is_unknown_is_refused(country: Path, large: Sizes) -> None:
    def unknown(config: Config, mean_pixels: float, n_areas: int) -> Probe:
        del config, mean_pixels, n_areas
        return Probe(5e10, None, None, None, None)

    with pytest.raises(InputError, match="cannot be foreseen"):
        propose(load_config(country), 3600, 2, large, unknown)


def test_the_commands_take_a_time(
    country: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "probe", measure)
    monkeypatch.setattr(proposals.propose, "__defaults__", (None, None, measure))
    assert main(["plan", str(country), "--within", "2h"]) == 0
    told = capsys.readouterr().out
    assert "Within 2.0 h ends" in told
    assert "area_pixels: all" in told
    assert main(["plan", str(country), "--within", "2h", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["within"]["settings"]["model"]["inducing"] == "auto"
    for command in ("plan", "run"):
        assert main([command, str(country), "--within", "1s"]) == 2
        error = capsys.readouterr().err
        assert error.count("error: ") == 1
        assert "the least foreseen is" in error
        assert main([command, str(country), "--within", "soon"]) == 2
        assert "no duration" in capsys.readouterr().err


def test_models_of_labels_are_refused(tmp_path: Path) -> None:
    spec = CountrySpec((36, 40), 1 / 12, 700, 16, 6, 4e5, covariates=("elevation",))
    config = load_config(simulate_country(tmp_path, spec, labels=True))
    with pytest.raises(InputError, match="no settings to choose for models of labels"):
        propose(config, 3600)
