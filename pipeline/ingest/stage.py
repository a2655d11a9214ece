"""The ingest stage: reads boundaries, counts and rasters; writes the aligned grid and bag store.

The stage reports all problems of the inputs at once. It imputes nothing: it leaves pixels that lack
a covariate or population out of their bags, and counts them.
"""

from __future__ import annotations

import shutil
from typing import Any

from geo.core.errors import Problem
from pipeline.config.context import StageContext
from pipeline.config.schema import Config
from pipeline.core.progress import Progress, Silent
from pipeline.ingest.checked import Also, Checked, checked, suspicions_logged
from pipeline.ingest.points import write_points
from pipeline.ingest.prepare import prepare, summary_of, write_store
from pipeline.ingest.series import ingest_series
from pipeline.storage.local_commit import staged
from pipeline.store import aligned_grid
from pipeline.store.bag_store import BagStore

__all__ = ["Checked", "check", "check_inputs", "ingest"]


def ingest(context: StageContext) -> dict[str, Any]:
    """Write ``work/grid.zarr`` and ``work/bags.zarr``.

    Areas without a count are in the store, and not in its training.

    Parameters
    ----------
    context : StageContext
        Its fingerprint goes into the stores.

    Returns
    -------
    dict
        Numbers of areas, pixels and blocks, total people and cases, what was left out and
        repaired, and the areas without a count.

    Raises
    ------
    InputError
        With all problems of the inputs; nothing is written then.
    """
    if context.config.series is not None:
        return ingest_series(context)
    config, progress, fingerprint = context.config, context.progress, context.fingerprint
    grid_path, bags_path = context.place("work/grid.zarr"), context.place("work/bags.zarr")
    with staged(grid_path, aligned_grid.FORMAT, aligned_grid.VERSION, fingerprint) as staging:
        inputs, bags = prepare(config, staging, progress, suspicions_logged(config, progress))
        write_store(config, inputs, bags, staging, bags_path, fingerprint, progress)
        place = context.place("work/points.zarr")
        if bags.points is None:
            shutil.rmtree(str(place), ignore_errors=True)  # of a run that had some
        else:
            write_points(config, inputs, bags, bags.points, staging, place, fingerprint)
    return summary_of(BagStore.open(bags_path), config, progress)


def check(config: Config) -> list[Problem]:
    """Return all problems of the inputs; empty if ingest would succeed."""
    return check_inputs(config).problems


def check_inputs(
    config: Config, progress: Progress | None = None, also: Also | None = None
) -> Checked:
    """Check and profile the inputs: runs the first part of ingest in a temporary directory.

    ``also`` is called while that directory is there.
    """
    return checked(config, prepare, progress or Silent(), also)
