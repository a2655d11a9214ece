"""When not to trust the map: worlds differ in one thing, the table says what its figures say."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import trust
from benchmarks.grids import Design, simulate
from benchmarks.report import RESULTS, read_results
from benchmarks.trust import BASE, END, WORLDS, draw, summarise, table, verdict, write_page

SMALL = Design("linear", 12, cases=40.0, area_sd=0.2, n_side=12)


def small(name, monkeypatch):
    world = WORLDS[name]
    changed = trust.World(world.what, world.words, SMALL, world.seen)
    monkeypatch.setitem(WORLDS, name, changed)
    return simulate(SMALL, 0), draw(name, 0)


def test_what_is_expected_is_of_the_surface_alone(monkeypatch):
    """Tables hold no noise of single areas: the truth that they are scored against has none."""
    for name in ("base", "square"):
        truth, seen = small(name, monkeypatch)
        of_surface = np.add.reduceat(seen.people * seen.rate, seen.offsets[:-1])
        np.testing.assert_allclose(seen.expected, of_surface)
    np.testing.assert_array_equal(truth.people, seen.people)


def test_the_strongest_covariate_is_missing_and_nothing_else(monkeypatch):
    truth, seen = small("missing", monkeypatch)
    kept = np.delete(truth.x, np.abs(truth.slopes).argmax(), axis=1)
    np.testing.assert_array_equal(seen.x, kept)
    np.testing.assert_array_equal(seen.rate, truth.rate)


def test_borders_move_pixels_to_the_neighbours_and_rates_stay(monkeypatch):
    truth, seen = small("borders-1", monkeypatch)
    assert sorted(seen.pixel) == sorted(truth.pixel)
    rate = dict(zip(truth.pixel, truth.rate, strict=True))
    assert all(rate[i] == each for i, each in zip(seen.pixel, seen.rate, strict=True))
    area = np.empty(144, int)
    area[truth.pixel] = np.repeat(np.arange(12), np.diff(truth.offsets))
    drawn = np.empty(144, int)
    drawn[seen.pixel] = np.repeat(np.arange(seen.cases.size), np.diff(seen.offsets))
    assert seen.cases.size == 12  # else numbers are not those of the true areas
    assert (drawn.reshape(12, 12)[1:, 1:] == area.reshape(12, 12)[:-1, :-1]).all()


def test_a_fifth_of_areas_report_half(monkeypatch):
    truth, seen = small("reports", monkeypatch)
    assert (seen.cases != truth.cases).sum() == 2
    assert (seen.cases <= truth.cases).all()


def test_squares_keep_the_cases_of_the_country(monkeypatch):
    truth, seen = small("square", monkeypatch)
    assert seen.people @ seen.rate == pytest.approx(truth.people @ truth.rate)
    f = np.log(truth.rate) - np.log(truth.rate).mean()
    assert np.corrcoef(np.sqrt(seen.rate), np.abs(1 + f / 2))[0, 1] == pytest.approx(1)


def test_worlds_differ_from_the_base_in_one_thing():
    all_of_it = trust.World.__dataclass_fields__["seen"].default
    for name, world in WORLDS.items():
        differs = [k for k, v in vars(world.design).items() if v != getattr(BASE, k)]
        differs += ["seen"] * (world.seen is not all_of_it)
        assert len(differs) == (name != "base"), name


@pytest.mark.ci
def test_a_country_is_fitted_and_the_table_says_what_fails(monkeypatch, tmp_path):
    small("base", monkeypatch)
    record = trust.measure("base", 0)
    assert "error" not in record
    assert 0 <= record["provinces"] <= 1
    found = {"base": summarise([record, {**record, "pixels": 0.5, "areas": 0.3}])}
    assert found["base"]["mean"]["areas"] == pytest.approx((record["areas"] + 0.3) / 2, abs=1e-4)
    mean, exact = {**found["base"]["mean"], "pixels": 0.5}, dict.fromkeys(found["base"]["mean"])
    assert verdict(mean, exact).startswith("intervals of pixels")
    assert "pixels" not in verdict(mean, {**exact, "pixels": 0.2})
    page = tmp_path / "page.md"
    page.write_text(f"before\n{trust.BEGIN}\nold\n{END}\nafter\n")
    write_page(found, page)
    text = page.read_text()
    assert table(found) in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def test_a_fit_that_fails_is_a_record(monkeypatch):
    small("base", monkeypatch)

    def fail(*_):
        raise ArithmeticError("made up")

    monkeypatch.setattr(trust, "default_model", fail)
    with pytest.raises(ArithmeticError):  # a fault of the benchmark is no record
        trust.measure("base", 0)
    assert summarise([{"error": "made up"}])["failed"] == 1


def test_the_program_cites_the_figures_of_the_results():
    worlds = read_results(RESULTS / "trust.json")["worlds"]
    assert json.loads(trust.CITED.read_text(encoding="utf-8")) == trust.cited(worlds)
