"""The catalogue of models: what each learns from and predicts, and the options that it takes."""

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


def catalogue() -> tuple[Kind, ...]:
    """Return the models that a configuration can name, those registered from outside included."""
    from models.training.registry import kinds

    return tuple(
        Kind(kind, model.__name__, model.responses, model.predicts, model.about, model.source)
        for kind, model in kinds().items()
    )


CONSTRUCTOR_NAMES = {  # of the configuration's keys, where the constructor has other ones
    "inducing": "n_inducing",
    "precision": "dtype",
    "batch_areas": "batch_bags",
}


def learns_from(kind: str) -> Literal["counts", "labels"]:
    """Say what a kind of model learns from."""
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

    model = model_class(kind)
    for name, values in model.unlabelled.items():
        if options.get(name) in values:
            found = f"{name}: {options[name]} does not learn from labels of 0 and 1"
            return found, "fit it in Python, or leave it out"
    try:
        model(**options).check_params()
    except ModelError as error:
        found, _, remedy = str(error).partition("; ")
        return found, remedy or "correct it"
    except (TypeError, ValueError, OverflowError) as error:
        given = ", ".join(f"{name}: {value!r}" for name, value in options.items())
        return f"{given} cannot be used ({error})", "give numbers where numbers are meant"
    return None
