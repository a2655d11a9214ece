"""The pipeline: configuration, bag store, engine, prediction, evaluation and the command line."""

from __future__ import annotations

import importlib
from typing import Any

# Imported on first use, so that the command line starts before NumPy, Zarr and GDAL are loaded.
_LAZY = {
    "BagStore": "pipeline.store.bag_store",
    "fit": "pipeline.training.fit",
    "predict_raster": "pipeline.prediction.stage",
}
__all__ = ["BagStore", "fit", "predict_raster"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    message = f"module 'pipeline' has no attribute {name!r}"
    raise AttributeError(message)
