"""The page without a browser: what it says, what it leaves out, and what it lets in."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import runpy
import sys
from dataclasses import replace

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
import yaml
from matplotlib.figure import Figure
from PIL import Image

from geo.writers.colours import Scale
from geo.writers.raster_files import RasterFiles
from pipeline.config.level_schema import Reconcile
from pipeline.config.reader import load_config
from pipeline.core.progress import Silent
from pipeline.demo.country import simulate_country
from pipeline.demo.country_spec import LAYERS, CountrySpec
from pipeline.evaluation.verdict import without_figures
from pipeline.products.colours import raster_scale
from pipeline.products.products import RATE_MEAN
from pipeline.reporting import asked, vendor
from pipeline.reporting.page import left_out, reconciled_words
from pipeline.reporting.rasters import data_uri, pictures
from pipeline.reporting.stage import read_evaluation
from pipeline.run.record import read_record
from pipeline.run.runner import run_stages
from pipeline.store.point_store import left_out_words
from pipeline.training.modes import overdispersion
from tests.bands import read
from tests.pipeline.reporting.conftest import NASTY, SAVE, page_data


def texts(page: str, tag: str) -> list[str]:
    """Return the contents of elements, as a browser reads them."""
    from html import unescape

    found = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", page, re.DOTALL)
    plain = (unescape(re.sub(r"<[^>]+>", "", each)).strip() for each in found)
    return [each.replace("\u00a0", " ") for each in plain]


def rows_of(page: str, table: str) -> list[str]:
    """Return the rows of a table, without that of its headings."""
    body = page[page.index(f'id="{table}"') :]
    return re.findall(r"<tr>\s*(.*?)</tr>", body[: body.index("</table>")], re.DOTALL)[1:]


def picture(uri: str) -> np.ndarray:
    with Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))) as image:
        return np.asarray(image.convert("RGBA")).astype(int)


def test_the_pictures_beside_the_maps_say_what_the_evaluation_found(finished, copied, monkeypatch):
    said = without_figures(json.loads((finished.out / "evaluation.json").read_text()))
    assert said.startswith("better than one rate for the whole country: by area ")
    for name in ("preview.png", "targeting.png"):
        pixels = np.asarray(Image.open(finished.out / name).convert("L"))
        assert pixels.shape[0] > 500
        assert pixels.std() > 10  # something is drawn
    written = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: written.append(self))
    finished.report(copied)
    texts = [{text.get_text() for text in figure.texts} for figure in written]
    assert sum(said in each for each in texts) >= 3  # preview, targeting, and that of the page


def test_the_table_and_the_facts_have_the_numbers_of_the_csv(finished):
    table = pd.read_csv(finished.out / "areas.csv")
    page = finished.page()
    rows = rows_of(page, "table-areas")
    assert len(rows) == len(table) == 24
    heading = page[page.index('id="table-areas"') :]
    headings = texts(re.search(r"<thead>(.*?)</thead>", heading, re.DOTALL)[1], "button")
    for name, column in (
        ("fitted rate", "fitted_rate"),
        ("residual", "residual"),
        ("to", "fitted_rate_upper"),
    ):
        at = headings.index(name) - 2  # the name is a heading of its row
        values = [
            float(re.findall(r'<td class="number" data-v="([^"]*)"', row)[at]) for row in rows
        ]
        np.testing.assert_allclose(values, table[column], rtol=1e-12)
    facts = page_data(page)["facts"]
    rate = "fitted_rate"
    for label, names in {
        "Fitted rate, cases per 1,000 people": [rate, f"{rate}_lower", f"{rate}_upper"],
        "Observed cases": ["observed"],
        "People": ["people"],
    }.items():
        at = facts["labels"].index(label)
        for row, (_, wanted) in zip(facts["rows"], table.iterrows(), strict=True):
            text = row[at].replace("90 %", "").replace(",", "")
            found = [float(each) for each in re.findall(r"[\d.]+", text)]
            assert found == pytest.approx([wanted[name] for name in names], rel=0.006)


@pytest.mark.ci
def test_effects_of_the_record_are_told_with_what_the_data_say_of_overdispersion(finished, copied):
    record = read_record(finished.out)
    effects = record["fit"]["summary"]["effects"]
    assert list(effects) == list(finished.config.covariates)
    said = texts(finished.page(), "td")
    for name, told in effects.items():
        # The default kernel has a line and a smooth of each covariate, and one of all together.
        assert told["percentiles"]
        assert told["lower"] < told["median"] < told["upper"]
        (text,) = (each for each in said if each.startswith(f"Where {name} is at its 90th"))
        assert f"about {100 * abs(told['median']):.3g} %" in text
        assert "with all other covariates at their means" in text
    modes = [
        {"explains": name, "weight": weight, "area_sd": 0.4, "range_km": 9.0, "field_sd": 0.4}
        for name, weight in (("noise between areas", 0.7), ("a field shorter than an area", 0.3))
    ]
    summary = record["fit"]["summary"] | {"overdispersion": overdispersion(modes, "exp")}
    finished.report(copied, fit=record["fit"] | {"summary": summary})
    page = (copied / "report.html").read_text(encoding="utf-8")
    start = "The counts cannot tell noise between areas (weight 70 %)"
    for tag, first in (("p", "model"), ("li", "warnings")):
        part = page[page.index(f'id="{first}"') :]
        assert any(each.startswith(start) for each in texts(part, tag))


def test_balance_answer_and_cautions_are_those_of_the_evaluation(finished):
    evaluation = json.loads((finished.out / "evaluation.json").read_text(encoding="utf-8"))
    page = finished.page()
    shown = {texts(row, "th")[0]: texts(row, "td") for row in rows_of(page, "table-balance")}
    people = evaluation["balance"]["people"]
    table = pd.read_csv(finished.out / "areas.csv")
    assert shown["in the raster"][0] == f"{people['raster']:,.0f}"
    wanted = [f"{people['in_bags']:,.0f}", f"{table['observed'].sum():,.0f}"]
    assert shown["in bags"][:2] == wanted
    assert shown["fitted, sum of the table"][1] == f"{table['fitted'].sum():,.0f}"
    own = evaluation["better_than_constant"]["area"]
    first = page[page.index('id="first"') : page.index('id="maps"')]
    assert texts(first, "strong") == [own["answer"].capitalize()]
    # Readers of the first screen need no nats.
    assert "times the probability of one rate" in first
    assert "nats" not in first
    listed = " ".join(texts(page[page.index('id="warnings"') :], "li"))
    for said in evaluation["predictive_checks"]["sentences"]:
        assert said[1:] in listed
    # 24 areas are fewer than maps are known to need.
    assert "24 areas say little of the kernel" in listed


def test_nothing_but_the_page_is_in_the_page(finished):
    page = finished.page()
    page = page[: page.index("<script")]  # texts of the library have addresses as well
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert {each[:5] for each in addresses if not each.startswith("#")} <= {"data:"}
    assert "url(" not in page[: page.index("<body>")].replace("url(#default#VML)", "")
    assert "sourceMappingURL" not in finished.page()
    assert str(finished.out.parent) not in finished.page()


def test_a_script_in_a_name_is_text(finished):
    page = finished.page()
    assert page.count("<script") == page.count("</script>") == 3
    assert "<img src=x" not in page
    names = [each["name"] for each in page_data(page)["areas"]]
    assert any(each.startswith("<script>window.hacked=1</script>") for each in names)
    assert any("window.hacked=1" in each for each in texts(page, "th"))
    assert "<b>test" not in page
    assert NASTY not in page


@pytest.mark.ci
def test_the_same_run_gives_the_same_bytes(finished, copied, monkeypatch):
    monkeypatch.setattr(Figure, "savefig", SAVE)
    before = (finished.out / "report.html").read_bytes(), (finished.out / "report.pdf").read_bytes()
    finished.report(copied)
    assert ((copied / "report.html").read_bytes(), (copied / "report.pdf").read_bytes()) == before


def test_a_large_raster_is_shrunk_and_said_to_be(finished):
    with RasterFiles() as files:
        few = pictures(finished.config, finished.out, files, n_pixel=10 * 400)
    assert picture(few[0].uri)[..., 0].size <= 400
    assert few[0].shrunk == pytest.approx(np.sqrt(50 * 56 / (4000 // (len(few)))), rel=0.05)


def test_noise_of_a_million_pixels_is_within_the_limit():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(1000, 1000))
    scale = Scale.of(values)
    assert len(data_uri(values, scale)) < 1.4e6


def test_without_evaluation_and_rasters_there_are_maps_of_areas_and_no_answer(finished, copied):
    (copied / "evaluation.json").unlink()
    for path in copied.glob("*.tif"):
        path.unlink()
    predicted = read_record(finished.out)["predict"]
    predicted = predicted | {"summary": predicted["summary"] | {"n_pix": 0}}
    assert not finished.report(copied, predict=predicted)["evaluated"]
    page = (copied / "report.html").read_text(encoding="utf-8")
    assert "Not evaluated" in page
    assert "vbagg repeats them. Scores of hidden areas alone say how well it predicts." in page
    assert "Hidden areas" not in page
    assert "Observed against predicted" in page
    data = page_data(page)
    assert data["rasters"] == []
    assert data["left"] == "area_fitted_rate"
    table = pd.read_csv(copied / "areas.csv")
    (layer,) = (each for each in data["fills"] if each["name"] == "area_fitted_rate")
    # The highest rate has the darkest colour.
    light = [sum(int(c[k : k + 2], 16) for k in (1, 3, 5)) for c in layer["colours"]]
    assert light[int(table["fitted_rate"].argmax())] == min(light)


@pytest.mark.ci
def test_a_run_of_labels_has_probabilities_and_no_counts(tmp_path):
    spec = CountrySpec((50, 56), 1 / 12, 1500, 24, 8, 1e6, covariates=tuple(LAYERS)[:3])
    path = simulate_country(tmp_path, spec, seed=3, labels=True)
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["fit"] = {"max_epochs": 3, "seed": 1}
    document["evaluate"] = {"folds": 2, "schemes": ["area"]}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    config = load_config(path)
    names = ("ingest", "fit", "predict", "evaluate", "report")
    run_stages(config, names, Silent())
    page = (config.output.dir / "report.html").read_text(encoding="utf-8")
    assert "Better than one probability" in page
    assert "Residuals" not in page
    assert "if of the areas with 30 % three of ten are positive" in page
    data = page_data(page)
    assert data["left"] == "probability_mean"
    assert data["facts"]["labels"][0] == "Probability to be positive"
    assert [each.skipped for each in run_stages(config, names, Silent())] == [True] * 5


def test_an_evaluation_of_another_fit_is_left_out(finished):
    record = read_record(finished.out)
    assert read_evaluation(finished.out, record) is not None
    fit = {**record["fit"], "outputs": {"work/model": "another"}}
    assert read_evaluation(finished.out, record | {"fit": fit}) is None
    assert read_evaluation(finished.out, {}) is not None


@pytest.mark.ci
def test_tables_and_maps_of_other_stages_are_shown_where_they_are(finished, copied):
    percent = np.arange(101)
    reached = 100 * (percent / 100) ** 0.5
    curve = {"level": "pixels", "percent": percent, "cases_reached": reached}
    curve |= {"cases_reached_lower": reached - 1, "cases_reached_upper": reached + 1}
    pd.DataFrame(curve).to_csv(copied / "targeting.csv", index=False)
    pd.DataFrame({"id": ["a<b"], "rate": [3.25]}).to_csv(copied / "levels_region.csv", index=False)
    folder = copied / "compare"
    folder.mkdir()
    about = {
        "of": "v1",
        "areas": [{"id": "x", "ratio": 1.5}],
        "b": {"directory": "/secret/place"},
        "total": {"cases": {"a": 1, "difference": -12.5}, "rate": {"a": 2, "difference": 3}},
    }
    (folder / "compare.json").write_text(json.dumps(about), encoding="utf-8")
    with rasterio.open(copied / "rate_mean.tif") as source:
        values, profile = source.read(1), source.profile | {"driver": "GTiff"}
    change = np.where(np.isfinite(values), 0.0, np.nan)
    known = np.argwhere(np.isfinite(values))
    row, column = known[7]
    change[tuple(known[: len(known) // 3].T)] = -40.0
    for name, band in (("difference_mean", change), ("change_probability", 0 * change + 0.25)):
        with rasterio.open(folder / f"{name}.tif", "w", **profile) as sink:
            sink.write(band.astype(values.dtype), 1)
            sink.set_band_description(1, f"{name} of the rate")
            sink.set_band_unit(1, "1" if name == "change_probability" else "cases")
    finished.report(copied)
    page = (copied / "report.html").read_text(encoding="utf-8")
    assert "Level: region" in page
    assert "a&lt;b" in page
    section = page[page.index('<section id="comparison"') :]
    cells = texts(section[: section.index("</section>")], "td")
    assert {"v1", "1.5", "−12.5"} <= set(cells)
    assert "/secret" not in page
    section = page[page.index('<section id="targeting"') :]
    assert "as good as the map: Better than one rate for the whole country: by area" in section
    assert section.index("<img") < section.index("<table")
    cells = texts(section[: section.index("</section>")], "td")
    assert ["20", "44.7", "43.7", "45.7"] in [cells[k : k + 4] for k in range(len(cells))]

    layers = {each["name"]: each for each in page_data(page)["rasters"]}
    layer = layers["difference_mean"]
    assert layer["title"] == "Change: difference_mean of the rate"
    assert layer["unit"] == "cases"
    assert layers["change_probability"]["unit"] == ""
    with Image.open(io.BytesIO(base64.b64decode(layer["uri"].split(",")[1]))) as image:
        shown = np.asarray(image)
    names = layer["values"]
    here = names[shown[row, column] - 1]
    assert float(here.replace("−", "-")) == pytest.approx(-40, abs=1)
    assert {names[k - 1] for k in np.unique(shown) if k} == {"0", here}
    assert names[0].replace("−", "-") == "-" + names[-1]  # as far below 0 as above
    assert "What changed" in page
    # Of older maps: neither maps nor tables.
    made = (copied / "rate_mean.tif").stat().st_mtime
    os.utime(folder / "compare.json", (made - 5, made - 5))
    (copied / "targeting.csv").unlink()
    finished.report(copied)
    page = (copied / "report.html").read_text(encoding="utf-8")
    assert not [each for each in ("difference_mean", "What changed", "Targeting") if each in page]


def test_reconciled_maps_are_said_in_words(finished):
    reconcile = Reconcile(to="counts", levels=("training", "country"))
    output = finished.config.output.model_copy(update={"reconcile": reconcile})
    config = finished.config.model_copy(update={"output": output})
    assert reconciled_words(finished.config, {}) == []
    assert asked.reconciled_to(finished.config) is None
    factors = {"training": {"least": ["A", 0.25], "largest": ["B", 3.0], "middle": 1.1}}
    first, second = reconciled_words(config, {"factors": factors})
    assert first == (
        "Maps and columns called “reconciled” are scaled so that they add up to the reported "
        "counts of the levels training and country. All other maps and numbers of this page are "
        "not."
    )
    assert second.startswith(
        "Factors of the level training: 0.25 in A to 3 in B, half of them below"
    )
    told = dict(asked.what_was_asked(config, {"n_areas": 9, "n_pixels": 99}))
    assert told["Reconciled"].startswith("a second set of maps, scaled to add up to the reported")


def test_only_totals_that_are_kept_are_said_to_be_added_up_to(finished):
    reconcile = Reconcile(to="tot", levels=("training", "country"))
    output = finished.config.output.model_copy(update={"reconcile": reconcile})
    config = finished.config.model_copy(update={"output": output})
    why = "the only total of the level country is dropped: those of its parts hold"
    scaled = {"kept": {"training": [9, 9], "country": [0, 1]}, "not_kept": [why]}
    first, second = reconciled_words(config, scaled)
    assert "add up to column “tot” of the level training. All other" in first
    assert second == f"T{why[1:]}."
    told = dict(asked.what_was_asked(config, {"n_areas": 9, "n_pixels": 99}, scaled))
    assert told["Reconciled"] == (
        f"a second set of maps, scaled to add up to column “tot” of the level training; {why}"
    )
    none = {"kept": {"training": [0, 9], "country": [0, 0]}}
    assert "no total: none of column “tot” could be kept" in reconciled_words(config, none)[0]


def test_a_model_without_uncertainty_says_so_first(finished, copied):
    model = finished.config.model.model_copy(update={"kind": "nystrom"})
    output = finished.config.output.model_copy(update={"exceedance": (50.0,)})
    changed = finished.config.model_copy(update={"model": model, "output": output})
    told = dict(asked.what_was_asked(changed, {"n_areas": 9, "n_pixels": 99}))
    assert told["Intervals"].startswith("none: the model has no uncertainty")
    assert told["Thresholds"] == (
        "probability that the rate is above 50 (the model has no uncertainty)"
    )
    replace(finished, config=changed).report(copied)
    page = (copied / "report.html").read_text(encoding="utf-8")
    beware = page.partition("What to beware of")[2]
    assert beware.index("Nystrom has no uncertainty: ") == beware.index("<li>") + len("<li>")
    assert "of the posterior;" not in page
    assert "and its uncertainty</h2>" not in page
    assert "from, to: no interval (the model has no uncertainty), but the fitted rate" in page
    assert "lower and upper are the same: the model has no uncertainty" in page
    assert "of the posterior; those of areas" in finished.page()
    assert "no uncertainty" not in finished.page()


def test_a_model_of_areas_alone_is_not_said_to_map_pixels(finished):
    sizes = {"n_areas": 9, "n_pixels": 99}
    assert dict(asked.what_was_asked(finished.config, sizes))["Mapped"].startswith(
        "the rate of each area, in cases"
    )
    sizes |= {"shape": (3, 4)}
    assert "of each pixel" in dict(asked.what_was_asked(finished.config, sizes))["Mapped"]
    page = finished.page()
    assert "is the value of the pixel under the pointer." in page
    assert "nothing was observed in the pixel itself" in page


def test_what_was_used_adds_up_with_what_was_left_out(finished):
    """Where nothing was left out, too, the page says what the map is from."""
    left = read_record(finished.out)["ingest"]["summary"]["left_out"]
    n, of = left["of_pixels"] - left["pixels"], left["of_pixels"]
    told = f"all {n:,}" if n == of else f"{n:,} of the {of:,}"
    assert (
        f"The map is from the counts of 24 areas, and {told} pixels of 24 areas" in finished.page()
    )
    none = {"pixels": 0, "of_pixels": of}
    said = left_out({"ingest": {"summary": {"left_out": none}}})
    assert said == ["No pixel and no area was left out."]


def test_points_that_were_left_out_are_on_the_page():
    left = left_out_words({"without_value_or_place": 1, "outside": 0, "all_counted": 2})
    assert left == "1 without a value or a place, 2 whose areas all have a count"
    assert left_out({}, [f"Left out of dhs: {left}."]) == [f"Left out of dhs: {left}."]


def test_both_shares_of_areas_in_their_intervals_are_told_apart(finished):
    """Areas on an end of an interval are inside of it in one share, in part in the other."""
    evaluation = json.loads((finished.out / "evaluation.json").read_text())
    scores = evaluation["in_sample"]["intervals"]["0.9"]["coverage"]
    said = next(each for each in texts(finished.page(), "p") if "lie inside their" in each)
    assert "its ends included; the table of scores counts an area whose cases" in said
    assert f"and so has {100 * scores:.3g} % in sample." in said


def test_every_colour_has_the_value_of_its_raster(finished):
    """Second route: the raster's own numbers, at each pixel, through the picture and back."""
    layer = page_data(finished.page())["rasters"][0]
    values = read(finished.out / "rate_mean.tif")
    shown = picture(layer["uri"])
    red, green, blue, alpha = np.moveaxis(shown, 2, 0)
    text = dict(reversed(list(zip(layer["palette"], layer["values"], strict=True))))
    known = np.isfinite(values)
    np.testing.assert_array_equal(alpha > 0, known)
    found = [text[c] for c in ((red << 16) | (green << 8) | blue)[known].tolist()]
    numbers = np.array([float(re.sub("[≤≥ ,]", "", each)) for each in found])
    ends = [float(re.sub("[≤≥ ,]", "", layer["values"][k])) for k in (0, -1)]
    wanted = np.clip(values[known], *ends)
    # Breaks are evenly spaced here: a colour is a 254th of the scale, and a text has three digits.
    assert np.abs(numbers - wanted).max() < 0.012 * (ends[1] - ends[0])
    scale = raster_scale(finished.config, finished.out, RATE_MEAN)
    for row, column in np.argwhere(known)[::97]:
        exact = [int(scale.colour(values[row, column])[k : k + 2], 16) for k in (1, 3, 5)]
        assert np.abs(shown[row, column, :3] - exact).max() <= 3


def test_borders_are_those_of_the_areas(finished):
    data = page_data(finished.page())
    areas = gpd.read_file(finished.out / "areas.gpkg", layer="areas")
    with rasterio.open(finished.out / "rate_mean.tif") as source:
        bounds = source.bounds
    # The shoelace formula on the page's rings, against the areas of the shapes.
    degrees = (bounds.right - bounds.left) * (bounds.top - bounds.bottom)
    unit = degrees / (data["width"] * data["height"])
    for shape, own in zip(areas.geometry, data["areas"], strict=True):
        found = 0.0
        for outer, *inner in own["rings"]:
            for sign, ring in ((1, outer), *((-1, each) for each in inner)):
                x, y = np.array([*ring, ring[0]]).T
                found += sign * abs(float(x[:-1] @ y[1:] - x[1:] @ y[:-1])) / 2
        assert found * unit == pytest.approx(shape.area, rel=0.02)


def test_the_map_library_is_the_published_one(monkeypatch, capsys):
    assert vendor.damaged() == []
    assert vendor.source()["licence"] == "BSD-2-Clause"
    monkeypatch.setattr(sys, "argv", ["vendor"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(vendor.__file__, run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("leaflet 1.9.4: as published")


def test_tables_and_pictures_have_their_units(finished):
    page = finished.page()
    levels = page.split('<section id="levels"')[1].split("</section>")[0]
    assert levels.count("Rates are cases per 1,000 people") == 2  # training, country
    unitless = {each["name"] for each in page_data(page)["rasters"] if not each["unit"]}
    exceedance = {each for each in unitless if each.startswith("exceedance")}
    assert unitless - exceedance == {"coverage", "data_support", "targeting_rank"}
    named = {each["name"] for each in page_data(page)["rasters"]}
    assert exceedance == {each for each in named if each.startswith("exceedance")}
