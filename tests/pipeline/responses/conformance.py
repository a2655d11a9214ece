"""What holds for every kind of response: a test class inherits it and names the kind."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from models.likelihoods.registry import LIKELIHOODS
from pipeline.config.schema import Config
from pipeline.evaluation.about import ABOUT
from pipeline.evaluation.tasks import TASKS
from pipeline.prediction.labels import LabelPredictions, tabulate_labels
from pipeline.products.areas import AreaDraws, tabulate_areas
from pipeline.products.products import PRODUCTS, RasterProduct, layers, raster
from pipeline.reporting.preview import FIT_PICTURES
from pipeline.responses.registry import RESPONSES
from pipeline.responses.response import WORDS
from pipeline.responses.table import Columns

COUNTS = {"path": "t.csv", "value": "v"}
#: Sections of a configuration whose response is of the kind.
SECTIONS = {
    "counts": {"counts": COUNTS},
    "values": {"counts": COUNTS, "model": {"likelihood": "normal"}},
    "averages": {"counts": {**COUNTS, "weight": "ha"}, "model": {"likelihood": "gamma"}},
    "tested": {"counts": {**COUNTS, "tested": "n"}, "model": {"likelihood": "binomial"}},
    "labels": {"labels": COUNTS, "model": {"kind": "vwsgp"}},
}


def configured(sections, base):
    mapping = {
        "areas": {"path": "a.gpkg", "id": "code"},
        "covariates": {"wave": {"path": "w.tif"}},
        "population": {"path": "p.tif"},
        **sections,
    }
    return Config.model_validate(mapping, context={"base": base})


class Reader:
    """A table of numbers in memory."""

    def __init__(self, **columns):
        self.columns, self.problems = columns, []

    @property
    def n_problem(self):
        return len(self.problems)

    def numbers(self, column, **options):
        return pd.Series(self.columns[column], dtype=float)

    labels = numbers

    def margins(self, column):
        return None

    def report(self, found, remedy, chosen=None):
        self.problems.append(found)


class ResponseConformance:
    name: str
    sections: dict
    good = {"v": [1.0, 0.0, 1.0], "n": [2.0, 3.0, 4.0], "ha": [1.0, 5.0, 9.0]}

    @pytest.fixture
    def response(self, tmp_path):
        found = configured(self.sections, tmp_path).response_kind
        assert type(found) is RESPONSES[self.name]
        return found

    def test_its_words_are_complete(self, response):
        assert response.name == self.name
        for word in ("about", "noun", "against", "rate_unit", "map_title", "map_label", "source"):
            assert getattr(response, word), word
        without = {word for word in WORDS if not response.placeholders[word]}
        assert without <= ({"exposure"} if not response.drawn else set())
        templates = [*response.area_columns.values(), *response.sheet_columns.values()]
        templates += [*response.facts, *response.layers.values()]
        for text in templates:
            assert not re.search(r"[{}]", response.fill(text)), text
        more = {"ends": "90 % interval of", "level": "90 %", "Rates": "R"}
        assert response.fill(response.sheet_note, **more)
        assert FIT_PICTURES[response.fit_picture].title

    def test_its_columns_are_those_of_its_table(self, response):
        two, drawn = np.ones(2), np.ones((3, 2))
        ids = ["a", "b"]
        if response.drawn:
            tested = two if response.exposure_column == "tested" else None
            draws = AreaDraws(np.arange(2), two, two, two, drawn, drawn, two, tested)
            table = tabulate_areas(draws, ids, 0.9, 1.0)
        else:
            found = LabelPredictions(np.arange(2), two, two, two, two, two)
            table = tabulate_labels(found, ids)
        made = {*table.columns, "in_training"}
        assert made <= set(response.area_columns)
        named = {*response.sheet_columns, *response.layers, *sum(response.facts.values(), ())}
        assert {response.level, response.exposure_column, *named} - made <= {"tested", "people"}
        assert named <= set(response.area_columns)

    def test_its_maps_exist(self, response, tmp_path):
        families = {each.shows for each in PRODUCTS if isinstance(each, RasterProduct)}
        assert response.shows <= families
        made = {each.name for each in layers(configured(self.sections, tmp_path))}
        assert {response.mean_map, *response.spread_maps} <= made
        assert raster(response.spread_maps[-1]).unit in ("1", "{rate_unit}")

    def test_its_likelihoods_and_scores_exist(self, response):
        fitting = [name for name, each in LIKELIHOODS.items() if response.fits(each)]
        assert bool(fitting) == (response.given.likelihood is not None)
        assert not fitting or response.given.likelihood.name in fitting
        assert response.problem() is None
        assert response.scores in TASKS
        assert response.scores in ABOUT

    def test_it_reads_a_good_table(self, response):
        reader = Reader(**self.good)
        columns = response.read(reader)
        assert reader.problems == []
        assert isinstance(columns, Columns)
        assert list(columns.counts) == self.good["v"]
        assert response.described(columns.counts)
        assert (columns.tested is not None) == (response.exposure_column == "tested")
