"""Tags of a run's rasters: what made them, of which period, in which unit."""

from __future__ import annotations

import json
from typing import Any

from pipeline.config.model_factory import model_settings
from pipeline.config.schema import Config
from pipeline.core.code import installed_version
from pipeline.prediction.products import rate_unit


def run_tags(config: Config, store: Any, model: Any) -> dict[str, str]:
    """Return the tags of every raster of a run.

    Parameters
    ----------
    config : Config
    store : BagStore
        The areas that the model was fitted to.
    model : fitted model
    """
    tags = {
        "TIFFTAG_SOFTWARE": f"disagg {installed_version('disagg')}",
        "version": installed_version("disagg"),
        "name": config.name,
        "model": config.model.kind,
        "model_parameters": json.dumps(model_settings(config, model), sort_keys=True),
        "covariates": ", ".join(store.covariates),
        "interval": f"{config.output.interval:g}",
        "fingerprint": store.fingerprint,
    }
    if config.period is not None:
        tags["period"] = config.period
    if config.labels is None:
        tags |= {
            "likelihood": config.model.likelihood,
            "link": config.model.link,
            "rate_per": f"{config.output.rate_per:g}",
            "rate_unit": rate_unit(config),
            "area_pixels": str(config.fit.area_pixels),
        }
    return tags
