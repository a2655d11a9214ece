"""What a version keeps so that it can be compared: the model, and the change from the last version.

The model is small; the aligned grid is not, so that only its digest is kept: a run whose inputs are
the same has the same grid.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from geo.core.errors import InputError
from models.core.errors import ModelError
from pipeline.comparison.compare import compare_sides
from pipeline.comparison.outputs import FILES
from pipeline.comparison.sides import KEPT_MODEL, MODEL, basis_of, find_data, open_side
from pipeline.config.schema import Config
from pipeline.core.errors import PipelineError
from pipeline.core.progress import Progress

KEPT_BYTES = 64 << 20  # of a model, at most
CHEAP = 20_000_000  # pixels times draws: about half a minute on two cores


def kept_model(config: Config) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the files of the model that a version keeps, by name, and the digests of its grid.

    Nothing if the model is large, or lies on an object store.
    """
    out = config.output.dir
    model, basis = out / MODEL, basis_of(out)
    files = sorted(path for path in model.glob("*") if path.is_file())
    if not (model / "model.json").is_file() or not basis:
        return {}, {}
    if model.is_symlink() or sum(path.stat().st_size for path in files) > KEPT_BYTES:
        return {}, {}
    return {f"{KEPT_MODEL}/{path.name}": path for path in files}, basis


def compare_with_last(
    config: Config, last: Path, directory: Path, progress: Progress
) -> tuple[dict[str, Path], dict[str, Any]]:
    """Compare the run in ``output.dir`` with a version.

    A comparison that fails is no reason not to publish: the reason is returned.

    Parameters
    ----------
    config : Config
    last : Path
        Directory of the version.
    directory : Path
        Directory of the files of the comparison.
    progress : Progress

    Returns
    -------
    files : dict of str to Path
        By name in the version.
    about : dict
        ``with``, the name of the version, and ``headline`` and ``method``, or ``skipped``: why not.
    """
    try:
        now = open_side(config.output.dir)
        before = find_data(open_side(last, last.name), [config.output.dir])
        n_draws = (now.run.get("settings") or {}).get("output", {}).get("draws")
        n_draws = n_draws or config.output.draws
        predicted = (now.run.get("stages") or {}).get("predict", {}).get("summary", {})
        cost = int(predicted.get("n_pix", 0)) * (n_draws if isinstance(n_draws, int) else 500)
        report = compare_sides(
            before,
            replace(now, label="this run"),
            directory,
            progress,
            moments=config.publish.compare == "auto" and cost > CHEAP,
        )
    except (InputError, PipelineError, ModelError, OSError, MemoryError) as error:
        return {}, {"with": last.name, "skipped": str(error)}
    files = {name: directory / name for name in FILES if (directory / name).is_file()}
    about = {"with": last.name, "headline": report["headline"], "method": report["method"]}
    return files, about
