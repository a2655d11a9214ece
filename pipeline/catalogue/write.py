"""Write the catalogue of a finished run: the QGIS project, then the STAC item that lists it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from geo.writers.raster_files import RasterFiles
from pipeline.catalogue.project import write_project
from pipeline.catalogue.stac import write_stac
from pipeline.config.schema import Config
from pipeline.core.progress import Progress, Silent


def write_catalogue(
    config: Config,
    out: Path,
    model: Any = None,
    progress: Progress | None = None,
    verdict: str = "",
    files: RasterFiles | None = None,
) -> list[str]:
    """Write ``disagg.qgz`` and ``stac/`` into the directory of a finished run.

    To be called after everything else but ``run.json`` is there: the item has the checksum of
    each file.

    Parameters
    ----------
    config : Config
    out : Path
        Directory of the results, ``output.dir``.
    model : fitted model, optional
        Its settings are then in the STAC item.
    progress : Progress, optional
    verdict : str, optional
        Whether the map is better than one rate, in a sentence without figures.
    files : RasterFiles, optional
        Those that the caller has open.

    Returns
    -------
    list of str
        Names of the files written, relative to the directory.
    """
    with ExitStack() as stack:
        files = files or stack.enter_context(RasterFiles())
        project = write_project(config, out, files, verdict)
        names = [] if project is None else [project]
        return names + write_stac(config, out, model, progress or Silent(), files, verdict)
