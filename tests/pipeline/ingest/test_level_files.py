"""A check of the inputs reads the files of other levels, so that no run ends at its tables."""

from __future__ import annotations

import geopandas as gpd
import numpy as np
import pytest
from shapely.geometry import box

from pipeline.config.context import StageContext
from pipeline.ingest.stage import check, check_inputs, ingest
from tests.progress import Notes


def with_level(files, shapes, *, crs=None, reconcile=None, **columns):
    frame = gpd.GeoDataFrame({"key": range(len(shapes)), **columns}, geometry=shapes, crs=files.crs)
    frame = frame if crs is None else frame.set_crs(crs, allow_override=True)
    frame.to_file(files.directory / "zones.gpkg")
    areas = [{"path": "zones.gpkg", "id": "key", "level": "zone"}]
    output = {"dir": str(files.directory / "out"), "areas": areas}
    files.options["output"] = output | ({"reconcile": reconcile} if reconcile else {})
    return "\n".join(str(problem) for problem in check(files.config()))


def squares(files, cut):
    left, bottom, right, top = gpd.GeoSeries(files.polygons).total_bounds
    return [box(left, bottom, cut, top), box(cut, bottom, right, top)]


def test_levels_to_reconcile_must_nest(files):
    cut = files.polygons[1].bounds[0]
    reconcile = {"to": "counts", "levels": ["zone", "training"]}
    assert with_level(files, squares(files, cut), reconcile=reconcile) == ""
    text = with_level(files, squares(files, cut + 2500), reconcile=reconcile)
    assert text.startswith(
        "output.reconcile.levels: areas of training cross the borders of zone: M01, M04, M07;"
    )
    reconcile = {"to": "counts", "levels": ["zone"]}
    assert with_level(files, squares(files, cut + 2500), reconcile=reconcile) == ""


def test_areas_of_another_place_are_refused(files):
    text = with_level(files, [box(2e5, 1e6, 3e5, 2e6)])
    assert "output.areas[0]" in text
    assert "no area of this level is where the areas of the training are" in text


def test_an_area_far_outside_the_others_is_named_with_the_likely_cause(files):
    cut = files.polygons[1].bounds[0]
    assert with_level(files, [*squares(files, cut), box(45.0, -20.0, 46.0, -19.0)]) == ""
    said = [str(each) for each in check_inputs(files.config()).examined.suspicions]
    path = files.directory / "zones.gpkg"
    assert said == [
        f"output.areas[0] ({path}): 1 of 3 areas of the level zone lie outside the bounds of the "
        "areas with counts: 2; check their coordinates and the CRS of the file, or leave them out "
        "[outside]"
    ]


def test_every_problem_of_a_level_is_told_at_once_with_those_of_other_inputs(files):
    files.counts([("M00", "x"), *list(files.cases.items())[1:]])
    files.options["areas"] = {**files.mapping()["areas"], "name": "cod"}
    bowtie = files.polygons[0].exterior.coords[:4]
    crossing = type(files.polygons[0])([bowtie[0], bowtie[2], bowtie[1], bowtie[3]])
    text = with_level(files, [crossing, files.polygons[1]])
    assert "crosses itself" in text
    assert "cases.csv" in text
    assert "has no column 'cod', which areas.name names; did you mean 'code'?" in text


@pytest.mark.parametrize("values", [[np.nan, -2.0], [np.inf, 1.0]])
def test_totals_are_numbers_of_at_least_nought(files, values):
    cut = files.polygons[1].bounds[0]
    reconcile = {"to": "total", "levels": ["zone"]}
    text = with_level(files, squares(files, cut), reconcile=reconcile, total=values)
    assert "values that are no totals" in text


@pytest.mark.ci
def test_areas_of_a_level_that_overlap_are_named_with_their_share(files):
    cut = files.polygons[1].bounds[0]
    first, second = squares(files, cut)
    assert with_level(files, [first, second.buffer(200, join_style="mitre")]) == ""
    assert check_inputs(files.config()).examined.suspicions == ()  # a sliver of 2 %
    assert with_level(files, [first.buffer(800, join_style="mitre"), second, first]) == ""
    said = [str(each) for each in check_inputs(files.config()).examined.suspicions]
    assert len(said) == 1
    path = files.directory / "zones.gpkg"
    assert said[0].startswith(
        f"output.areas[0] ({path}): areas of the level zone overlap, by share of the smaller: "
        "0 and 1 (8 %), 0 and 2 (100 %); what they share counts in each of them, and so more than "
        "once in the level's targeting curve; "
    )
    log = Notes()  # the predict stage warns of it: a run says it once
    ingest(StageContext(files.config(), log))
    assert not [line for line in log.lines if "overlap" in line]
    files.options["check"] = {"accept": ["overlap:output.areas[0]"]}
    assert check_inputs(files.config()).examined.suspicions == ()
