"""The catalogue of models: their responses, predictions and options."""

from __future__ import annotations

import difflib
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
        Value of ``model.kind``.
    name : str
        Class in :mod:`models`.
    learns_from : {"counts", "labels"}
        Section of the configuration that the model needs.
    predicts : tuple of str
        ``pixels``, ``bags`` (areas), or both.
    about, source : str
        Description and requirements, and whether it has no uncertainty; reference.
    has_spread : bool
        Whether its predictions have an uncertainty.
    """

    kind: str
    name: str
    learns_from: Literal["counts", "labels"]
    predicts: tuple[str, ...]
    about: str
    source: str
    has_spread: bool


def catalogue() -> tuple[Kind, ...]:
    """Return the models that a configuration can name, registered plugins included."""
    from models.training.registry import kinds

    return tuple(
        Kind(
            kind,
            model.__name__,
            model.responses,
            model.predicts,
            model.about + ("" if model.has_spread else ", no uncertainty"),
            model.source,
            model.has_spread,
        )
        for kind, model in kinds().items()
    )


CONSTRUCTOR_NAMES = {  # arguments whose name differs from the configuration's key
    "inducing": "n_inducing",
    "precision": "dtype",
    "batch_areas": "batch_bags",
}


def learns_from(kind: str) -> Literal["counts", "labels"]:
    """Return the section of responses that a kind of model needs."""
    return model_class(kind).responses


def model_class(kind: str) -> type[Estimator]:
    """Return the class of a kind."""
    from models.training.registry import kinds

    return kinds()[kind]


def constructor_names(kind: str) -> tuple[str, ...]:
    """Return the names of the constructor's arguments."""
    from models.training.parameters import parameter_names

    return tuple(parameter_names(model_class(kind)))


def unknown_option(kind: str, options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (found, remedy) for an argument that the model does not have, or None."""
    known = constructor_names(kind)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            return f"{kind} has no {name!r}", f"{hint}it has {', '.join(known)}"
    return None


def unusable_options(kind: str, options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (found, remedy) for arguments that the model rejects, or None."""
    from models.core.errors import ModelError

    model = model_class(kind)
    for name, values in model.unlabelled.items():
        if options.get(name) in values:
            found = f"{name}: {options[name]} does not learn from labels of 0 and 1"
            return found, "remove it, or fit this model in Python"
    try:
        model(**options).check_params()
    except ModelError as error:
        found, _, remedy = str(error).partition("; ")
        return found, remedy or "correct it"
    except (TypeError, ValueError, OverflowError) as error:
        given = ", ".join(f"{name}: {value!r}" for name, value in options.items())
        return f"{given} cannot be used ({error})", "give values of the right type, such as numbers"
    return None
