"""A small run with all files that the page reads, made once."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import rasterio
import yaml
from matplotlib.figure import Figure

from pipeline.config.context import StageContext
from pipeline.config.reader import load_config
from pipeline.config.schema import Config
from pipeline.core.progress import Silent
from pipeline.demo.country import simulate_country
from pipeline.demo.country_spec import LAYERS, CountrySpec
from pipeline.reporting.stage import report_stage
from pipeline.run.record import read_record
from pipeline.run.runner import run_stages
from tests.bands import write

NASTY = "<script>window.hacked=1</script>\"'&\u2028<img src=x onerror=hacked=2>"
SAVE = Figure.savefig  # modules whose runs are short leave all pictures blank


@dataclass(frozen=True)
class Run:
    """A finished run."""

    config: Config
    out: Path

    def page(self) -> str:
        return (self.out / "report.html").read_text(encoding="utf-8")

    def report(self, out: Path | None = None, **changes: Any) -> dict[str, Any]:
        """Write the page again, of a copy of the results that a test has changed."""
        config = self.config
        if out is not None:
            output = config.output.model_copy(update={"dir": out})
            config = config.model_copy(update={"output": output})
        record = read_record(config.output.dir) | changes
        return report_stage(StageContext(config, record=record))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A country of 24 areas, fitted in few steps; one area has a script for a name."""
    directory = tmp_path_factory.mktemp("report")
    spec = CountrySpec((50, 56), 1 / 12, 1500, 24, 8, 1e6, covariates=tuple(LAYERS)[:3])
    path = simulate_country(directory, spec, seed=3)
    areas = gpd.read_file(directory / "areas.gpkg", layer="areas")
    areas.loc[0, "name"] = NASTY
    (directory / "areas.gpkg").unlink()
    areas.to_file(directory / "areas.gpkg", layer="areas", driver="GPKG")
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["name"] = "report <b>test</b>"
    document["model"] |= {"inducing": 30, "integrate": "none"}
    document["fit"] = {"max_epochs": 3, "seed": 1}
    document["output"]["draws"] = 50
    document["evaluate"] = {"folds": 2, "schemes": ["area"], "calibration": "none"}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    config = load_config(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", SAVE)
        run_stages(config, ("ingest", "fit", "predict", "evaluate", "report"), Silent())
    return Run(config, config.output.dir)


@pytest.fixture
def copied(finished: Run, tmp_path: Path) -> Path:
    """A copy of the results, that a test may change."""
    return Path(shutil.copytree(finished.out, tmp_path / "out"))


def change_raster(path: Path, row: int, column: int, value: float) -> None:
    """Give a raster one known value everywhere but in one pixel."""
    with rasterio.open(path) as source:
        values, profile = source.read(1), source.profile
    values[np.isfinite(values)] = 0.0
    values[row, column] = value
    profile |= {"driver": "GTiff"}
    path.unlink()
    write(path, values, **profile)


def page_data(page: str) -> dict[str, Any]:
    """Return the data of a page's script."""
    start = page.index('id="map-data">') + len('id="map-data">')
    found: dict[str, Any] = json.loads(page[start : page.index("</script>", start)])
    return found
