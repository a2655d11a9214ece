"""Every kind of response of the registry, and one that code outside the packages registers."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest
import rasterio
import yaml

from geo.core.errors import InputError
from models.likelihoods.registry import LIKELIHOODS
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.responses import registry
from pipeline.responses.response import Response
from pipeline.run.fingerprints import Fingerprints
from pipeline.run.record import stage_inputs
from pipeline.run.stages import STAGES
from tests.pipeline.responses.conformance import (
    COUNTS,
    SECTIONS,
    Reader,
    ResponseConformance,
    configured,
)


def suite(kind: str) -> type[ResponseConformance]:
    """Return what holds for every kind of response, of one kind."""
    about = {"name": kind, "sections": SECTIONS[kind]}
    return type(f"Test{kind.capitalize()}", (ResponseConformance,), about)


TestCounts, TestValues, TestAverages, TestTested, TestLabels = map(suite, SECTIONS)


def test_every_kind_has_its_suite():
    tested = {each.name for each in ResponseConformance.__subclasses__()}
    assert set(registry.RESPONSES) <= tested


class Proportions(Response):
    """Shares between 0 and 1 that are given themselves, without the numbers behind them."""

    name = "proportions"
    about = "share of an area's people"
    of = "proportion"
    adds_up = False
    most = 1.0
    quantity = "coverage"
    rates = "coverages"
    totals = "shares"
    per = "", ""

    @property
    def total(self) -> str:
        return self.given.unit or "share"

    def check(self, values: pd.Series, table: Any) -> None:
        super().check(values, table)
        over = (values < 0) | (values > 1)
        if over.any():
            found = f"column {self.given.value!r} has {values[over].iloc[0]:g}, which is no share"
            table.report(found, "give shares between 0 and 1, not per cent", over)


@pytest.fixture
def proportions():
    registry.register(Proportions)
    with pytest.raises(ValueError, match="already registered"):
        registry.register(Proportions)
    yield
    del registry.RESPONSES["proportions"]


@pytest.mark.usefixtures("proportions")
class TestProportions(ResponseConformance):
    name = "proportions"
    sections = {"counts": {**COUNTS, "of": "proportion"}, "model": {"likelihood": "normal"}}


def _file(files, values, **sections):
    rows = [f"{i},{value}" for i, value in zip(files.ids, values, strict=True)]
    (files.directory / "cases.csv").write_text("\n".join(["code,share", *rows]) + "\n")
    mapping = files.mapping() | {
        "counts": {"path": "cases.csv", "value": "share", "of": "proportion"},
        "model": {"likelihood": "normal", "kernel": "ard", "inducing": 6, "integrate": "none"},
        "fit": {"max_epochs": 4, "seed": 4},
        "output": {"dir": "out", "draws": 20},
        "evaluate": {"folds": 3, "schemes": ["area"], "calibration": "none"},
        **sections,
    }
    path = files.directory / "run.yaml"
    path.write_text(yaml.safe_dump(mapping))
    return path


SHARES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, ""]


@pytest.mark.ci
def test_a_response_from_outside_goes_from_the_table_to_the_page(files, proportions, capsys):
    path = _file(files, SHARES)
    assert main(["run", str(path), "--quiet"]) == 0
    out = files.directory / "out"
    with rasterio.open(out / "rate_mean.tif") as tif:
        assert tif.descriptions == ("mean coverage",)
        assert tif.units == ("share",)
    assert not list(out.glob("cases_mean*"))
    table = pd.read_csv(out / "areas.csv", index_col=0)
    # Shares are stored times the people, and told as they were given.
    assert list(table["observed_rate"].dropna()) == pytest.approx(SHARES[:-1])
    given = (table["observed"] / table["people"]).dropna()
    assert list(given) == pytest.approx(SHARES[:-1])
    report = json.loads((out / "evaluation.json").read_text())
    assert report["response"]["quantity"] == "coverage"
    assert report["held_out"]["area"]["model"]["rates"]["rmse"] < 1
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Coverage in share, from the shares of 8 areas; 1 more area is predicted." in page


def test_a_response_from_outside_takes_no_other_configuration(proportions, tmp_path):
    for name, sections in SECTIONS.items():
        assert configured(sections, tmp_path).response_kind.name == name


def test_its_own_check_names_the_row(files, proportions, capsys):
    assert main(["check", str(_file(files, [0.1, 0.2, 30, *SHARES[3:]]))]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "cases.csv) row 4 (id M02): column 'share' has 30, which is no share" in said
    assert "not per cent" in said


def test_a_likelihood_of_counts_and_a_word_of_no_kind_are_refused(files, proportions):
    path = _file(files, SHARES, model={"likelihood": "poisson"})
    with pytest.raises(InputError, match=r"counts\.of: proportion under the poisson likelihood"):
        load_config(path)
    counts = {"path": "cases.csv", "value": "share", "of": "proportional"}
    with pytest.raises(InputError, match=r"did you mean proportion\? \(choose from total, average"):
        load_config(_file(files, SHARES, counts=counts))


def test_a_stage_runs_again_for_a_new_kind(files, request):
    config = load_config(_file(files, SHARES, counts={"path": "cases.csv", "value": "share"}))

    def plugins():
        return {
            name: stage_inputs(stage, config, Fingerprints(config))["code.plugins"]
            for name, stage in STAGES.items()
        }

    before = plugins()
    request.getfixturevalue("proportions")
    after = plugins()
    assert all(before[name] == "none" != after[name] for name in STAGES)


def test_labels_take_no_likelihood_and_values_take_no_counts():
    fits = {
        name: {one for one, law in LIKELIHOODS.items() if kind.fits(law)}
        for name, kind in registry.RESPONSES.items()
    }
    assert fits["labels"] == set()
    assert fits["tested"] == {"binomial", "beta_binomial"}
    assert fits["counts"] == {"poisson", "negative_binomial"}
    assert fits["values"] == fits["averages"] == {"normal", "gamma", "exponential"}


@pytest.mark.parametrize(
    ("name", "columns", "says"),
    [
        ("values", {"v": [3.0, 3.0]}, "is 3 for every area"),
        ("averages", {"v": [1.0, 2.0], "ha": [0.0, 0.0]}, "is 0 or missing for every area"),
        ("tested", {"v": [5.0, 1.0], "n": [4.0, 4.0]}, "has more positives than column 'n'"),
        ("tested", {"v": [0.5, 1.0], "n": [4.0, 4.0]}, "has a number that is not whole"),
    ],
)
def test_a_table_that_cannot_be_used_is_told(name, columns, says, tmp_path):
    response: Response = configured(SECTIONS[name], tmp_path).response_kind
    reader = Reader(**columns)
    response.read(reader)
    assert any(says in each for each in reader.problems)
