"""The models that ``models.load`` and a configuration can name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

from models.core.errors import ParameterError
from models.core.protocol import override
from models.training.estimator import Estimator

Class = TypeVar("Class", bound=type[Estimator])


class Classes(Mapping[str, type[Estimator]]):
    """Registered classes, each imported when it is first asked for.

    Parameters
    ----------
    found : dict of str to type or (str, str)
        By any key: the class, or its module and its name.
    """

    def __init__(self, found: dict[str, type[Estimator] | tuple[str, str]]) -> None:
        self.found = found

    @override
    def __getitem__(self, key: str) -> type[Estimator]:
        held = self.found[key]
        if isinstance(held, tuple):
            self.found[key] = held = getattr(importlib.import_module(held[0]), held[1])
        return held

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    @override
    def __len__(self) -> int:
        return len(self.found)


CLASSES = Classes({})
_KINDS = Classes({})


def announce(module: str, name: str, kind: str) -> None:
    """Register a class by its place: to import them all takes longer than many a command."""
    CLASSES.found[name] = module, name
    if kind:
        _KINDS.found[kind] = module, name


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
    CLASSES.found[name] = model
    if kind:
        _KINDS.found[kind] = model
    return model


def unregister(model: type[Estimator]) -> None:
    """Forget a class that code outside the packages registered."""
    CLASSES.found.pop(model.__name__, None)
    if model.__dict__.get("kind"):
        _KINDS.found.pop(model.kind, None)


def kinds() -> Mapping[str, type[Estimator]]:
    """Return the classes that define a kind themselves, by kind."""
    return _KINDS
