"""The pipeline: configuration, bag store, training, prediction, evaluation, command line."""

from __future__ import annotations

import importlib
from typing import Any

# Imported on first use: `disagg --help` must not wait for NumPy, Zarr and GDAL.
_LAZY = {
    "BagStore": "pipeline.store.bag_store",
    "open_labelled": "pipeline.store.labels",
    "open_results": "pipeline.catalogue.dataset",
    "fit": "pipeline.training.fit",
    "predict_raster": "pipeline.prediction.raster",
}
__all__ = ["BagStore", "fit", "open_labelled", "open_results", "predict_raster"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    message = f"module 'pipeline' has no attribute {name!r}"
    raise AttributeError(message)
