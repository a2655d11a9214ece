"""The catalogue of models: what each learns from and predicts, and the options that it takes."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from models.training.estimator import Estimator


@dataclass(frozen=True)
class Kind:
    """One line of ``disagg models``.

    Attributes
    ----------
    kind : str
        As ``model.kind`` says it.
    name : str
        Of the class in :mod:`models`.
    learns_from : {"counts", "labels"}
        The section of the configuration that it needs.
    predicts : tuple of str
        ``pixels``, ``bags`` (areas), or both.
    about, source : str
        What it is and needs; where it comes from.
    """

    kind: str
    name: str
    learns_from: Literal["counts", "labels"]
    predicts: tuple[str, ...]
    about: str
    source: str


_BOTH = ("pixels", "bags")


_LAW, _PSI = "Law et al. 2018", "Castro-Macias et al. 2024"


CATALOGUE = (
    Kind("vbagg", "VBAgg", "counts", _BOTH, "sparse variational GP of the rate", _LAW),
    Kind("nystrom", "Nystrom", "counts", _BOTH, "baseline: landmarks' features, no spread", _LAW),
    Kind("network", "Network", "counts", _BOTH, "baseline: one hidden layer, no spread", _LAW),
    Kind("bag_pixel", "BagPixel", "counts", _BOTH, "baseline: an area as one pixel", _LAW),
    Kind("constant", "Constant", "counts", _BOTH, "baseline: one rate for all", _LAW),
    Kind(
        "psi_vgpmil", "PsiVGPMIL", "labels", _BOTH,
        "sparse GP of the instances, an area positive if one of them is; options: {density: "
        "gamma} is G-VGPMIL; any size",
        _PSI,
    ),
    Kind(
        "psi_vgpmil_svi", "PsiVGPMILSVI", "labels", _BOTH,
        "the same by stochastic steps, for stores too large for many passes",
        _PSI,
    ),
    Kind(
        "vwsgp", "VWSGP", "labels", _BOTH,
        "an area's evidence is the sum of a sparse GP over it (options: {aggregate: mean} where "
        "areas hold hundreds of pixels); closed form, one pass; any size",
        "Kandemir et al. 2016",
    ),
    Kind(
        "vwsgp_svi", "VWSGPSVI", "labels", _BOTH, "the same by stochastic steps, probit too",
        "Kandemir et al. 2016",
    ),
    Kind(
        "gpmil", "GPMIL", "labels", _BOTH,
        "exact GP, soft-max of the instances; kernel by evidence; some thousand instances",
        "Kim and De la Torre 2010",
    ),
    Kind(
        "gpmil_s", "GPMILS", "labels", _BOTH, "the same on a sparse GP; any size",
        "Kim and De la Torre 2010",
    ),
    Kind(
        "blrt", "BLRT", "labels", ("bags",),
        "bag-level randomised trees: no scaling, no tuning; all instances in memory",
        "Komarek and Somol 2018",
    ),
)  # fmt: skip
"""The models that a configuration can name."""


_BY_KIND = {each.kind: each for each in CATALOGUE}


CONSTRUCTOR_NAMES = {  # of the configuration's keys, where the constructor has other ones
    "inducing": "n_inducing",
    "precision": "dtype",
    "batch_areas": "batch_bags",
}


MODEL_KEYS = (
    *("likelihood", "link", "estimator", "area_effect", "inducing", "kernel", "priors"),
    *("learn_inducing", "pair_pixels", "precision"),
)


FIT_KEYS = ("batch_areas", "max_epochs", "learning_rate", "tolerance", "seed")


def learns_from(kind: str) -> Literal["counts", "labels"]:
    """Say what a kind of model learns from; known without importing the models."""
    return _BY_KIND[kind].learns_from


def model_class(kind: str) -> type[Estimator]:
    """Return the class of a kind."""
    from models import CLASSES

    return CLASSES[_BY_KIND[kind].name]


def constructor_names(kind: str) -> tuple[str, ...]:
    """Names of the constructor's arguments."""
    return tuple(inspect.signature(model_class(kind).__init__).parameters)[1:]


def unknown_option(kind: str, options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Find an argument that the model does not have: what was found, and the remedy."""
    known = constructor_names(kind)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            return f"{kind} has no {name!r}", f"{hint}it has {', '.join(known)}"
    return None


def unusable_options(kind: str, options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Try the arguments on the model: what was found wrong, and the remedy; None if nothing."""
    from models.core.errors import ModelError

    if learns_from(kind) == "labels":
        for name, only in (("likelihood", ("normal",)), ("task", ("multiclass", "regression"))):
            if options.get(name) in only:
                found = f"{name}: {options[name]} does not learn from labels of 0 and 1"
                return found, "fit it in Python, or leave it out"
    try:
        model: Any = model_class(kind)(**options)
        check = getattr(model, "check_params", None)
        # Trees want the number of covariates too, which only the data tell.
        if check is not None and not inspect.signature(check).parameters:
            check()
    except ModelError as error:
        found, _, remedy = str(error).partition("; ")
        return found, remedy or "correct it"
    except (TypeError, ValueError, OverflowError) as error:
        given = ", ".join(f"{name}: {value!r}" for name, value in options.items())
        return f"{given} cannot be used ({error})", "give numbers where numbers are meant"
    return None
