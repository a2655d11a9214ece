"""The words for a response, by likelihood, exposure and kind of value."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from geo.core.errors import InputError
from models.likelihoods.registry import LIKELIHOODS
from pipeline.config.reader import load_config
from pipeline.prediction.area_description import column_aliases
from pipeline.products.products import layers
from pipeline.responses.registry import response_of
from pipeline.responses.response import Given
from pipeline.run.fingerprints import Fingerprints
from pipeline.run.record import stage_inputs
from pipeline.run.stages import STAGES


def _config(files: Any, *, counts: Any = None, model: Any = None, output: Any = None, **more: Any):
    mapping = {**files.mapping(), **more}
    mapping["counts"] = {**mapping["counts"], **(counts or {})}
    mapping["model"] = model or {}
    mapping["output"] = {**mapping["output"], **(output or {})}
    path = files.directory / "run.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in mapping.items() if v is not None}))
    return load_config(path)


NORMAL, TESTED = {"likelihood": "normal"}, {"likelihood": "binomial"}


SURVEY = {"model": TESTED, "counts": {"tested": "n"}}


@pytest.mark.parametrize(
    ("sections", "quantity", "unit"),
    [
        ({}, "rate", "cases per 1,000 people"),
        ({"output": {"rate_per": 1}}, "rate", "cases per person"),
        ({"population": None, "grid": {"like": "wave.tif"}}, "rate", "cases per 1,000 km2"),
        ({"counts": {"unit": "births"}}, "rate", "births per 1,000 people"),
        (SURVEY, "prevalence", "positives per 1,000 tested"),
        (SURVEY | {"output": {"rate_per": 1}}, "prevalence", "positives per person tested"),
        ({"model": NORMAL}, "rate", "cases per 1,000 people"),
        ({"model": NORMAL, "counts": {"unit": "t", "weight": "ha", "of": "total"}},
         "rate", "t per ha"),
        ({"model": NORMAL, "counts": {"unit": "t/ha", "weight": "area"}}, "value", "t/ha"),
        ({"model": NORMAL, "counts": {"unit": "deg C", "of": "average"}}, "value", "deg C"),
        ({"counts": {"weight": "py", "weight_unit": "person-years"}, "output": {"rate_per": 1e5}},
         "rate", "cases per 100,000 person-years"),
    ],
)  # fmt: skip
def test_the_map_is_named_for_what_it_is(sections, quantity, unit, files):
    config = _config(files, **sections)
    words = config.response_kind
    assert (words.quantity, words.rate_unit) == (quantity, unit)
    found = {layer.name: layer for layer in layers(config)}
    assert found["rate_mean"].description == f"mean {quantity}"
    assert found["rate_mean"].unit == unit


def test_prevalence_is_said_wherever_rates_were(files):
    config = _config(
        files, model=TESTED, counts={"tested": "n"}, output={"exceedance": [50], "rate_per": 100}
    )
    texts = [layer.description for layer in layers(config)]
    assert "probability that the prevalence is above 50 positives per 100 tested" in texts
    aliases = column_aliases(config, ["observed", "people", "tested", "fitted_rate", "mine"])
    assert aliases == {
        "observed": "observed positives",
        "people": "people",  # the population, as in areas.csv
        "tested": "people tested",
        "fitted_rate": "fitted prevalence (positives per 100 tested)",
    }
    assert not any("cases" in text or "rate" in text for text in (*texts, *aliases.values()))


def test_what_is_no_number_of_people_has_no_map_of_cases(files):
    weighted = _config(files, counts={"weight": "py"})
    assert "cases_mean" not in {layer.name for layer in layers(weighted)}
    plain = {layer.name: layer for layer in layers(_config(files, counts={"unit": "births"}))}
    assert plain["cases_mean"].description == "expected births among all people of a pixel"
    assert plain["cases_mean"].unit == "births"


def test_without_people_no_map_is_of_people(files):
    config = _config(
        files,
        population=None,
        grid={"like": "wave.tif"},
        output={"mask": "all"},
    )
    found = {layer.name: layer.description for layer in layers(config)}
    assert found["cases_mean"] == "expected cases in the whole of a pixel"
    assert found["cases_outside_mean"] == "expected cases, outside every area"
    assert not any("people" in text for text in found.values())


AVERAGES = {"model": NORMAL, "counts": {"weight": "ha"}, "output": {"rate_per": 1000}}


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"counts": {"of": "average"}}, "counts.of: average under the poisson likelihood"),
        (SURVEY | {"counts": {"tested": "n", "weight": "ha"}}, "counts.weight with counts.tested"),
        ({"counts": {"weight_unit": "ha"}}, "counts.weight_unit without counts.weight"),
        (AVERAGES, "output.rate_per is 1000, but the map of averages has their own unit"),
        ({"counts": {"of": "mean"}}, "counts.of"),
    ],
)
def test_what_does_not_go_together_is_refused(sections, says, files):
    with pytest.raises(InputError, match=says):
        _config(files, **sections)


def test_a_new_unit_does_not_fit_again_but_maps_again(files):
    def inputs(name, **counts):
        config = _config(files, counts=counts)
        found = stage_inputs(STAGES[name], config, Fingerprints(config))
        return {key: value for key, value in found.items() if not key.startswith("work/")}

    for name, stale in (("ingest", False), ("fit", False), ("predict", True), ("evaluate", True)):
        assert (inputs(name) != inputs(name, unit="births")) is stale, name
    assert inputs("ingest") != inputs("ingest", weight="births")


@pytest.mark.parametrize(
    ("given", "unit"),
    [
        ({}, "cases per 1,000 people a month"),
        ({"weight": "n", "weight_unit": "people"}, "cases per 1,000 people a month"),
        ({"weight": "pm", "weight_unit": "person-months"}, "cases per 1,000 person-months"),
        ({"likelihood": LIKELIHOODS["binomial"], "tested": "n"}, "positives per 1,000 tested"),
        ({"likelihood": LIKELIHOODS["normal"], "of": "average", "unit": "deg C"}, "deg C"),
    ],
)
def test_a_rate_of_a_series_is_of_each_period(given: dict[str, Any], unit: str) -> None:
    """Positives among those tested, and averages, do not add up over months."""
    response = response_of(
        Given("counts", "n", **{"likelihood": LIKELIHOODS["poisson"], "step": "month"} | given)
    )
    assert response.rate_unit == unit
    assert " a " not in response.unit_per(1)


def test_areas_without_a_value_are_told_by_the_noun_of_the_response() -> None:
    given = Given("counts", "n", LIKELIHOODS["binomial"], tested="tested")
    assert response_of(given).expected_elsewhere({"n": 6, "expected": None}) == (
        "6 areas without a count: prevalences in areas.csv, but no expected positives, as the "
        "exposure of some (people tested) is not known"
    )


@pytest.mark.parametrize(
    ("per", "denominator"),
    [(1, "per person"), (1000, "per 1,000 people"), (1e6, "per 1,000,000 people"),
     (0.5, "per 0.5 people")],
)  # fmt: skip
def test_denominators_are_written_out(per: float, denominator: str) -> None:
    response = response_of(Given("counts", "n", LIKELIHOODS["poisson"], rate_per=per))
    assert response.rate_unit == f"cases {denominator}"
    assert response.per_exposure(per) == denominator


def test_one_area_without_a_value_is_one() -> None:
    given = Given("counts", "n", LIKELIHOODS["binomial"], tested="tested")
    said = response_of(given).expected_elsewhere({"n": 1, "expected": None})
    assert said.startswith("1 area without a count: ")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"unit": "t/ha", "weight_unit": "ha"},
         "an average of 1.92 t/ha expected (50 % predictive interval 1.76 to 2.02), over 634 ha"),
        ({}, "an average of 1.92 expected (50 % predictive interval 1.76 to 2.02), over 634 ares"),
    ],
)  # fmt: skip
def test_averages_of_areas_without_a_value_are_averages(more: dict[str, Any], said: str) -> None:
    """The totals are in values times weights: no t/ha."""
    given = Given("counts", "n", LIKELIHOODS["gamma"], weight="ares", interval=0.5, **more)
    sums = {"people": 634.0, "expected": 1218.0, "count_lower": 1114.0, "count_upper": 1283.0}
    found = response_of(given).expected_elsewhere({"n": 1, **sums})
    assert found == f"1 area without a value: {said}"
    unknown = {"n": 2, **dict.fromkeys(sums)}
    assert response_of(given).expected_elsewhere(unknown).endswith("is not known")


@pytest.mark.parametrize(("interval", "said"), [(0.975, "97.5 %"), (0.995, "99.5 %")])
def test_intervals_are_not_rounded(interval: float, said: str) -> None:
    given = Given("counts", "n", LIKELIHOODS["poisson"], interval=interval)
    sums = {"people": 10.0, "expected": 3.0, "count_lower": 1.0, "count_upper": 9.0}
    found = response_of(given).expected_elsewhere({"n": 2, **sums})
    assert f"({said} predictive interval 1 to 9)" in found
