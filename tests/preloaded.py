"""Everything that ``disagg`` imports, and short runs: for processes forked from one that has both.

Nothing here may start a thread, for forks would lack it.
"""

import gc
import importlib

import pytest

from pipeline.core.sources import own_sources
from pipeline.run.stages import STAGES
from tests.quick import shorten

for _stage in STAGES.values():
    _stage.load()
for _name in (
    *("distributed", "matplotlib.backends.backend_agg", "matplotlib.pyplot", "pyogrio", "yaml"),
    *("rasterio.shutil", "rich.table", "rich.progress", "zarr", "pandas", "dask.delayed", "s3fs"),
    *("pipeline.cli.main", "pipeline.config.reader", "pipeline.ingest.stage"),
    *("pipeline.publishing.publish", "pipeline.reporting.preview"),
):
    importlib.import_module(_name)
shorten(pytest.MonkeyPatch())
own_sources()  # seconds in a process whose user has no cache yet
gc.collect()
gc.freeze()  # else every child walks, copies and frees all modules as it ends: 0.7 s of each
