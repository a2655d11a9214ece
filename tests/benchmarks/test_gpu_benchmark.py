"""The GPU's benchmark runs to its end on the stand-in, and says in one line that there is none."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import gpu
from tests.models.backend import strict_cupy as strict


@pytest.mark.ci
def test_every_figure_is_made(tmp_path, monkeypatch, capsys):
    strict.install(monkeypatch)
    monkeypatch.setattr(gpu, "STEP_BAGS", 4)
    monkeypatch.setattr(gpu, "DEVICE_PIXELS", 1500)
    sizes = ["--pixels", "4000", "--inducing", "20", "--epoch-pixels", "9700", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *sizes, "--results", str(tmp_path)])
    gpu.main()
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert result["worst_difference_from_float64"] < 1e-3
    found = result["pass"]
    floor = 4 * 4000 * 20**2 / (found["gemm_tflops"] * 1e12)
    assert found["pass_share_of_gemm"] == pytest.approx(floor / found["pass_seconds"])
    assert result["epoch"]["n_pix"] == 9500
    assert 3 <= result["epoch"]["steps"] <= 5  # of 4 bags and more, from 19 in blocks of 3
    assert "pass_share_of_gemm" in capsys.readouterr().out


def test_no_gpu_is_one_line(monkeypatch, capsys):
    strict.install(monkeypatch, n_device=0)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit) as stop:
        gpu.main()
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: device: gpu, but this process finds no GPU")


def test_blocks_of_the_host_are_all_pixels_once():
    source = gpu.HostSource(5000, 1200)
    blocks = [source.read(number) for number in range(len(source.block_bags))]
    assert sum(block.n_pix for block in blocks) == 5000
    assert sorted(int(a) for block in blocks for a in block.bag) == list(range(10))
