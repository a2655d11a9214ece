"""The models that a configuration can name, and what of a configuration each of them takes."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from models.base import Estimator
    from pipeline.config import Config, ModelSpec

KINDS = {
    "vbagg": "VBAgg",
    "nystrom": "Nystrom",
    "network": "Network",
    "bag_pixel": "BagPixel",
    "constant": "Constant",
    "psi_vgpmil": "PsiVGPMIL",
    "vwsgp": "VWSGP",
    "vwsgp_svi": "VWSGPSVI",
    "gpmil": "GPMIL",
    "gpmil_s": "GPMILS",
    "blrt": "BLRT",
}
"""Class in :mod:`models` of each ``model.kind``."""

_LABELS = ("psi_vgpmil", "vwsgp", "vwsgp_svi", "gpmil", "gpmil_s", "blrt")
_NAMES = {  # of the configuration's keys, where the constructor has other ones
    "inducing": "n_inducing",
    "precision": "dtype",
    "batch_areas": "batch_bags",
}
_MODEL_KEYS = (
    *("likelihood", "link", "estimator", "area_effect", "inducing", "kernel", "priors"),
    *("learn_inducing", "pair_pixels", "precision"),
)
_FIT_KEYS = ("batch_areas", "max_epochs", "learning_rate", "tolerance", "seed")


def learns_from(kind: str) -> Literal["counts", "labels"]:
    """Say what a kind of model learns from; known without importing the models."""
    return "labels" if kind in _LABELS else "counts"


def model_class(kind: str) -> type[Estimator]:
    """Return the class of a kind."""
    from models import CLASSES

    return CLASSES[KINDS[kind]]


def constructor_names(kind: str) -> tuple[str, ...]:
    """Names of the constructor's arguments."""
    return tuple(inspect.signature(model_class(kind).__init__).parameters)[1:]


def new_model(config: Config) -> Estimator:
    """Build the unfitted model that a configuration describes.

    A model takes those of the settings that it has. The configuration's defaults are made for
    counts: a classifier gets of them only what was changed, and else has its own.
    """
    spec, fit = config.model, config.fit
    known = constructor_names(spec.kind)
    settings = {}
    for section, keys in ((spec, _MODEL_KEYS), (fit, _FIT_KEYS)):
        for key in keys:
            name = _NAMES.get(key, key)
            own = learns_from(spec.kind) == "labels" and key != "seed"
            if name in known and not (own and not _changed(section, key)):
                settings[name] = getattr(section, key)
    if "area_effect" in settings:
        settings["area_effect"] = spec.has_area_effect
    if settings.get("kernel") == "auto":
        settings["kernel"] = "additive"
    return model_class(spec.kind)(**{**settings, **spec.options})


def misplaced(spec: ModelSpec) -> tuple[str, str] | None:
    """Find a setting that the kind of model does not have: what was found, and the remedy."""
    if not spec.options and learns_from(spec.kind) == "counts":
        return None
    known = constructor_names(spec.kind)
    for name in spec.options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            return (
                f"options: {spec.kind} has no {name!r}",
                f"{hint}it has {', '.join(known)}",
            )
    taken = [name for name in spec.options if name in (_NAMES.get(k, k) for k in _MODEL_KEYS)]
    if taken and learns_from(spec.kind) == "counts":
        return f"options: {taken[0]!r} is a key of model itself", "give it there"
    if learns_from(spec.kind) == "labels":
        for key in _MODEL_KEYS:
            if _changed(spec, key) and (_NAMES.get(key, key) not in known or key == "likelihood"):
                return f"{key} is for models of counts, not for {spec.kind}", "leave it out"
    return None


def _changed(section: Any, key: str) -> bool:
    return bool(getattr(section, key) != type(section).model_fields[key].default)
