"""The catalogue of a run: its STAC item by pystac, its QGIS project by its XML and its sources."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pyogrio
import pystac
import pytest
import rasterio
import rioxarray
from odc.geo.xr import ODCExtensionDa  # noqa: F401 (registers .odc)
from pyproj import CRS
from pystac.extensions.file import FileExtension
from pystac.extensions.projection import ProjectionExtension
from pystac.extensions.raster import RasterExtension
from pystac.extensions.version import ItemVersionExtension

from geo.core.errors import InputError
from pipeline.catalogue.dates import days_of
from pipeline.catalogue.project import label_column
from pipeline.catalogue.stac import slug
from pipeline.catalogue.write import write_catalogue
from pipeline.config.context import StageContext
from pipeline.core.revision import full_version
from pipeline.levels.level_files import write_joint_files
from pipeline.prediction.stage import predict_stage
from tests.pipeline.catalogue.conftest import REQUIRED, read_project
from tests.progress import Notes

# affine warns of its own operator, which rioxarray uses.
pytestmark = pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")


@pytest.fixture(scope="module")
def dataset(world, tmp_path_factory):
    """A finished directory with its catalogue, the configuration, and the names written."""
    out = tmp_path_factory.mktemp("dataset") / "a run, été"
    shutil.copytree(world.directory / "out", out)
    config = world.with_config(output={"dir": str(out)})
    predict_stage(StageContext(config))
    write_joint_files(config, config.output.dir, "not evaluated")
    (out / "evaluation.json").write_text("{}")
    (out / "preview.png").write_bytes(b"a picture")  # of the report stage
    (out / "notes.txt").write_text("of a user: not of the run")
    notes = Notes()
    names = write_catalogue(config, out, world.model, notes)
    return out, config, names


def read_item(out: Path) -> pystac.Item:
    collection = pystac.Collection.from_file(str(out / "stac/collection.json"))
    (item,) = collection.get_items()
    return item


def test_the_files_are_named_and_valid(dataset, validator):
    out, _, names = dataset
    assert names == ["disagg.qgz", "stac/collection.json", "stac/item.json"]
    assert all((out / name).is_file() for name in names)
    assert sorted(p.name for p in (out / "stac").iterdir()) == ["collection.json", "item.json"]
    collection = pystac.Collection.from_file(str(out / "stac/collection.json"))
    assert collection.validate(validator)
    item = read_item(out)
    checked = item.validate(validator)
    assert [each for each in checked if each in REQUIRED] == item.stac_extensions
    assert set(item.stac_extensions) == set(REQUIRED)
    item.properties["processing:level"] = "best"  # the check can fail
    with pytest.raises(pystac.STACValidationError):
        item.validate(validator)


def test_every_file_of_the_run_is_an_asset_with_its_checksum(dataset):
    out, _, _ = dataset
    item = read_item(out)
    here = {p for p in out.iterdir() if p.is_file()} - {out / "notes.txt"}
    found = {Path(a.get_absolute_href()) for a in item.assets.values()}
    assert found == here | {out / "run.json"}  # which the run writes last
    for key, asset in item.assets.items():
        assert asset.href.startswith("../")
        assert asset.title
        assert asset.roles
        assert asset.media_type
        if key == "run.json":
            assert not asset.ext.has("file") or FileExtension.ext(asset).checksum is None
            continue
        path, details = Path(asset.get_absolute_href()), FileExtension.ext(asset)
        digest = hashlib.sha256(path.read_bytes()).digest()
        assert bytes.fromhex(details.checksum) == bytes([0x12, 0x20]) + digest
        assert details.size == path.stat().st_size
    roles = {key: asset.roles for key, asset in item.assets.items()}
    assert roles["rate_mean"] == ["data"]
    assert roles["rate_mean.sld"] == ["metadata", "style"]
    assert roles["preview.png"] == ["overview", "thumbnail"]
    assert item.assets["exceedance_62.5"].title == (
        "Probability that the rate is above 62.5 cases per 1,000 people"
    )


def test_bands_have_the_numbers_of_their_pixels(dataset):
    out, _, _ = dataset
    for key, asset in read_item(out).assets.items():
        if asset.media_type is None or "geotiff" not in asset.media_type:
            continue
        # By rioxarray, and by NumPy: another way than the sums that wrote the tags.
        data = rioxarray.open_rasterio(asset.get_absolute_href(), masked=True).squeeze("band")
        values = data.values.astype(np.float64)
        known = values[np.isfinite(values)]
        (band,) = RasterExtension.ext(asset).bands
        wanted = {
            "minimum": known.min(),
            "maximum": known.max(),
            "mean": known.mean(),
            "stddev": known.std(),
            "valid_percent": 100 * known.size / values.size,
        }
        assert band.statistics.to_dict() == pytest.approx(wanted, rel=1e-6), key
        assert band.nodata == "nan"
        assert band.data_type == "float32"
        with rasterio.open(asset.get_absolute_href()) as source:
            assert band.unit == (source.units[0] if source.units[0] != "1" else None)
            (own,) = asset.extra_fields["bands"]
            assert own["description"] == source.descriptions[0]
        assert own["statistics"] == band.statistics.to_dict()  # of STAC 1.1 and of the extension
        assert data.rio.crs == CRS.from_user_input(ProjectionExtension.ext(asset).code)
        assert data.odc.geobox.shape == tuple(ProjectionExtension.ext(asset).shape)
        assert tuple(data.odc.geobox.transform)[:6] == pytest.approx(
            ProjectionExtension.ext(asset).transform
        )


def test_the_item_says_where_it_is_and_what_made_it(dataset, world):
    out, config, _ = dataset
    item = read_item(out)
    with rasterio.open(out / "rate_mean.tif") as source:
        west, south, east, north = rasterio.warp.transform_bounds(
            source.crs, "EPSG:4326", *source.bounds, densify_pts=21
        )
    assert item.bbox == pytest.approx([west, south, east, north], abs=1e-6)
    assert ProjectionExtension.ext(item).code == "EPSG:32738"
    software = item.properties["processing:software"]
    assert software["disagg"] == full_version()
    assert software["GDAL"] == rasterio.__gdal_version__
    assert "wave, north" in item.properties["processing:lineage"]
    assert item.properties["disagg:model"]["kind"] == config.model.kind
    assert item.datetime is not None  # the counts are of no period


def test_the_version_is_that_of_the_maps_and_tables(dataset, world, tmp_path):
    out, config, _ = dataset
    first = ItemVersionExtension.ext(read_item(out)).version
    again = tmp_path / "again"
    shutil.copytree(out, again)
    # A style that a user changed is no other version of the map.
    (again / "rate_mean.qml").write_text((out / "rate_mean.qml").read_text() + "<!-- mine -->")
    write_catalogue(config, again)
    assert ItemVersionExtension.ext(read_item(again)).version == first
    rows = (again / "areas.csv").read_text()
    (again / "areas.csv").write_text(rows.replace("1", "2", 1))
    write_catalogue(config, again)
    assert ItemVersionExtension.ext(read_item(again)).version != first


def test_a_directory_that_moves_takes_its_catalogue_along_and_a_period_is_its_time(
    dataset, tmp_path
):
    out, config, _ = dataset
    moved = tmp_path / "moved"
    shutil.copytree(out, moved)
    item = read_item(moved)
    assert Path(item.assets["rate_mean"].get_absolute_href()) == moved / "rate_mean.tif"
    for name in ("item", "collection"):
        assert str(out) not in (moved / f"stac/{name}.json").read_text()
    write_catalogue(config.model_copy(update={"period": "2026-Q1"}), moved)
    item = read_item(moved)
    assert item.id == "little-2026-q1"
    assert item.datetime is None
    days = ["2026-01-01T00:00:00Z", "2026-03-31T23:59:59Z"]
    assert [item.properties[f"{end}_datetime"] for end in ("start", "end")] == days
    collection = json.loads((moved / "stac/collection.json").read_text())
    assert collection["extent"]["temporal"]["interval"] == [days]


@pytest.mark.parametrize(
    ("period", "first", "last"),
    [
        ("2025", "2025-01-01", "2025-12-31"),
        ("2024-02", "2024-02-01", "2024-02-29"),
        ("202412", "2024-12-01", "2024-12-31"),
        ("2026-03-15", "2026-03-15", "2026-03-15"),
        ("2026Q4", "2026-10-01", "2026-12-31"),
        ("2026-W01", "2025-12-29", "2026-01-04"),
    ],
)
def test_the_days_of_a_period(period, first, last):
    start, end = days_of(period)
    assert (start.date().isoformat(), end.date().isoformat()) == (first, last)
    assert (end.hour, end.second) == (23, 59)


def test_other_names_of_periods_have_no_days_and_names_become_ids():
    for period in (None, "", "2026-13", "2026-W60", "2026-02-30", "spring"):
        assert days_of(period) is None
    assert slug("Malaria in Madagascar, 2020/21") == "malaria-in-madagascar-2020-21"
    assert slug("***") == "map"


def test_the_project_has_every_map_in_its_group(dataset):
    out, _, _ = dataset
    tree = read_project(out).find("layer-tree-group")
    groups = {
        group.get("name"): [layer.get("source") for layer in group]
        for group in tree.findall("layer-tree-group")
    }
    assert read_project(out).find("ProjectTimeSettings") is None
    wanted = "Areas Levels Rates Uncertainty Cases Grid Exceedance Support Targeting"
    assert list(groups) == wanted.split()
    assert groups["Rates"] == ["./rate_mean.tif", "./rate_median.tif"]
    assert groups["Exceedance"] == ["./exceedance_50.tif", "./exceedance_62.5.tif"]
    listed = {source for sources in groups.values() for source in sources}
    tables = {"./areas.gpkg|layername=areas"}
    tables |= {f"./levels.gpkg|layername={name}" for name in ("training", "country")}
    assert listed == {f"./{p.name}" for p in out.glob("*.tif")} | tables
    assert "./rate_relative_sd.tif" in groups["Uncertainty"]
    drawn = [x.get("source") for x in tree.iter("layer-tree-layer") if "Un" not in x.get("checked")]
    assert drawn == ["./areas.gpkg|layername=areas", "./rate_mean.tif"]


def test_every_source_of_the_project_opens(dataset):
    out, _, _ = dataset
    root = read_project(out)
    assert root.find("properties/Paths/Absolute").text == "false"
    crs = CRS.from_wkt(root.find("projectCrs/spatialrefsys/wkt").text)
    assert root.find("projectCrs/spatialrefsys/authid").text == "EPSG:32738"
    layers = root.findall("projectlayers/maplayer")
    ids = [layer.find("id").text for layer in layers]
    listed = list(root.find("layer-tree-group").iter("layer-tree-layer"))
    assert len(set(ids)) == len(ids) == len(listed)
    assert {x.get("id") for x in root.iter("layer-tree-layer")} == set(ids)
    assert all(len(each) > 10 for each in ids)  # QGIS makes others of shorter ones
    for layer in layers:
        name, _, table = layer.find("datasource").text.partition("|layername=")
        path = out / name
        if layer.get("type") == "raster":
            with rasterio.open(path) as source:
                assert CRS.from_wkt(source.crs.to_wkt()).equals(crs, ignore_axis_order=True)
                bounds = source.bounds
        else:
            info = pyogrio.read_info(path, layer=table)
            assert CRS.from_user_input(info["crs"]).equals(crs, ignore_axis_order=True)
            assert info["features"] == (1 if table == "country" else 12)
    ends = ("xmin", "ymin", "xmax", "ymax")
    shown = [float(root.find(f"mapcanvas/extent/{k}").text) for k in ends]
    margin = np.array([-0.03, -0.03, 0.03, 0.03]) * np.tile(
        [bounds.right - bounds.left, bounds.top - bounds.bottom], 2
    )
    np.testing.assert_allclose(shown, np.array(bounds) + margin, rtol=1e-12)
    view = root.find("ProjectViewSettings/DefaultViewExtent")
    assert [float(view.get(k)) for k in ends] == shown


def test_the_project_has_the_colours_of_the_styles(dataset):
    out, _, _ = dataset
    root = read_project(out)
    scales = {}
    for layer in root.findall("projectlayers/maplayer[@type='raster']"):
        path = out / layer.find("datasource").text
        style = ET.fromstring(path.with_suffix(".qml").read_text(encoding="utf-8"))
        items = [dict(item.attrib) for item in layer.iter("item")]
        assert items == [dict(item.attrib) for item in style.iter("item")]
        assert len(items) >= 2
        scales[path.stem] = [(item["value"], item["color"]) for item in items]
    # One colour is one rate in all of them.
    rates = [scales[f"rate_{name}"] for name in ("mean", "median", "lower", "upper")]
    assert rates == rates[:1] * 4


def test_areas_are_labelled_with_their_names_and_coloured_by_their_rate(dataset):
    out, _, _ = dataset
    found = read_project(out).findall("projectlayers/maplayer[@type='vector']")
    borders, coloured, training, _ = found
    for layer, level in zip(found[2:], ("training", "country"), strict=True):
        assert layer.find("layername").text == f"{level}: rate (cases per 1,000 people)"
        assert layer.find("renderer-v2").get("attr") == "rate"
    for layer in (borders, coloured, training):
        assert layer.get("labelsEnabled") == "1"
        style = layer.find("labeling/settings/text-style")
        assert (style.get("fieldName"), style.get("isExpression")) == ('"name"', "1")
    assert borders.find("renderer-v2").get("type") == "singleSymbol"
    renderer = coloured.find("renderer-v2")
    assert (renderer.get("type"), renderer.get("attr")) == ("graduatedSymbol", "fitted_rate")
    # Each area lies in a class.
    ends = [(float(r.get("lower")), float(r.get("upper"))) for r in renderer.iter("range")]
    with (out / "areas.csv").open(newline="", encoding="utf-8-sig") as file:
        rates = [float(row["fitted_rate"]) for row in csv.DictReader(file)]
    assert len(rates) == 12
    assert all(any(low <= rate <= high for low, high in ends) for rate in rates)


def test_the_project_has_a_page_to_print(dataset):
    out, config, _ = dataset
    root = read_project(out)
    (layout,) = root.findall("Layouts/Layout")
    items = {each.get("id"): each for each in layout.iter("LayoutItem")}
    assert set(items) == {"page", "map", "title", "note", "legend", "scale bar"}
    assert items["title"].get("labelText") == config.name
    shown = items["map"]
    assert items["legend"].get("map_uuid") == items["scale bar"].get("mapUuid") == shown.get("uuid")
    # The page shows the map as the project first does, with the legend of what is ticked.
    ticked = {x.get("id") for x in root.find("layer-tree-group").iter("layer-tree-layer")
              if x.get("checked") == "Qt::Checked"}  # fmt: skip
    entries = list(items["legend"].iter("layer-tree-layer"))
    assert {x.get("id") for x in entries} == ticked
    assert any("(cases per 1,000 people)" in x.get("name") for x in entries)
    ends = [float(shown.find("Extent").get(k)) for k in ("xmin", "ymin", "xmax", "ymax")]
    width, height = (float(x) for x in shown.get("size").split(",")[:2])
    assert (ends[2] - ends[0]) / (ends[3] - ends[1]) == pytest.approx(width / height)
    with rasterio.open(out / "rate_mean.tif") as source:
        b = source.bounds
    assert ends[0] <= b.left < b.right <= ends[2]
    assert ends[1] <= b.bottom < b.top <= ends[3]
    for item in items.values():  # nothing hangs over the edge of the page
        at, size = (np.array(item.get(k).split(",")[:2], float) for k in ("position", "size"))
        assert (at + size <= (297, 210)).all()


def test_the_column_of_names():
    for name in ("Name", "district_name", "NAME_2", "nom"):
        assert label_column(["code", name, "people"], "code") == name
    assert label_column(["code", "username"], "code") == "code"
    assert label_column(["area_id", "people"], "code") == "area_id"


def test_the_same_maps_have_the_same_project_and_a_broken_style_is_named(dataset, tmp_path):
    out, config, _ = dataset
    again = tmp_path / "again"
    shutil.copytree(out, again)
    (again / "disagg.qgz").unlink()
    write_catalogue(config, again)
    assert (again / "disagg.qgz").read_bytes() == (out / "disagg.qgz").read_bytes()
    # In the text: in compressed bytes anything is found by chance, and nothing that is there.
    text = ET.tostring(read_project(out), encoding="unicode")
    assert not re.search(r"/tmp|/home|\\\\", text)
    (again / "rate_sd.qml").write_text("<qgis>")
    with pytest.raises(InputError, match=r"rate_sd\.qml: no XML"):
        write_catalogue(config, again)


def test_a_model_of_areas_alone_has_a_catalogue_of_its_table(dataset, tmp_path, validator):
    out, config, names = dataset
    areas = tmp_path / "areas"
    areas.mkdir()
    for name in ("areas.gpkg", "areas.csv"):
        shutil.copy(out / name, areas)
    assert write_catalogue(config, areas) == names
    item = read_item(areas)
    assert item.assets["areas.gpkg"].extra_fields["proj:code"] == "EPSG:32738"
    assert item.validate(validator)
    layers = read_project(areas).findall("projectlayers/maplayer")
    assert [layer.get("type") for layer in layers] == ["vector", "vector"]
