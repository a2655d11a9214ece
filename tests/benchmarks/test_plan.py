"""Estimates beside runs: memory of several processes, and the rows of a small run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import plan
from benchmarks.big_country import make_country

SHARING = """
import mmap, os, time
both = mmap.mmap(-1, 50 << 20)
both.write(b"x" * (50 << 20))
held = bytearray(os.urandom(1 << 16)) * (100 << 4)
if os.fork() == 0:
    own = bytearray(os.urandom(1 << 16)) * (30 << 4)
print("ready", flush=True)
time.sleep(60)
"""


def test_memory_that_processes_share_counts_once() -> None:
    parent = subprocess.Popen([sys.executable, "-c", SHARING], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    try:
        for _ in range(2):
            assert parent.stdout.readline() == "ready\n"
        processes = [psutil.Process(parent.pid), *psutil.Process(parent.pid).children()]
        alone = [plan.memory([each]) for each in processes]
        together = plan.memory(processes)
        shared, own, rest = 150 << 20, 30 << 20, 25 << 20
        assert shared + own < together < shared + own + rest
        assert sum(alone) < sum(each.memory_info().rss for each in processes)
    finally:
        for each in psutil.Process(parent.pid).children():
            each.kill()
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert plan.memory(processes) == 0


@pytest.mark.parametrize("text", [f"model: {{{plan.POISSON}}}", "model: {kind: vbagg}"])
def test_runs_change_what_they_say_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def simulate(folder: Path, *_: object) -> None:
        (folder / "disagg.yaml").write_text(text)

    monkeypatch.setattr(plan, "simulate_country", simulate)
    if plan.POISSON in text:
        config = plan.make("fixed", tmp_path).read_text()
        assert 'area_effect: true, link: exp, kernel: "matern32(space)"' in config
    else:
        with pytest.raises(SystemExit, match="has no 'likelihood"):
            plan.make("fixed", tmp_path)


@pytest.mark.slow  # six processes, one after the other
def test_figures_of_a_plan_stand_beside_those_of_the_run(tmp_path: Path) -> None:
    config = make_country(tmp_path, 60, pixels_an_area=200, n_covariate=4, inducing=8)
    rows = plan.compare(config)["rows"]
    size = sum(
        f.stat().st_size for f in (tmp_path / "out/work/bags.zarr").rglob("*") if f.is_file()
    )
    assert rows["bytes of bags.zarr"]["found"] == size
    assert rows["pixels"]["ratio"] == pytest.approx(1, abs=0.05)
    record = json.loads((tmp_path / "out/run.json").read_text())["stages"]
    assert rows["seconds of fit"]["found"] == pytest.approx(record["fit"]["seconds"], abs=0.01)
    assert rows["seconds of ingest"]["found"] > record["ingest"]["seconds"] + 0.2
    assert all(rows[f"memory of {stage}"]["found"] > 100 << 20 for stage in plan.STAGES)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{plan.BEGIN}\nold\n{plan.END}\nafter\n")
    plan.write_page({"grid60": {"rows": rows}}, page)
    told = page.read_text()
    assert told.startswith("before\n")
    assert told.endswith("\nafter\n")
    assert "old" not in told
    assert f"| {plan.ratios(rows)['memory']:.2f} |" in told
