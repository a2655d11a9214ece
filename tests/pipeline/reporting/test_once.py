"""The report stage opens each file of the run once, and encodes pictures at once."""

from __future__ import annotations

import io
import os
from functools import partial

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.guard import Opens
from pipeline.catalogue import assets
from pipeline.core import supervised
from pipeline.core.progress import Silent
from pipeline.reporting.encode import encoded, pdf, png
from tests.pipeline.reporting.conftest import SAVE


def test_no_raster_and_no_table_is_opened_twice(finished, copied, monkeypatch):
    # The catalogue has a checksum of every file, for which all of its bytes are read.
    monkeypatch.setattr(assets, "file_digest", lambda _: 64 * "0")
    with Opens(copied) as opens:
        finished.report(copied)
    rasters = {path.name for path in copied.glob("*.tif")}
    assert len(rasters) > 5
    tables = {"targeting.csv", "evaluation.json", "levels_training.csv"}
    assert {name: opens.count[name] for name in rasters | tables} == dict.fromkeys(
        rasters | tables, 1
    )


def test_with_checksums_a_raster_is_opened_once_more(finished, copied):
    with Opens(copied) as opens:
        finished.report(copied)
    assert {opens.count[path.name] for path in copied.glob("*.tif")} == {2}


def drawn(n):
    figure = Figure(figsize=(2, 1.5))
    axes = figure.add_axes((0.2, 0.2, 0.7, 0.6))
    axes.plot(np.arange(n) ** 2)
    axes.set_title(f"picture {n}", loc="left", y=1.0)
    return figure


@pytest.fixture
def jobs(monkeypatch):
    monkeypatch.setattr(Figure, "savefig", SAVE)
    figures = [drawn(n) for n in (3, 5, 7)]
    return {
        "pdf": partial(pdf, figures, "all"),
        **{f"{n}": partial(png, each, 50, f"title {n}") for n, each in enumerate(figures)},
        "pid": lambda: str(os.getpid()).encode(),
    }


@pytest.mark.parametrize("own", [True, False])
def test_pictures_have_the_same_bytes_side_by_side(jobs, own, monkeypatch):
    monkeypatch.setattr(supervised, "own_process", own)
    once = encoded(jobs, 1, Silent())
    side_by_side = encoded(jobs, 2, Silent())
    assert once.pop("pid") == str(os.getpid()).encode()
    forked = side_by_side.pop("pid") != str(os.getpid()).encode()
    assert forked == own
    assert list(once) == list(side_by_side) == ["pdf", "0", "1", "2"]
    assert once == side_by_side
    assert once["pdf"].startswith(b"%PDF")
    with Image.open(io.BytesIO(once["1"])) as image:
        assert (image.size, image.text) == ((100, 75), {"Title": "title 1"})


def test_a_job_that_fails_is_told(jobs):
    def fail():
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        encoded({"a": fail, **jobs}, 1, Silent())
