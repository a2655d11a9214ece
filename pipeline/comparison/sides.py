"""The two sides of a comparison: what a finished run, or a version of a map, has kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from geo.core.errors import InputError, Problem
from pipeline.config.recorded import without_idle
from pipeline.config.schema import Config
from pipeline.products.products import (
    AREAS_CSV,
    AREAS_GPKG,
    RUN_RECORD,
)
from pipeline.responses.response import Response
from pipeline.run.record import read_record
from pipeline.storage.files import file_digest
from pipeline.storage.local_commit import MARKER
from pipeline.storage.location import LINK

GRID, BAGS, MODEL = "work/grid.zarr", "work/bags.zarr", "work/model"
ABOUT = "version.json"
KEPT_MODEL = "model"  # of a version


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes
    ----------
    label : str
        What the user called it.
    directory : Path
        Of its rasters and tables.
    config : Config
        What it was made with.
    run : dict
        ``run.json``.
    version : str or None
        Name of the version, if it is one.
    model : Path or None
        The fitted model, if it was kept.
    data : Path or None
        An output directory whose grid and bag store are those that the model maps.
    basis : dict
        Digests of the grid and of the areas, by which `data` is recognised.
    lacks : str
        Why there is no model or no data.
    """

    label: str
    directory: Path
    config: Config
    run: dict[str, Any]
    version: str | None = None
    model: Path | None = None
    data: Path | None = None
    basis: dict[str, str] = field(default_factory=dict)
    lacks: str = ""

    @property
    def response(self) -> Response:
        """What its areas' values are."""
        return self.config.response_kind

    @property
    def level(self) -> Path:
        """Raster of the mean rate, or of the mean probability."""
        return self.directory / f"{self.response.mean_map}.tif"

    @property
    def spread(self) -> Path:
        """Raster of the standard deviation."""
        return self.directory / f"{self.response.spread_maps[-1]}.tif"

    @property
    def areas(self) -> Path:
        """Areas with their shapes."""
        return self.directory / AREAS_GPKG.file

    @property
    def table(self) -> Path:
        """The same without shapes."""
        return self.directory / AREAS_CSV.file

    @property
    def drawn(self) -> bool:
        """Whether its posterior can be drawn from."""
        return self.model is not None and self.data is not None and self.response.drawn

    def place(self, name: str) -> Any:
        """Resolve a path of its data: local, or on an object store."""
        if self.data is None:
            message = f"{self.label}: has no data"
            raise RuntimeError(message)
        return self.config.storage.open().place(self.data / name)

    def summary(self) -> dict[str, Any]:
        """Describe it in ``compare.json``."""
        return {
            "given": self.label,
            "directory": str(self.directory),
            "name": self.config.name,
            "period": self.config.period,
            "version": self.version,
            "written": self.run.get("written"),
        }


def open_side(directory: Path, label: str | None = None) -> Side:
    """Open a finished run or a version of a map.

    Parameters
    ----------
    directory : Path
        ``output.dir`` of a run, or the directory of a version.
    label : str, optional
        What the user called it; the directory by default.

    Raises
    ------
    InputError
        If there is no finished run in it.
    """
    label = label or str(directory)
    remedy = "give output.dir of a finished run, its configuration, or CONFIG@v0007"
    if not directory.is_dir():
        raise InputError(Problem(label, "no such directory", remedy))
    path = directory / RUN_RECORD.file
    if not path.is_file():
        found = f"no finished run in {directory} ({path.name} is missing)"
        raise InputError(Problem(label, found, "run `disagg run` on its configuration first"))
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        config = Config.model_validate(without_idle(run["config"]), context={"base": directory})
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        found = f"{path} does not describe a run ({type(error).__name__})"
        raise InputError(Problem(label, found, "run it again with this version")) from None
    side = Side(label, directory, config, run)
    about = directory / ABOUT
    # Layers that move, and effects of areas, are not where draws of one period look for them.
    moments = "a map of several periods is not drawn"
    if about.is_file():
        kept = json.loads(about.read_text(encoding="utf-8"))
        model = directory / KEPT_MODEL
        basis, version = kept.get("basis") or {}, kept.get("version", directory.name)
        side = replace(side, version=version, basis=basis)
        if config.time is not None:
            return replace(side, lacks=moments)
        if not (model / "model.json").is_file():
            return replace(side, lacks="the version keeps no model")
        return replace(side, model=model, lacks="its aligned grid is no longer there")
    if config.time is not None:
        return replace(side, lacks=moments)
    if not side.response.drawn:
        return replace(side, lacks=f"models of {side.response.totals} are compared by their means")
    if not _of_one_run(directory):
        return replace(side, lacks=f"{directory / 'work'} is not that of the maps")
    return replace(side, model=directory / MODEL, data=directory, basis={})


def find_data(side: Side, others: Iterable[Path]) -> Side:
    """Look for the grid and the bag store that a version's model maps, by their digests.

    Parameters
    ----------
    side : Side
        A version that has kept its model.
    others : iterable of Path
        Output directories to look in.

    Returns
    -------
    Side
        With ``data`` if one was found: inputs that have not changed since.
    """
    if side.data is not None or side.model is None or not side.basis:
        return side
    for directory in dict.fromkeys(path.resolve() for path in others):
        if _of_one_run(directory) and basis_of(directory) == side.basis:
            return replace(side, data=directory, lacks="")
    return side


def basis_of(directory: Path) -> dict[str, str]:
    """Return digests of what a run's model maps: its grid, and the areas; no counts are in them.

    Empty if the grid is not on a local disk, or the run is not finished.
    """
    grid = directory / GRID
    try:
        run = json.loads((directory / RUN_RECORD.file).read_text(encoding="utf-8"))
        areas = run["fingerprints"]["areas.path"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    # The marker names all inputs, the counts among them. The content of the areas is in the grid
    # as their union alone: hence their own fingerprint.
    paths = sorted(p for p in grid.rglob("*") if p.is_file() and p.name != MARKER)
    # The link to an object store stays the same whatever the grid there is.
    if grid.is_symlink() or (grid / LINK).is_file() or not paths:
        return {}
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(grid).as_posix()} {file_digest(path)}\n".encode())
    return {"grid": digest.hexdigest()[:32], "areas": str(areas)}


def _of_one_run(directory: Path) -> bool:
    """Return whether grid, bag store and model in ``work`` are those of the maps."""
    record = read_record(directory)
    if not {"ingest", "fit", "predict"} <= set(record):
        return False
    left = {**record["ingest"]["outputs"], **record["fit"]["outputs"]}
    used = record["predict"]["inputs"]
    return all(
        name in used and left.get(name) == used[name] and (directory / name).exists()
        for name in (GRID, BAGS, MODEL)
    )
