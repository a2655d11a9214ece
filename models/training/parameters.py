"""Constructor parameters that declare what values they take, and the one check of them all."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

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
    for name, (allowed, optional) in _declared(kind).items():
        value = getattr(model, name)
        if optional and value is None:
            continue
        if isinstance(allowed, Range) and not allowed.holds(value):
            msg = f"{name}: {value!r} is not {allowed}"
            raise ParameterError(msg)
        if isinstance(allowed, tuple) and value not in allowed:
            msg = f"{name}: {value!r} is not one of {', '.join(map(str, allowed))}"
            raise ParameterError(msg)


@cache
def _declared(model: type) -> dict[str, tuple[Range | tuple[Any, ...], bool]]:
    """Return what each parameter takes, a range or a choice, and whether it may be None.

    A choice is a ``Literal``, or ``Annotated[str, (...)]`` where a subclass has another one.
    """
    hints = get_type_hints(model, include_extras=True)
    found: dict[str, tuple[Range | tuple[Any, ...], bool]] = {}
    for name in parameter_names(model):
        members = get_args(hints[name]) if type(None) in get_args(hints[name]) else (hints[name],)
        for member in members:
            if get_origin(member) is Literal:
                found[name] = (get_args(member), len(members) > 1)
            for note in getattr(member, "__metadata__", ()):
                if isinstance(note, Range | tuple):
                    found[name] = (note, len(members) > 1)
    return found
