"""A kernel of space and time from its description: a kernel of a period, and kernels in time.

``matern32(space) + (constant + matern12(space)) * time(matern12)`` is a sum over terms, each the
product of a kernel of one period and a correlation in time. Terms in one pair of brackets share
their correlation; a term without ``time(...)`` holds still. ``season`` is short for
``time(season)``. As ``k_t(0) = 1``, what a description without its times means is the kernel of any
one period.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from models.gp import kernel_grammar as grammar
from models.gp.kernel_text import ALONE, AREA, NAMED, SPACELESS, check_drawable
from models.temporal.markov import (
    Constant,
    MarkovKernel,
    Matern12,
    Matern32,
    Matern52,
    Season,
    TimeSum,
)

TIME, SEASON = "time", "season"
STILL = -1
#: From the time that a season takes, and its harmonics.
TIMES: dict[str, Callable[[float, int], MarkovKernel]] = {
    "constant": lambda *_: Constant(),
    "matern12": lambda *_: Matern12(),
    "matern32": lambda *_: Matern32(),
    "matern52": lambda *_: Matern52(),
    SEASON: Season,
}


#: What ``kernel="auto"`` has besides covariates: what stays in space, a drift that is smooth in
#: space and one of each area's own, and a season that differs in space.
AUTO = "matern32(space) + matern12(space) * time(matern12) + area * time(matern12)"
AUTO_SEASON = "(constant + matern32(space)) * season"
#: The same without positions.
AUTO_SPACELESS = "area + constant * time(matern12) + area * time(matern12)"
AUTO_SPACELESS_SEASON = "season"


@dataclass(frozen=True)
class SpaceTimeText:
    """The parts of a description.

    Attributes
    ----------
    terms : tuple of str
        Kernels of a period; they are added up.
    time_of : tuple of int
        Number of each term's correlation in time; ``STILL`` for none.
    times : tuple of MarkovKernel
    """

    terms: tuple[str, ...]
    time_of: tuple[int, ...]
    times: tuple[MarkovKernel, ...]

    @property
    def period(self) -> str:
        """The kernel of one period."""
        return " + ".join(self.terms)

    @property
    def has_area(self) -> bool:
        """Whether there is an effect of each area."""
        return any(term == AREA for term in self.terms)

    @property
    def time_names(self) -> tuple[str, ...]:
        """Name of each parameter of the correlations, one kernel after the other."""
        return tuple(
            f"time[{k}].{name}" for k, each in enumerate(self.times) for name in each.names
        )

    def split(self, theta: np.ndarray) -> list[np.ndarray]:
        """Return the parameters of each correlation."""
        ends = np.cumsum([0, *(each.n_theta for each in self.times)])
        return [theta[i:j] for i, j in pairwise(ends.tolist())]


def parse_space_time(text: str, season: float | None = 12.0, harmonics: int = 2) -> SpaceTimeText:
    """Take a description apart.

    Parameters
    ----------
    text : str
    season : float or None
        Time that a season takes; None where there is none.
    harmonics : int
        Of a season.

    Raises
    ------
    ParameterError
        If the grammar does not hold, or a term has two times; the message marks the column.
    """
    tree = grammar.parse(text, NAMED)
    terms: list[str] = []
    time_of: list[int] = []
    times: list[MarkovKernel] = []
    found: dict[int, int] = {}
    for factors, when in _terms(tree, text, (), None):
        number = STILL
        if when is not None:
            number = found.setdefault(id(when), len(times))
            if number == len(times):
                times.append(_time(when, text, season, harmonics))
        terms.append(" * ".join(map(_bracketed, factors)) or "constant")
        time_of.append(number)
    return SpaceTimeText(tuple(terms), tuple(time_of), tuple(times))


def auto_text(n_feat: int, *, placed: bool, season: bool) -> str:
    """Return what ``auto`` stands for.

    Parameters
    ----------
    n_feat : int
        Covariates; they have the kernel of one period (``smooth_joint``), with one alone nothing
        acts together with it.
    placed, season : bool
        Whether there are positions, and whether there is a season.
    """
    name = "smooth_joint" if n_feat > 1 else ALONE["smooth_joint"]
    covariates = [SPACELESS[name]] * (n_feat > 0)
    text, own = (AUTO, AUTO_SEASON) if placed else (AUTO_SPACELESS, AUTO_SPACELESS_SEASON)
    return " + ".join([*covariates, text] + [own] * season)


def check_space_time(text: str) -> None:
    """Raise ParameterError if a description has no draws, or means nothing."""
    for term in parse_space_time(text).terms:
        if term != AREA:
            check_drawable(term)


def _bracketed(node: grammar.Node) -> str:
    return f"({node})" if isinstance(node, grammar.Sum) else str(node)


def _terms(
    node: grammar.Node,
    text: str,
    beside: tuple[grammar.Node, ...],
    when: grammar.Factor | None,
) -> Iterator[tuple[tuple[grammar.Node, ...], grammar.Factor | None]]:
    """Yield the factors of each term, without its time, and that time."""
    if isinstance(node, grammar.Sum):
        for part in node.parts:
            yield from _terms(part, text, beside, when)
        return
    factors = node.parts if isinstance(node, grammar.Product) else (node,)
    space = []
    for factor in factors:
        if isinstance(factor, grammar.Factor) and factor.word in (TIME, SEASON):
            if when is not None:
                found = f"{str(factor)!r} is the second time of a term"
                raise grammar.refused(text, factor.column, found, "join times as time(a + b)")
            when = factor
        else:
            space.append(factor)
    # Each term of a sum in brackets is a term of its own, where nothing else multiplies it.
    if len(space) == 1 and not beside and isinstance(space[0], grammar.Sum | grammar.Product):
        yield from _terms(space[0], text, beside, when)
        return
    for factor in space:
        for part in grammar.walk(factor):
            if isinstance(part, grammar.Factor) and part.word in (TIME, SEASON):
                found = f"{str(part)!r} is inside a product"
                raise grammar.refused(text, part.column, found, "multiply each term by its time")
            if isinstance(part, grammar.Factor) and part.word == AREA and len(space) > 1:
                found = "'area' is beside another kernel"
                raise grammar.refused(text, part.column, found, "multiply area by a time alone")
    yield tuple(space), when


def _time(node: grammar.Factor, text: str, season: float | None, harmonics: int) -> MarkovKernel:
    """Return the correlation of ``time(...)`` or ``season``."""
    if node.word == SEASON:
        inner: tuple[grammar.Node, ...] = (node,)
    else:
        inner = node.arguments
    if len(inner) != 1:
        remedy = "write one sum of kernels, as in time(constant + matern32)"
        raise grammar.refused(text, node.column, f"{node.word!r} has {len(inner)} parts", remedy)
    (only,) = inner
    parts = only.parts if isinstance(only, grammar.Sum) else (only,)
    made = []
    for part in parts:
        if not isinstance(part, grammar.Factor) or part.word not in TIMES or part.arguments:
            remedy = f"add {', '.join(TIMES)}"
            found = f"{str(part)!r} is no kernel in time"
            raise grammar.refused(text, part.column, found, remedy)
        if part.word == SEASON and season is None:
            remedy = "leave it out: these periods have no season"
            raise grammar.refused(text, part.column, "'season' has no length", remedy)
        made.append(TIMES[part.word](season or 1.0, harmonics))
    return made[0] if len(made) == 1 else TimeSum(tuple(made))
