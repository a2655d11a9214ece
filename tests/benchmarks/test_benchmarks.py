"""Every benchmark, tiny: it runs, and its figures are what they must be whatever the speed."""

from __future__ import annotations

import ast
import importlib
import json
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks import coordination, elevators, madagascar, pairs, speed
from benchmarks.report import write_results
from pipeline.config.reader import load_config
from pipeline.demo.country import CountrySpec, simulate_country

# Modules that benchmarks import, a tool, and runs of over an hour: one of 45 GB of disk, and two
# that go on where they ended. Peers need libraries that nothing else does.
NOT_IN_MAKE_BENCH = (
    "report", "rates", "torch_pass", "counting", "guard", "performance_page",
    "plain_trees", "big_country", "result_hashes", "hundred_million", "qgis_project",
    "qgis_render", "hosts", "host_network", "sizing", "chap_vietnam", "month_alarms",
    "evidence", "typed", "grids", "grid_scores", "design_tables", "exact_areas",
    "exact_posterior", "hmc", "prior_draws", "rank_tests", "records", "gold",
    "mil_attention", "peers", "peer_answers", "peer_kriging", "peer_maps", "peer_svgp",
    "mil_baselines", "mil_contestants", "mil_data", "mil_page", "mil_runs", "mil_scores",
    "swiss_roll_page",
)  # fmt: skip

TINY = CountrySpec(
    (36, 40), 1 / 12, 700, 16, 6, 4e5, covariates=("elevation", "temperature"), n_inducing=12
)


@pytest.fixture(scope="module")
def country(tmp_path_factory):
    return simulate_country(tmp_path_factory.mktemp("country"), TINY)


@pytest.mark.ci
def test_speed_counts_the_same_work():
    found = speed.measure(300, 10, 20, 1, 2)
    assert set(speed.DTYPES) < set(found)
    assert {"step", "slopes", "pass", "predict"} < set(found["float64"])
    for dtype in speed.DTYPES:
        assert found[dtype]["gemm_gflops"] > 0
        assert 0 < found[dtype]["pass"]["share_of_limit"] <= 1


def test_speed_refuses_what_differs_and_limits_that_are_none():
    grad = {"theta": np.array([1.0, 2.0]), "root": np.array([[1.0, 9.0], [0.5, 1.0]])}
    other = {**grad, "root": np.tril(grad["root"])}  # the upper part is ignored
    assert speed.difference(-10.0, grad, -10.0, other) == 0
    off = speed.difference(-10.0, grad, -10.0, {**other, "theta": np.array([1.0, 3.0])})
    assert off == pytest.approx(1 / 3)
    with pytest.raises(SystemExit, match="differs from PyTorch"):
        speed.refused("pass", off, speed.AGREES["float32"])
    for above in (1.1, np.nan):
        with pytest.raises(SystemExit, match="a lower limit that is none"):
            speed.refused("predict", above, 1.0, "of a lower limit that is none")


def test_pairs_of_nodes_come_near_all_pairs():
    ways = pairs.measure(300, 24, 2)["ways"]
    assert abs(ways["square 128 nodes"]["error"]) < 0.05
    assert abs(ways["exp 128 nodes"]["error"]) < 0.05
    assert ways["square 128 nodes"]["error"] < ways["square 32 nodes"]["error"]


def test_elevators_has_the_papers_bags():
    if not elevators.data_path().is_file():
        pytest.skip("no shared data: set DISAGG_SHARED_DATA")
    bags, y = elevators.make_bags(elevators.data_path(), 0)
    assert bags.n_bag == sum(elevators.SIZES)
    assert bags.x.shape[1] == 16
    assert y.var() == pytest.approx(elevators.CONSTANT_MSE, rel=0.1)
    np.testing.assert_allclose(bags.y, np.add.reduceat(y, bags.offsets[:-1]))


@pytest.mark.ci
def test_cross_validation_scores_every_area_once(country, tmp_path):
    config = load_config(country)
    output = config.output.model_copy(update={"dir": tmp_path})
    fit = config.fit.model_copy(update={"max_epochs": 3})
    config = config.model_copy(update={"output": output, "fit": fit})
    found = madagascar.measure(config, np.arange(16) % 2, n_draws=50)
    assert found["n_fold"] == len(found["fits"]) == 2
    assert 0 <= found["cover_90"] <= 1
    assert madagascar.table(found).count("\n") > 10


def test_results_name_the_machine(tmp_path):
    write_results(tmp_path / "a/b.json", {"figure": 1})
    written = json.loads((tmp_path / "a/b.json").read_text())
    assert written["figure"] == 1
    assert written["machine"]["cores"] == os.cpu_count()


def test_every_benchmark_is_in_make_bench():
    root = Path(__file__).parents[2]
    named = (root / "Makefile").read_text()
    for script in (root / "benchmarks").glob("*.py"):
        if script.stem not in NOT_IN_MAKE_BENCH:
            assert f"benchmarks.{script.stem}" in named, script.stem


def test_what_benchmarks_import_of_ours_is_there():
    """Those that take hours are run seldom: a name that they need may have gone."""
    gone = []
    for path in Path(speed.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            own = isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0]
            if own in ("geo", "models", "pipeline", "flows"):
                module = importlib.import_module(node.module)
                names = (each.name for each in node.names)
                gone += [f"{path.name}: {node.module}.{n}" for n in names if not _has(module, n)]
    assert not gone


def _has(module, name):
    if hasattr(module, name) or not hasattr(module, "__path__"):
        return hasattr(module, name)
    return find_spec(f"{module.__name__}.{name}") is not None


def test_coordination_counts_every_block_and_draws(tmp_path):
    found = coordination.empty(3, (1, 3), ())
    assert found["bytes_each_way_a_worker"]["576"] == 8 * (576 * 576 + 576 * 20 + 576)
    for n_worker in ("1", "3"):
        for size in ("8", "576"):
            point = found["in_process"][n_worker][size]
            assert 0 < point["p10_ms"] <= point["median_ms"] <= point["p90_ms"]
            assert point["processor_ms"] > 0
    coordination.draw(found, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
