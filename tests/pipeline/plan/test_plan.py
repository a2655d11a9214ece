"""What a plan foresees, against what ingest writes and what plain arithmetic says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import zarr

from geo.core.errors import InputError
from geo.grids.displacement import catchments
from geo.grids.grid import Grid
from geo.sources import gdal_access
from geo.sources.raster import RasterSource
from models.training.loop import start_training
from pipeline.cli.main import main
from pipeline.config.context import StageContext
from pipeline.config.model_factory import new_model
from pipeline.config.reader import load_config
from pipeline.evaluation import fold_fits
from pipeline.ingest.stage import ingest
from pipeline.plan import estimate as plans
from pipeline.plan import fit_time
from pipeline.plan.estimate import plan_run
from pipeline.plan.page import page_seconds
from pipeline.plan.passes import chained, fit_passes
from pipeline.plan.probe import Probe, probe
from pipeline.plan.proposal import total_seconds
from pipeline.plan.sizes import Periods, measure_inputs, store_bytes
from pipeline.store.bag_store import BagStore
from pipeline.store.block_source import StoreBlockSource
from tests.pipeline.series_inputs import write_inputs
from tests.typed import edit

SLOW = Probe(flops=5e10, pixel=1e-5, update=0.01, predict=1e-6, draw=1e-5)


@pytest.fixture(scope="module")
def store(country: Path) -> BagStore:
    ingest(StageContext(load_config(country)))
    return BagStore.open(country.parent / "out/work/bags.zarr")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the times of a slow machine for those of this one."""
    monkeypatch.setattr(plans, "probe", lambda *_: SLOW)


@pytest.fixture
def changed(country: Path, tmp_path: Path) -> Any:
    """Write the configuration with some text replaced, beside the rasters."""

    def write(*replacements: tuple[str, str]) -> Path:
        text = country.read_text()
        for pattern, new in replacements:
            text, n = re.subn(pattern, new, text)
            assert n, pattern
        path = country.parent / f"{tmp_path.name}.yaml"
        path.write_text(text)
        return path

    return write


def on_disk(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_sizes_are_near_what_ingest_writes(country: Path, store: BagStore) -> None:
    sizes = measure_inputs(load_config(country))
    work = country.parent / "out/work"
    cube: Any = zarr.open_group(work / "grid.zarr", mode="r")
    assert sizes.grid.shape == cube["population"].shape
    assert sizes.n_areas == store.n_bag
    assert sizes.n_covariates == store.n_feat
    assert sizes.n_pixels == pytest.approx(store.attrs["left_out"]["of_pixels"], rel=0.02)
    assert sizes.n_blocks == pytest.approx(store.n_block, abs=2)
    assert sizes.bytes["bags.zarr"] == pytest.approx(on_disk(store.path), rel=0.2)
    assert sizes.bytes["grid.zarr"] == pytest.approx(on_disk(work / "grid.zarr"), rel=0.2)
    assert sum(sizes.ways.values()) == store.n_feat + 1
    # The pixels known, nothing is left to estimate: ids and JSON are some kilobytes.
    said = store_bytes(store.n_pix, store.n_bag, store.n_feat)
    assert said == pytest.approx(on_disk(store.path), abs=20_000)


@pytest.mark.usefixtures("slow")
def test_no_pixel_is_read(country: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("a pixel was read")

    monkeypatch.setattr(RasterSource, "read", refuse)
    opened, real = [], gdal_access.DatasetReader

    class Header:
        """A dataset whose pixels cannot be had."""

        def __init__(self, dataset: Any) -> None:
            self._dataset = dataset

        read = read_masks = sample = refuse

        def __getattr__(self, name: str) -> Any:
            return getattr(self._dataset, name)

        def __enter__(self) -> Header:
            return self

        def __exit__(self, *_: object) -> None:
            self._dataset.close()

    def open_header(*args: Any, **kwargs: Any) -> Header:
        opened.append(args)
        return Header(real(*args, **kwargs))

    monkeypatch.setattr(gdal_access, "DatasetReader", open_header)
    found = plan_run(load_config(country))
    assert len(opened) >= 7
    assert found.stages[0].seconds[1] > 0
    assert not (country.parent / "plan").exists()


@pytest.mark.ci
def test_the_probe_times_what_the_fit_does(changed: Any, store: BagStore) -> None:
    config = load_config(changed(("link: exp", "link: exp, inducing: 20")))
    measured = probe(config, store.n_pix / store.n_bag, store.n_bag)
    assert 1e9 < measured.flops < 1e13
    # A step of real blocks: no timing is asserted but that both measure the same work.
    model = new_model(config)
    training = start_training(model, StoreBlockSource(store), **model.loop_params("start"))
    assert training.state.params["v_mean"].size == measured.n_inducing
    for value in (measured.pixel, measured.update, measured.predict, measured.draw):
        assert value is not None
        assert 0 < value < 10
    assert measured.step is not None
    assert measured.slopes is not None
    assert measured.pixel is not None
    assert 0 < measured.step < measured.slopes <= measured.pixel
    assert min(measured.evidence, measured.functions, measured.averages) > 0


@pytest.mark.usefixtures("slow")
def test_time_is_the_sum_of_its_parts(country: Path) -> None:
    found = plan_run(load_config(country), workers=2)
    n, steps, blocks = found.sizes.n_pixels, found.sizes.n_steps, found.sizes.n_blocks
    assert steps == 1  # a pass is over all areas
    each = 0.01 + fit_time.THREAD_STEP_S + blocks * fit_time.READ_CHUNK_S
    alone = n * 1e-5 + each
    assert found.epoch_seconds[1] == pytest.approx(alone, abs=5e-4)  # rounded to milliseconds
    assert alone / 2 < found.epoch_seconds[2] < alone
    assert found.epoch_flops == pytest.approx(4 * 200**2 * n)
    # Most passes are over some 34 pixels of each of 120 areas, the last ones over all.
    passes = found.passes
    assert n / 8 < passes.few.n_pixels <= 34 * 120
    assert passes.whole.n_pixels == n
    visited = passes.n_few * passes.few.n_pixels + passes.n_whole * n
    assert found.fit_flops == pytest.approx(4 * 200**2 * visited)
    assert found.step_flops == pytest.approx(found.epoch_flops / steps)
    fit = next(stage for stage in found.stages if stage.name == "fit")
    here = 0.01 + fit_time.THREAD_STEP_S + fit_time.READ_CHUNK_S  # one block, in memory
    climb = passes.n_few * (passes.few.n_pixels * 1e-5 + here) + passes.n_whole * alone
    assert climb < fit.seconds[1] < climb + 5  # and to start


def test_steps_on_kept_matrices_take_less(country: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(country)
    sizes = measure_inputs(config)
    config = plans.settled(config, sizes)
    kept = replace(SLOW, n_inducing=200, step=2e-6, slopes=6e-6)

    def fit(measured: Probe) -> float:
        return plans.foresee(config, sizes, measured, 1).stages[1].seconds[1]

    passes = plans.foresee(config, sizes, kept, 1).passes
    saved = 0.0
    for visits, read in ((passes.of_few, passes.few), (passes.of_whole, passes.whole)):
        assert visits.points <= visits.steps
        each = 8e-6 * visits.steps + 4e-6 * visits.slopes - 4e-6 * visits.points
        saved += read.n_pixels * each
    # Matrices of all pixels find room here, by-products of few.
    assert fit(SLOW) - saved <= fit(kept) < fit(SLOW) - 0.8 * saved
    monkeypatch.setattr(fit_time, "BUDGET", 1)
    assert fit(kept) > fit(SLOW) - 0.8 * saved


def test_points_are_fitted_beside_the_areas(changed: Any, country: Path) -> None:
    rows = "".join(f"c{n},{n},-19,5,50\n" for n in range(30))
    (country.parent / "clusters.csv").write_text(f"id,lon,lat,positive,tested\n{rows}")
    points = "{name: dhs, path: clusters.csv, id: id, lon: lon, lat: lat, value: positive"
    path = changed(("(?m)^grid:", f"points: [{points}, tested: tested, radius: 30}}]\ngrid:"))
    config = load_config(path)
    sizes = measure_inputs(config)
    assert sizes.n_bags == sizes.n_areas + 30
    (n_row, n_col), at = sizes.grid.shape, sizes.grid.transform
    lon, lat = at @ (n_col / 2, n_row / 2)
    circle = catchments(sizes.grid, np.array([lon]), np.array([lat]), 30.0)
    assert sizes.point_pixels == pytest.approx(30 * circle.pixel.size, rel=0.2)
    alone = replace(sizes, n_points=0, point_pixels=0)
    config = plans.settled(config, sizes)
    with_points, areas = (plans.foresee(config, each, SLOW, 1) for each in (sizes, alone))
    assert with_points.passes.few.n_areas == sizes.n_bags
    for name in (1, 3):  # folds are fitted anew, with all points
        assert with_points.stages[name].seconds[1] > areas.stages[name].seconds[1]
        assert with_points.stages[name].peak_bytes > areas.stages[name].peak_bytes
    # Without a region the optimum is further away than without areas here and there.
    model = new_model(config)
    each = [
        fit_passes(config, sizes, model, "all", 300, what).n_pixels
        for what in ("simulated", "area", "block")
    ]
    assert each[0] < each[1] < each[2]


@pytest.mark.usefixtures("slow")
def test_workers_that_do_not_pay_are_told(changed: Any) -> None:
    config = load_config(changed(("scheduler: local", "scheduler: tcp://example.org:8786")))
    found = plan_run(config, workers=64)
    # A pass has fifteen blocks: a sixteenth worker has nothing to do.
    n_block = found.sizes.n_blocks
    assert 8 < n_block <= 16
    assert found.pays <= 16
    pixels = found.sizes.n_pixels * 1e-5 + n_block * fit_time.READ_CHUNK_S
    least = 0.01 + fit_time.CLUSTER_STEP_S + pixels / n_block
    assert found.epoch_seconds[64] == pytest.approx(least, abs=5e-4)
    assert any("64 workers: more than" in text for text in found.warnings)
    assert any("are messages" in text for text in found.warnings)
    few = plan_run(config, workers=1)
    assert not any("do not pay" in text for text in few.warnings)


@pytest.mark.usefixtures("slow")
def test_what_does_not_fit_is_told(changed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = changed(("memory: auto", "memory: 100MB"), ("draws: 500", "draws: 40000"))
    monkeypatch.setattr(plans.shutil, "disk_usage", lambda _: type("D", (), {"free": 1000})())
    found = plan_run(load_config(path))
    assert found.memory == 10**8
    told = " | ".join(found.warnings)
    needs = ["ingest needs", "fit needs", "compute.memory has 0.1 GiB"]
    disk = ["GB of disk are needed", "give another output.dir"]
    for text in (*needs, *disk, "fewer than output.draws: 40000"):
        assert text in told
    # Draws of all areas are held at once: the one stage that grows with them.
    peaks = {stage.name: stage.peak_bytes for stage in found.stages}
    assert peaks["predict"] - peaks["fit"] > 8 * 40000 * 120


@pytest.mark.usefixtures("slow")
def test_the_memory_of_fits_at_the_same_time_is_told(
    country: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold_fits, "memory", lambda: 4 * fold_fits.FIT_BYTES)
    assert fold_fits.most_at_once(20_000, 6) == 2  # half of the memory is for them
    assert fold_fits.most_at_once(fold_fits.FILLS[0] + 1, 6) == 1
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    one, four = (
        {stage.name: stage.peak_bytes for stage in plan_run(load_config(country), n).stages}
        for n in (1, 4)
    )
    beside = one["evaluate"] - one["predict"]
    assert four["evaluate"] - four["predict"] == pytest.approx(2 * beside, abs=2)


@pytest.mark.usefixtures("slow")
def test_the_report_is_foreseen_as_it_was_measured(country: Path) -> None:
    found = plan_run(load_config(country))
    report = found.stages[-1]
    assert report.name == "report"
    # docs/performance.md: 1.9 s of the demo. Of a million pixels, 1,035 areas and ten maps 4.3 s
    # besides imports (docs/design/report.md).
    assert 1.4 < report.seconds[1] < 2.6
    assert report.seconds[1] == max(report.seconds.values())  # one thread draws it
    grid = Grid("EPSG:32738", found.sizes.grid.transform, (1000, 1009))
    large = replace(found.sizes, grid=grid, n_areas=1035, n_maps=9)
    assert page_seconds(large) == pytest.approx(4.3, abs=1.5)
    assert total_seconds(found) == pytest.approx(
        sum(s.seconds[found.workers] for s in found.stages)
    )


@pytest.mark.usefixtures("slow")
def test_memory_and_disk_grow_with_what_they_hold(changed: Any) -> None:
    small = plan_run(load_config(changed(("link: exp", "link: exp, inducing: 100"))), workers=1)
    large = plan_run(load_config(changed(("link: exp", "link: exp, inducing: 2000"))), workers=1)
    assert large.worker_bytes - small.worker_bytes > 8 * 2000**2
    assert large.sizes.bytes == small.sizes.bytes
    assert large.epoch_flops == pytest.approx(400 * small.epoch_flops)  # type: ignore[operator]


def test_models_that_no_time_is_known_of(changed: Any, country: Path) -> None:
    areas = gpd.read_file(country.parent / "areas.gpkg").drop(columns="geometry")
    areas["label"] = np.arange(len(areas)) % 2
    areas.to_csv(country.parent / "labels.csv", index=False)
    path = changed(
        ("(?m)^counts: .*$", "labels: {path: labels.csv, id: area_id, value: label}"),
        ("(?m)^model: .*$", "model: {kind: blrt}"),
        ("(?m)^fit: .*$", "fit: {seed: 1}"),
        (r"exceedance: \[50, 100\], ", ""),
        ("(?m)^truth: .*$", ""),
    )
    found = plan_run(load_config(path))
    assert found.epoch_seconds == {}
    assert found.sizes.n_maps == 0
    assert any("holds all pixels in memory" in text for text in found.warnings)
    edit(path, {"kind: blrt": "kind: vwsgp, inducing: 20"})
    assert set(plan_run(load_config(path)).epoch_seconds) >= {1, 2}


@pytest.mark.usefixtures("slow")
def test_the_command_prints_a_table_and_json(
    country: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(country), "--workers", "3"]) == 0
    told = capsys.readouterr().out
    named = ("pixels in areas", "120, the largest", "3 workers", "ingest", "evaluate", "report")
    for text in named:
        assert text in told
    assert main(["plan", str(country), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["areas"] == 120
    assert found["stages"]["fit"]["seconds"]["1"] > 0
    assert found["bytes"]["bags.zarr"] > 10**6


def test_bad_input_is_told_and_nothing_is_planned(
    changed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(("elevation.tif", "elevatoin.tif"))
    with pytest.raises(InputError):
        load_config(path)
    assert main(["plan", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("error: ") == 1
    assert "elevatoin.tif" in error


def test_a_series_is_foreseen_and_grows_with_its_periods(tmp_path: Path) -> None:
    """Every stage has a time, and each of a longer series more; no time is asserted."""
    plans_of: dict[int, Any] = {}
    probe_of = replace(
        SLOW, hessian=0.1, n_inducing=60, n_shared=44, kept=1e5, evidence=1e-3, path=0.01
    )
    for n in (3, 6):
        directory = tmp_path / str(n)
        directory.mkdir()
        config = load_config(write_inputs(directory, n))
        sizes = measure_inputs(config)
        plans_of[n] = plans.foresee(plans.settled(config, sizes), sizes, probe_of, 1)
    short, long = plans_of[3], plans_of[6]
    assert short.sizes.periods == Periods(3, 3, 4, 0, 0, 0, 1, 1, 0, 6)
    assert long.sizes.periods == Periods(
        6, 3, 7, 0, 0, 6, 1, 1, 0, 6
    )  # from 3 months: 3, 2 and 1 ahead
    assert short.fitted.n_areas == 3 * 16
    assert total_seconds(long) is not None
    for before, after in zip(short.stages[:4], long.stages[:4], strict=True):
        assert 0 < before.seconds[1] < after.seconds[1] or after.name == "ingest"
        assert before.peak_bytes <= after.peak_bytes
    assert long.fit_flops == pytest.approx(2 * short.fit_flops)
    site = 8 * 44 * (60 - 44 // 2)  # bytes of a period of a draw, as the model is written
    assert long.disk_bytes - short.disk_bytes > 3 * site


def test_the_probe_times_a_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_inputs(tmp_path, 3)
    measured = probe(load_config(config), 4.0, 16)
    for value in (measured.pixel, measured.update, measured.predict, measured.draw):
        assert value is not None
        assert 0 < value < 10
    assert measured.n_inducing - 16 == measured.n_shared > 0
    assert measured.kept > 3 * measured.n_shared**2
    assert min(measured.hessian, measured.evidence, measured.path) > 0
    assert main(["plan", str(config), "--within", "1h"]) == 2
    assert "several periods" in capsys.readouterr().err


@pytest.mark.parametrize(("n_area", "explored"), [(333, True), (334, False)])
def test_a_chain_is_foreseen_where_a_fit_has_one(
    tmp_path: Path, n_area: int, explored: bool
) -> None:
    config = load_config(write_inputs(tmp_path, 3))
    assert chained(config, 3 * n_area) is explored


def test_more_areas_of_a_series_than_are_timed_are_as_many_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(write_inputs(tmp_path, 3))
    whole = probe(config, 16.0, 16)
    monkeypatch.setattr("pipeline.plan.probe.TIMED_AREAS", 12)
    part = probe(config, 16.0, 16)
    for name in ("n_inducing", "n_shared", "kept"):
        assert getattr(part, name) == getattr(whole, name)
