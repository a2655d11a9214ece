"""Colour scales and styles: rounded breaks, dark where high, and what QGIS reads of them."""

from __future__ import annotations

import itertools
import sqlite3
import warnings
import xml.etree.ElementTree as ET

import geopandas as gpd
import numpy as np
import pyogrio
import pytest
from affine import Affine
from shapely.geometry import box

from geo.grids.grid import Grid
from geo.writers.colours import RAMPS, Scale, ramp_colours
from geo.writers.geopackage import LayerDescription, describe_layer, graduated_style
from geo.writers.geotiff import TiledWriter
from geo.writers.styles import raster_sld, raster_style, write_style


def _lightness(colour: str) -> float:
    """Return CIE L*, 0 (black) to 100 (white), by the standard's formulas."""
    rgb = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    y = float(linear @ [0.2126, 0.7152, 0.0722])
    return 116 * np.cbrt(y) - 16 if y > 216 / 24389 else y * 24389 / 27


@pytest.mark.parametrize("ramp", RAMPS)
@pytest.mark.parametrize("n", [2, 5, 9])
def test_high_is_dark_and_low_differs_from_missing(ramp, n):
    lightness = [_lightness(colour) for colour in ramp_colours(ramp, n)]
    if ramp == "priority":  # of ranks: the first is dark
        lightness.reverse()
    assert (np.diff(lightness) < -3).all()
    assert lightness[0] < 98
    assert lightness[0] - lightness[-1] > 60


@pytest.mark.parametrize(
    ("values", "breaks"),
    [
        (np.full(4, np.nan), (0, 0.2, 0.4, 0.6, 0.8, 1)),
        (np.empty(0), (0, 0.2, 0.4, 0.6, 0.8, 1)),
        (np.linspace(0, 10, 101), (0, 2, 4, 6, 8, 10)),
        (np.linspace(1, 10, 101), (0, 2, 4, 6, 8, 10)),  # nearly from 0
        (np.linspace(10, 11, 101), (10, 10.2, 10.4, 10.6, 10.8, 11)),
        (np.linspace(-3, 3, 101), (-3, -2, -1, 0, 1, 2, 3)),
        (np.geomspace(1, 1000, 101), (1, 3, 10, 30, 100, 300, 1000)),
        (np.geomspace(3, 300, 101), (2, 5, 10, 20, 50, 100, 200, 500)),
    ],
)
def test_breaks_are_round_and_span_the_values(values, breaks):
    found = Scale.of(values).breaks
    assert found == breaks
    known = values[np.isfinite(values)]
    if known.size:
        low, high = np.quantile(known, [0.01, 0.99])
        assert found[0] <= low
        assert found[-1] >= high
    for value in found:  # at most two digits that are not zero, three for quarters
        assert len(f"{value:.10e}".split("e")[0].strip("-").replace(".", "").rstrip("0")) <= 3


@pytest.mark.parametrize("constant", [0.0, 3.0, -7.0, 1e-9, 123456.0])
def test_a_constant_map_has_a_scale(constant):
    scale = Scale.of(np.full(9, constant))
    assert scale.breaks[0] <= constant <= scale.breaks[-1]
    assert scale.breaks[0] < scale.breaks[-1]


def test_skewed_values_have_logarithmic_breaks_in_reasonable_number():
    rng = np.random.default_rng(0)
    for spread in (0.8, 1.5, 3.0, 6.0):
        scale = Scale.of(np.exp(rng.normal(0, spread, 5000)))
        ratio = np.divide(scale.breaks[1:], scale.breaks[:-1])
        assert 2 <= len(scale.breaks) <= 9
        if spread > 1:
            assert ratio.min() >= 2
            assert ratio.max() <= 10
    zeros = np.concatenate([np.zeros(60), np.geomspace(1, 1000, 140)])
    assert Scale.of(zeros).breaks[0] > 0
    assert Scale.of(zeros).below


def test_given_ends_are_kept():
    assert Scale.of(np.linspace(0.2, 0.3, 9), low=0, high=1).breaks == (0, 0.2, 0.4, 0.6, 0.8, 1)
    assert Scale.of(np.linspace(0.2, 0.3, 9), low=0).breaks[0] == 0


def test_labels_tell_the_unit_once_and_where_values_go_on():
    scale = Scale((0.0, 500.0, 1000.0), ("#ffffff", "#888888", "#000000"))
    assert scale.labels("t per ha") == ["0 t per ha", "500", "1,000"]
    beyond = Scale(scale.breaks, scale.colours, below=True, above=True)
    assert beyond.labels("t") == ["\u2264 0 t", "500", "\u2265 1,000"]
    assert Scale.of(np.append(np.zeros(1000) + np.arange(1000), 1e6)).above


def test_colours_between_breaks_are_mixed_in_proportion():
    scale = Scale((0.0, 10.0, 30.0), ("#ff0000", "#00ff00", "#0000ff"))
    assert [scale.colour(v) for v in (0, 5, 10, 20, 99)] == [
        "#ff0000", "#808000", "#00ff00", "#008080", "#0000ff",
    ]  # fmt: skip
    finer = scale.refined(4)
    assert finer.breaks == (0, 5, 10, 20, 30)
    assert all(finer.colour(v) == scale.colour(v) for v in finer.breaks)


def test_rasters_of_one_stretch_share_their_breaks(tmp_path):
    grid = Grid("EPSG:32738", Affine(100, 0, 5e5, 0, -100, 8e6), (40, 50))
    paths = []
    for k in range(2):
        paths.append(tmp_path / f"{k}.tif")
        values = np.linspace(10, 20, 2000).reshape(40, 50) + 30 * k
        with TiledWriter(paths[-1], grid) as out:
            out.write(grid.whole, values)
    assert Scale.of_rasters(paths[:1]).breaks == (10, 12, 14, 16, 18, 20)
    both = Scale.of_rasters(paths)
    assert both.breaks == (10, 20, 30, 40, 50)
    assert not both.below
    given = Scale.of_rasters(paths, low=12, high=30)
    assert given.breaks == (12, 15, 20, 25, 30)
    assert given.below
    assert given.above


def test_the_style_is_what_qgis_reads(tmp_path):
    scale = Scale((0.0, 10.0, 30.0), ("#ff0000", "#00ff00", "#0000ff"), above=True)
    path = write_style(tmp_path / "a.tif", scale, "cases & more")
    assert path == tmp_path / "a.qml"
    root = ET.fromstring(path.read_text(encoding="utf-8").split("\n", 1)[1])
    renderer = root.find("pipe/rasterrenderer")
    assert renderer.get("type") == "singlebandpseudocolor"
    shader = renderer.find("rastershader/colorrampshader")
    assert shader.get("colorRampType") == "INTERPOLATED"
    assert shader.get("clip") == "0"  # what lies beyond has the colour of the end
    assert shader.find("rampLegendSettings").get("useContinuousLegend") == "0"
    items = [(float(i.get("value")), i.get("color"), i.get("label")) for i in shader.iter("item")]
    assert items == [
        (0, "#ff0000", "0 cases & more"),
        (10, "#00ff00", "10"),
        (30, "#0000ff", "\u2265 30"),
    ]
    stops = shader.find("colorramp/prop[@k='stops']").get("v")
    assert stops == "0.333333;0,255,0,255"
    assert renderer.find("minMaxOrigin/limits").text == "None"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.qml", "a.sld"]
    assert raster_style(scale) != raster_style(scale, "t")


def test_the_sld_has_the_colours_of_the_qgis_style(tmp_path):
    scale = Scale((0.0, 12.5, 30.0), ("#ff0000", "#00ff00", "#0000ff"), above=True)
    style = write_style(tmp_path / "rate & more.tif", scale, "cases < all")
    qml = ET.fromstring(style.read_text(encoding="utf-8").split("\n", 1)[1])
    sld = ET.parse(style.with_suffix(".sld")).getroot()
    space = "{http://www.opengis.net/sld}"
    assert (sld.tag, sld.get("version")) == (f"{space}StyledLayerDescriptor", "1.0.0")
    assert sld.find(f"{space}NamedLayer/{space}Name").text == "rate & more"
    (colours,) = sld.iter(f"{space}ColorMap")
    assert colours.get("type") == "ramp"  # interpolated, as QGIS does
    found = [(float(e.get("quantity")), e.get("color"), e.get("label")) for e in colours]
    assert found == [
        (float(i.get("value")), i.get("color"), i.get("label")) for i in qml.iter("item")
    ]
    assert found[0] == (0, "#ff0000", "0 cases < all")
    assert {e.get("opacity") for e in colours} == {"1"}
    assert raster_sld("a", scale) != raster_sld("a", scale, "t")


def _package(path):
    frame = gpd.GeoDataFrame(
        {"rate": [1.0, 25.0, np.nan], "name": ["a", "b", "c"]},
        geometry=[box(k, 0, k + 1, 1) for k in range(3)],
        crs="EPSG:4326",
    )
    frame.to_file(path, layer="areas", driver="GPKG")
    return frame


def test_a_geopackage_has_aliases_a_title_and_a_default_style(tmp_path):
    path = tmp_path / "areas.gpkg"
    frame = _package(path)
    scale = Scale((0.0, 10.0, 30.0), ("#ff0000", "#00ff00", "#0000ff"), above=True)
    aliases = {"rate": "fitted rate (t per ha)"}
    style = graduated_style("rate", scale, "t per ha", aliases)
    describe_layer(path, "areas", LayerDescription("my map: areas", "Rates, 2026", aliases, style))

    back = gpd.read_file(path, layer="areas")
    np.testing.assert_array_equal(back["rate"], frame["rate"])
    found = pyogrio.read_info(path, layer="areas")["layer_metadata"]
    assert found["IDENTIFIER"] == "my map: areas"
    assert found["DESCRIPTION"] == "Rates, 2026"
    assert pyogrio.list_layers(path)[:, 0].tolist() == ["areas", "layer_styles"]
    styles = pyogrio.read_dataframe(path, layer="layer_styles", read_geometry=False)
    assert styles["f_table_name"].tolist() == ["areas"]
    assert styles["f_geometry_column"].tolist() == ["geom"]
    assert bool(styles["useAsDefault"][0])
    root = ET.fromstring(styles["styleQML"][0].split("\n", 1)[1])
    assert root.find("aliases/alias").attrib == {"field": "rate", "name": aliases["rate"]}
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT column_name, name FROM gpkg_data_columns").fetchall() == [
            ("rate", aliases["rate"])
        ]
        assert database.execute(
            "SELECT count(*) FROM gpkg_extensions WHERE extension_name = 'gpkg_schema'"
        ).fetchone() == (2,)
    database.close()
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert len(gpd.read_file(path)) == 3  # the areas come first


def test_classes_of_areas_cover_every_value_once():
    scale = Scale((0.0, 10.0, 30.0), ("#ff0000", "#00ff00", "#0000ff"), above=True)
    root = ET.fromstring(graduated_style("rate", scale, "t").split("\n", 1)[1])
    renderer = root.find("renderer-v2")
    assert renderer.get("attr") == "rate"
    ranges = renderer.findall("ranges/range")
    ends = [(float(r.get("lower")), float(r.get("upper"))) for r in ranges]
    assert len(ends) >= 6
    assert ends[0][0] == 0
    assert ends[-1][1] > 1e99
    assert all(one[1] == two[0] for one, two in itertools.pairwise(ends))
    symbols = {s.get("name"): s for s in renderer.findall("symbols/symbol")}
    for r, (low, high) in zip(ranges, ends, strict=True):
        found = symbols[r.get("symbol")].find("layer/prop[@k='color']").get("v")
        wanted = scale.colour((low + min(high, 30)) / 2)
        parts = [int(part) for part in found.split(",")]
        # Breaks between those of the scale are rounded to whole colours first.
        np.testing.assert_allclose(
            parts[:3], [int(wanted[k : k + 2], 16) for k in (1, 3, 5)], atol=1
        )
        assert parts[3] == 255
    assert ranges[0].get("label").endswith(" t")


def test_a_package_that_cannot_be_written_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match=r"areas\.gpkg"):
        describe_layer(tmp_path / "no" / "areas.gpkg", "areas", LayerDescription("a", "b", {}))
