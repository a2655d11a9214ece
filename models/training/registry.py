"""The models that ``models.load`` and a configuration can name."""

from __future__ import annotations

from typing import TypeVar

from models.core.errors import ParameterError
from models.training.estimator import Estimator

CLASSES: dict[str, type[Estimator]] = {}
Class = TypeVar("Class", bound=type[Estimator])


def register(model: Class) -> Class:
    """Register a class for ``models.load``, and for configurations where it defines a ``kind``.

    Raises
    ------
    ParameterError
        If another class has its name or its kind.
    """
    name, kind = model.__name__, model.__dict__.get("kind", "")
    other = CLASSES.get(name) or kinds().get(kind)
    if other is not None and other is not model:
        msg = f"{name}: {other.__module__}.{other.__name__} has its name or kind; give another"
        raise ParameterError(msg)
    CLASSES[name] = model
    return model


def unregister(model: type[Estimator]) -> None:
    """Forget a class that code outside the packages registered."""
    CLASSES.pop(model.__name__, None)


def kinds() -> dict[str, type[Estimator]]:
    """Return the classes that define a kind themselves, by kind."""
    return {each.kind: each for each in CLASSES.values() if each.__dict__.get("kind")}
