"""Constructor parameters that declare what values they take, and the one check of them all."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from models.core.errors import ParameterError


@dataclass(frozen=True)
class Range:
    """Numbers that a parameter takes; None is checked for none of them.

    Attributes
    ----------
    least, most : float
        Ends.
    above, below : bool
        Whether ``least`` itself is refused, and ``most`` itself.
    whole, even : bool
        Whether it must be a whole number, an even one.
    """

    least: float
    most: float = math.inf
    above: bool = False
    below: bool = False
    whole: bool = False
    even: bool = False

    def holds(self, value: Any) -> bool:
        """Return whether the parameter may have a value."""
        try:
            lower = self.least < value if self.above else self.least <= value
            upper = value < self.most if self.below else value <= self.most
            whole = value == int(value) or not (self.whole or self.even)
            return bool(lower and upper and value < math.inf and whole) and not (
                self.even and value % 2
            )
        except (TypeError, ValueError, OverflowError):
            return False

    def __str__(self) -> str:
        """Describe the range."""
        kind = "an even number" if self.even else "a whole number" if self.whole else "a number"
        if self.above and self.below:
            return f"{kind} between {self.least:g} and {self.most:g}"
        if math.isfinite(self.most):
            return f"{kind} from {self.least:g} to {self.most:g}"
        return f"{kind} {'above' if self.above else 'of at least'} {self.least:g}"


Count = Annotated[int, Range(1, whole=True)]
Positive = Annotated[float, Range(0, above=True)]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Precision = Literal["float64", "float32"]


def parameter_names(model: type) -> list[str]:
    """Return the names of a model's constructor arguments; those that it redeclares come last."""
    taken = list(inspect.signature(model.__init__).parameters)[1:]  # type: ignore[misc]
    maker = next(each for each in model.__mro__ if "__init__" in each.__dict__)
    if "__dataclass_params__" not in maker.__dict__:
        return taken
    names: dict[str, None] = {}
    for each in reversed(model.__mro__):
        for name in inspect.get_annotations(each):
            if name in taken:
                names.pop(name, None)
                names[name] = None
    return list(names)


def check_declared(model: Any) -> None:
    """Raise ParameterError for a parameter of a model that is not what its annotation declares."""
    kind: Any = type(model)
    for name, declared in _declared(kind).items():
        value = getattr(model, name)
        if not any(_takes(allowed, value) for allowed in declared):
            choices = [
                each for allowed in declared if isinstance(allowed, tuple) for each in allowed
            ]
            ranges = [str(allowed) for allowed in declared if isinstance(allowed, Range)]
            named = [", ".join(map(str, choices))] if choices else []
            one_of = "" if ranges else "one of "
            msg = f"{name}: {value!r} is not {one_of}{' or '.join([*named, *ranges])}"
            raise ParameterError(msg)


def _takes(allowed: Range | tuple[Any, ...] | None, value: Any) -> bool:
    if isinstance(allowed, Range):
        return not isinstance(value, str) and allowed.holds(value)
    return value is None if allowed is None else value in allowed


@cache
def _declared(model: type) -> dict[str, tuple[Range | tuple[Any, ...] | None, ...]]:
    """Return what each parameter takes: any of some ranges, choices, and None.

    A choice is a ``Literal``, or ``Annotated[str, (...)]`` where a subclass has another one.
    """
    hints = get_type_hints(model, include_extras=True)
    found: dict[str, tuple[Range | tuple[Any, ...] | None, ...]] = {}
    for name in parameter_names(model):
        union = get_origin(hints[name]) in (Union, UnionType)
        allowed: list[Range | tuple[Any, ...]] = []
        members = get_args(hints[name]) if union else (hints[name],)
        for member in members:
            if get_origin(member) is Literal:
                allowed.append(get_args(member))
            notes = getattr(member, "__metadata__", ())
            allowed += [note for note in notes if isinstance(note, Range | tuple)]
        if allowed:
            found[name] = (*allowed, None) if type(None) in members else tuple(allowed)
    return found
