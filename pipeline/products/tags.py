"""Tags of a run's rasters: what made them, of which period, in which unit."""

from __future__ import annotations

import json
from typing import Any

from pipeline.config.model_factory import model_settings
from pipeline.config.schema import Config
from pipeline.core.code import installed_version


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
    response = config.response_kind
    if response.given.likelihood is not None:
        tags |= {
            "likelihood": config.model.likelihood,
            "link": config.model.link,
            "rate_per": f"{config.output.rate_per:.15g}",
            "rate_unit": response.rate_unit,
            "area_pixels": str(config.fit.area_pixels),
        }
    return tags
