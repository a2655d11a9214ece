"""What a kernel says of the functions that it adds up: which inputs each of them holds.

A kernel that is a sum of terms has draws that are sums of functions, ``f = sum_c f_c``. Whoever
tells the effect of a covariate must know all ``f_c`` that hold it, and what else these hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Component:
    """One of the functions that a kernel adds up.

    Attributes
    ----------
    columns : frozenset of int
        Columns of the inputs that it depends on, together; none for a constant.
    linear : bool
        Whether it is linear in them.
    """

    columns: frozenset[int]
    linear: bool = False

    def times(self, other: Component) -> Component:
        """Return the function whose kernel is the product: linear beside a constant alone."""
        alone = not self.columns or not other.columns
        return Component(self.columns | other.columns, self.linear and other.linear and alone)


@dataclass(frozen=True)
class Held:
    """How a kernel holds one column.

    Attributes
    ----------
    linear : bool
        Whether every function of it is linear in it alone: a slope then says everything.
    beside : frozenset of int
        Other columns that functions of it depend on: its effect differs with them.
    """

    linear: bool
    beside: frozenset[int]


def separate(columns: tuple[int, int], *, linear: bool) -> tuple[Component, ...]:
    """Return one function of each column from the first to before the last."""
    return tuple(Component(frozenset({k}), linear) for k in range(*columns))


def held(components: Iterable[Component], column: int) -> Held | None:
    """Return how functions hold a column; None where none does."""
    own = [each for each in components if column in each.columns]
    if not own:
        return None
    beside = frozenset().union(*(each.columns for each in own)) - {column}
    return Held(all(each.linear for each in own) and not beside, beside)
