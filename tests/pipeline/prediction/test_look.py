"""One look: the picture, the rasters' styles and the areas' style have the same colours."""

from __future__ import annotations

import re
import shutil
import sqlite3
import xml.etree.ElementTree as ET
from contextlib import closing

import geopandas as gpd
import numpy as np
import pytest
import rasterio
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from geo.writers.colours import Scale
from geo.writers.raster_files import RasterFiles
from pipeline.prediction.area_description import describe_areas
from pipeline.products.colours import raster_scale
from pipeline.products.products import RATE_MEAN, RATE_SD
from pipeline.products.tags import run_tags
from pipeline.reporting import preview
from pipeline.reporting.borders import Borders
from pipeline.reporting.preview import BreakNorm, draw_preview
from tests.bands import read


@pytest.fixture(scope="module")
def results(world, predicted, tmp_path_factory):
    """Draw the picture; also give the panels that it was drawn from."""
    out = tmp_path_factory.mktemp("look") / "out"
    shutil.copytree(predicted[0], out)
    config = world.with_config(output={"dir": str(out)})
    panels = []
    with pytest.MonkeyPatch.context() as patch:
        draw = preview.draw_map

        def keep(axes, shown, rings, panel):
            panels.append((axes, panel))
            draw(axes, shown, rings, panel)

        patch.setattr(preview, "draw_map", keep)
        areas = gpd.read_file(out / "areas.gpkg", layer="areas")
        with RasterFiles() as files:
            borders = Borders(areas, files)
            figure = draw_preview(config, out, "better: by area yes", files, borders)
    assert "better: by area yes" in [text.get_text() for text in figure.texts]
    return config, out, panels


def test_the_scale_bar_is_seen_on_dark_pixels_and_intervals_are_not_rounded(results):
    _, _, panels = results
    axes = panels[0][0]
    (bar,) = axes.lines
    text = next(each for each in axes.texts if each.get_text().endswith(" km"))
    assert all(each.get_path_effects() for each in (bar, text))
    legend = axes.figure.axes[2].get_legend().get_title().get_text()
    assert re.fullmatch(r"90 % predictive interval\n\([\d.]+ % inside, in sample\)", legend)


def _items(path):
    text = path.read_text(encoding="utf-8").split("\n", 1)[1]
    return [(float(i.get("value")), i.get("color")) for i in ET.fromstring(text).iter("item")]


def _as_qgis(items, values):
    """Interpolate colours linearly between the items of a style, as QGIS does: (n, 3)."""
    at, colours = zip(*items, strict=True)
    parts = np.array([[int(c[k : k + 2], 16) for k in (1, 3, 5)] for c in colours])
    return np.stack([np.interp(values, at, part) for part in parts.T], axis=-1)


def test_mean_median_lower_and_upper_share_a_stretch(results):
    _, out, _ = results
    styles = {n: _items(out / f"rate_{n}.qml") for n in ("mean", "median", "lower", "upper", "sd")}
    assert styles["mean"] == styles["median"] == styles["lower"] == styles["upper"]
    assert styles["sd"] != styles["mean"]
    assert [value for value, _ in _items(out / "exceedance_50.qml")] == [0, 0.2, 0.4, 0.6, 0.8, 1]
    first = ET.fromstring((out / "rate_mean.qml").read_text().split("\n", 1)[1]).find(".//item")
    assert first.get("label").endswith("cases per 1,000 people")


def test_the_picture_has_the_colours_of_the_style(results):
    _, out, panels = results
    axes, panel = panels[0]
    image = axes.images[0]
    values = read(out / "rate_mean.tif")
    drawn = image.cmap(image.norm(np.ma.masked_invalid(values)))
    known = np.isfinite(values)
    wanted = _as_qgis(_items(out / "rate_mean.qml"), values[known])
    np.testing.assert_allclose(255 * drawn[known][:, :3], wanted, atol=1)
    assert (drawn[~known][:, 3] == 0).all()  # missing pixels are transparent
    values = [value for value, _ in _items(out / "rate_mean.qml")]
    assert image.colorbar.get_ticks().tolist() == values == list(panel.scale.breaks)
    assert panel.title == "Mean rate"
    assert panel.label == "cases per 1,000 people"
    assert panels[1][1].label == "standard deviation, % of the mean"


def test_breaks_stand_at_equal_distances_and_come_back():
    scale = Scale.of(np.geomspace(1, 1000, 50))
    norm = BreakNorm(scale)
    np.testing.assert_allclose(norm(np.array(scale.breaks)), np.linspace(0, 1, len(scale.breaks)))
    values = np.array([1.5, 40.0, 777.0])
    np.testing.assert_allclose(norm.inverse(norm(values)), values)
    assert norm(np.ma.masked_invalid([2.0, np.nan])).mask.tolist() == [False, True]
    colours = LinearSegmentedColormap.from_list("x", list(scale.colours))
    figure = Figure()
    image = figure.subplots().imshow(values[None], norm=norm, cmap=colours)
    figure.colorbar(image)
    figure.draw_without_rendering()


def test_areas_open_with_the_colours_of_the_map(results):
    config, out, _ = results
    with closing(sqlite3.connect(out / "areas.gpkg")) as database:
        (style,) = database.execute("SELECT styleQML FROM layer_styles").fetchone()
        aliases = dict(database.execute("SELECT column_name, name FROM gpkg_data_columns"))
        title, about = database.execute(
            "SELECT identifier, description FROM gpkg_contents WHERE table_name = 'areas'"
        ).fetchone()
    renderer = ET.fromstring(style.split("\n", 1)[1]).find("renderer-v2")
    assert renderer.get("attr") == "fitted_rate"
    scale = raster_scale(config, out, RATE_MEAN)
    ends = {float(r.get("lower")) for r in renderer.iter("range")}
    assert set(scale.breaks[1:-1]) <= ends
    assert aliases["fitted_rate"] == "fitted rate (cases per 1,000 people)"
    assert aliases["count_lower"] == "predicted cases: 90 % interval, lower end"
    assert "code" not in aliases
    assert title == "little: areas"
    assert about.startswith("Observed cases and fitted rate (cases per 1,000 people) of each area")


def test_areas_of_a_model_without_maps_have_colours_of_their_own(results, world, tmp_path):
    _, out, _ = results
    shutil.copy(out / "areas.gpkg", tmp_path)
    with closing(sqlite3.connect(tmp_path / "areas.gpkg")) as database, database:
        database.execute("DELETE FROM layer_styles")
    describe_areas(world.config, tmp_path)
    frame = gpd.read_file(tmp_path / "areas.gpkg", layer="areas")
    with closing(sqlite3.connect(tmp_path / "areas.gpkg")) as database:
        (style,) = database.execute("SELECT styleQML FROM layer_styles").fetchone()
    ranges = list(ET.fromstring(style.split("\n", 1)[1]).iter("range"))
    low, high = float(ranges[0].get("lower")), float(ranges[-1].get("upper"))
    assert low <= frame["fitted_rate"].min()
    assert high >= frame["fitted_rate"].max()


def test_tags_tell_what_made_a_raster(results, world, tmp_path):
    _, out, _ = results
    with rasterio.open(out / "rate_sd.tif") as source:
        tags, band = source.tags(), source.tags(1)
        values = source.read(1, masked=True).compressed().astype(np.float64)
    assert tags["covariates"] == "wave, north"
    assert tags["likelihood"] == "poisson"
    assert tags["model"] == "vbagg"
    assert tags["rate_unit"] == "cases per 1,000 people"
    assert tags["TIFFTAG_SOFTWARE"] == f"disagg {tags['version']}"
    assert "period" not in tags
    assert float(band["STATISTICS_MAXIMUM"]) == values.max()
    assert float(band["STATISTICS_MEAN"]) == pytest.approx(values.mean(), rel=1e-12)
    dump = world.config.model_dump(mode="json") | {"period": "2026-03"}
    config = type(world.config).model_validate(dump, context={"base": world.directory})
    assert run_tags(config, world.store, world.model)["period"] == "2026-03"
    assert raster_scale(world.config, tmp_path, RATE_SD) is None  # of a map that is absent
