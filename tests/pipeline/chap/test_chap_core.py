"""CHAP's own evaluation trains the model of ``examples/chap`` and scores its forecasts.

``DISAGG_CHAP`` names the program ``chap`` of an environment with chap-core; without it pip makes
one. The two environments share nothing but the commands of ``MLproject``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.typed import edit

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/chap"
VERSION = "1.0.17"
KERNEL = "ridge(x) + area * time(matern12) + season"
QUICK = {"kernel": KERNEL, "integrate": "none", "harmonics": 1, "max_epochs": 10}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def chap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the program ``chap``."""
    if named := os.environ.get("DISAGG_CHAP"):
        return Path(named).absolute()
    home = tmp_path_factory.mktemp("chap-core")
    made = subprocess.run([sys.executable, "-m", "venv", home], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("no environment could be made for chap-core; name its chap in DISAGG_CHAP")
    pip = [home / "bin/pip", "install", "--quiet", f"chap-core=={VERSION}"]
    try:
        subprocess.run(pip, capture_output=True, check=True, timeout=900)
    except subprocess.SubprocessError as error:
        pytest.skip(f"chap-core is not installed ({error}); name its chap in DISAGG_CHAP")
    return home / "bin/chap"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, EXAMPLE / "example_data.py", folder], check=True)
    return folder


def evaluate(chap: Path, model: Path, data: Path, work: Path) -> pd.Series:
    """Return the scores of forecasts two months ahead from two origins."""
    (work / "options.yaml").write_text(yaml.safe_dump({"user_option_values": QUICK}))
    given = ["--prediction-length", "2", "--n-splits", "2", "--report-filename", "report.pdf"]
    given += ["--dataset-csv", data / "all.csv", "--model-configuration-yaml", "options.yaml"]
    program = work / "bin/disagg"  # this very tree, of an environment that chap does not see
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m pipeline.cli "$@"\n'
    )
    program.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PATH": f"{program.parent}:{os.environ['PATH']}", "MPLBACKEND": "agg"}
    words = [chap, "evaluate", model, *given]
    done = subprocess.run(
        words, cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (work / "report.pdf").stat().st_size > 0
    return pd.read_csv(work / "report.csv").iloc[0]


@pytest.mark.parametrize("polygons", [False, True])
def test_chap_evaluates_the_model(chap: Path, data: Path, tmp_path: Path, polygons: bool) -> None:
    model = tmp_path / "model"
    shutil.copytree(EXAMPLE, model)
    if polygons:  # as the README says
        edit(model / "MLproject", {"{model_config}": "{model_config} --polygons {polygons}"})
    found = evaluate(chap, model, data, tmp_path)
    table = pd.read_csv(data / "all.csv", index_col=0)
    months = sorted(table["time_period"].unique())[-3:]
    own = table.pivot(index="time_period", columns="location", values="disease_cases").loc[months]
    total = own.to_numpy()[:2].sum() + own.to_numpy()[1:].sum()
    assert found["abs_target_sum"] == total  # every count is scored
    assert found["num_masked_target_values"] == 0
    # The mean of the training data has .45 to .65 here; a blind model covers all or nothing.
    assert found["mean_wQuantileLoss"] < 0.4
    assert found["Coverage[0.9]"] - found["Coverage[0.1]"] > 0.5
