"""Build the model that a configuration describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.config.catalogue import (
    CONSTRUCTOR_NAMES,
    constructor_names,
    model_class,
)
from pipeline.config.model_schema import FIT_KEYS, MODEL_KEYS, UNSIZED, is_changed

if TYPE_CHECKING:
    from models.training.estimator import Estimator
    from pipeline.config.schema import Config


def new_model(config: Config) -> Estimator:
    """Build the unfitted model that a configuration describes.

    A model receives the settings that its constructor has. The configuration's defaults suit
    models of counts: a classifier receives only values that differ from them. What follows the
    size must have been settled (:mod:`pipeline.config.size_defaults`); what has not stands for the
    values of a small problem.
    """
    spec, fit, series = config.model, config.fit, config.series
    known = constructor_names(spec.kind)
    own: dict[str, Any] = {} if series is None else {"season_length": series.season_length}
    settings = {}
    for section, keys in ((spec, MODEL_KEYS), (fit, FIT_KEYS)):
        for key in keys:
            name = CONSTRUCTOR_NAMES.get(key, key)
            use_default = spec.responses == "counts" or key == "seed"
            if name in known and (use_default or is_changed(section, key)):
                value = getattr(section, key)
                sized = value == "auto" and key in UNSIZED and key != "inducing"
                settings[name] = UNSIZED[key] if sized else value
    if config.point_sources:
        own = {**own, "sources": {each.name: each.source for each in config.point_sources}}
    return model_class(spec.kind)(**{**settings, **own, **spec.options})


def resolved(config: Config, key: str) -> Any:
    """Return a setting of ``model``; where it is ``auto``, what that stands for in small problems.

    A classifier keeps its own default instead: the value is then no more than a measure.
    """
    value = getattr(config.model, key)
    return UNSIZED[key] if value == "auto" else value


def model_settings(config: Config, model: Estimator) -> dict[str, Any]:
    """Return the model's settings for reports and tags; all parameters of a classifier."""
    if config.model.responses == "counts":
        return config.model.model_dump(mode="json")
    return {"kind": config.model.kind, **model.get_params()}
