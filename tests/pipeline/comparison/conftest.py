"""Runs of a country of nine areas: once as it is, once with the cases of one area doubled."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from pipeline.config.reader import load_config
from pipeline.core.progress import Silent
from pipeline.run.runner import run_stages
from tests.pipeline.conftest import Files

STAGES = ("ingest", "fit", "predict")
DOUBLED = "M04"


def make(directory: Path, name: str, **sections) -> Path:
    """Write a configuration beside the inputs, run it, and return it."""
    mapping = {
        "name": "little",
        "areas": {"path": "areas.gpkg", "layer": "districts", "id": "code"},
        "counts": {"path": "cases.csv", "value": "cases"},
        "population": {"path": "population.tif"},
        "covariates": {"wave": {"path": "wave.tif"}, "north": {"path": "north.tif"}},
        "grid": {"like": "population.tif"},
        "model": {
            "area_effect": False,
            "integrate": "none",
            "kernel": "linear + matern32(space)",
            "link": "exp",
        },
        "fit": {"seed": 4, "max_epochs": 40},
        "output": {"dir": f"out-{name}", "draws": 40, "exceedance": []},
        "evaluate": {"schemes": [], "calibration": "none"},
        "gates": {"better_than_constant": False},
    }
    for section, values in sections.items():
        mapping[section] = {**mapping.get(section, {}), **values}
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(mapping))
    run_stages(load_config(path), STAGES, Silent())
    return path


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Return the directory of the runs a, b (an area doubled) and their inputs; do not change."""
    directory = tmp_path_factory.mktemp("runs")
    files = Files(directory)
    rng = np.random.default_rng(1)
    for k, name in enumerate(files.ids):
        part = files.pixels(k)
        rate = 0.03 * np.exp(0.5 * files.x["wave"][part] - 0.3 * files.x["north"][part])
        files.cases[name] = str(rng.poisson((rate * files.population[part]).sum()))
    files.counts()
    make(directory, "a")
    shutil.copy(directory / "cases.csv", directory / "doubled.csv")
    cases = {**files.cases, DOUBLED: str(2 * int(files.cases[DOUBLED]))}
    lines = ["code,cases", *(f"{i},{n}" for i, n in cases.items())]
    (directory / "doubled.csv").write_text("\n".join(lines) + "\n")
    make(directory, "b", counts={"path": "doubled.csv"})
    return directory
