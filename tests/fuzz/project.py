"""A small, sound project for the fuzzer to spoil: 3 x 3 areas of 8 x 8 pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import yaml
from affine import Affine
from shapely import box

from tests.bands import write
from tests.typed import edit

CRS = "EPSG:32738"


class Project:
    """The input files and the configuration of a run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "disagg.yaml"
        self.areas = directory / "areas.gpkg"
        self.counts = directory / "cases.csv"
        self.population = directory / "population.tif"
        self.covariates = [directory / "wave.tif", directory / "north.tif"]

    @classmethod
    def make(cls, directory: Path) -> Project:
        """Write a sound project."""
        project = cls(directory)
        rng = np.random.default_rng(2)
        row, col = np.mgrid[:30, :34]
        values = [np.sin(col / 5) + 0.1 * rng.normal(size=col.shape), row / 10.0]
        for path, layer in zip(project.covariates, values, strict=True):
            project.write_raster(path, layer)
        project.write_raster(project.population, rng.gamma(1.0, 400, (30, 34)) + 1)
        places = [divmod(k, 3) for k in range(9)]
        shapes = [
            box(x, y - 8e3, x + 8e3, y)
            for x, y in ((5e5 + 2300 + 8e3 * c, 8e6 - 2300 - 8e3 * r) for r, c in places)
        ]
        codes = [f"M{k:02d}" for k in range(9)]
        project.write_areas(gpd.GeoDataFrame({"code": codes}, geometry=shapes, crs=CRS))
        lines = [f"{code},{10 + 7 * k}" for k, code in enumerate(codes)]
        project.counts.write_text("\n".join(["code,cases", *lines]) + "\n")
        project.write_config(
            {
                "name": "fuzz",
                "areas": {"path": "areas.gpkg", "id": "code"},
                "counts": {"path": "cases.csv", "value": "cases"},
                "population": {"path": "population.tif"},
                "covariates": {"wave": {"path": "wave.tif"}, "north": {"path": "north.tif"}},
                "grid": {"like": "population.tif"},
                "model": {"kind": "vbagg", "inducing": 8},
                "fit": {"max_epochs": 2, "seed": 4},
                "output": {"dir": "out", "draws": 10, "exceedance": [5]},
                "evaluate": {"folds": 2, "schemes": ["area"]},
            }
        )
        return project

    def write_raster(self, path: Path, values: np.ndarray) -> None:
        """Write a GeoTIFF on the project's grid."""
        place = Affine(1000, 0, 5e5, 0, -1000, 8e6)
        write(path, values, dtype="float64", crs=CRS, transform=place, nodata=np.nan)

    def read_areas(self) -> gpd.GeoDataFrame:
        """Read the boundaries."""
        return gpd.read_file(self.areas)

    def write_areas(self, frame: gpd.GeoDataFrame) -> None:
        """Write the boundaries."""
        self.areas.unlink(missing_ok=True)
        frame.to_file(self.areas)

    def read_config(self) -> dict[str, Any]:
        """Read the configuration."""
        data: dict[str, Any] = yaml.safe_load(self.config.read_text())
        return data

    def write_config(self, data: Any) -> None:
        """Write the configuration."""
        self.config.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")

    def change(self, section: str, **keys: Any) -> None:
        """Set keys of a section."""
        data = self.read_config()
        data[section] |= keys
        self.write_config(data)

    def change_raster(self, old: Path, new: Path) -> None:
        """Name another file wherever the configuration names a raster."""
        edit(self.config, {f"path: {old.name}": f"path: {new.name}"})
