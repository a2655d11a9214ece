"""Errors of input data. Each names the place, what was found there and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from geo.core.addresses import redacted
from geo.core.text_safety import one_line_text


class GeoError(Exception):
    """Base of the errors of this package."""


class GridError(GeoError, ValueError):
    """A grid is rotated, south-up, empty or without a usable CRS."""


class ResamplingError(GeoError, ValueError):
    """The requested resampling does not exist or does not fit the data."""


@dataclass(frozen=True)
class Problem:
    """One problem of an input, as one line.

    Secrets in addresses are hidden (:mod:`geo.core.addresses`), and line breaks and control
    characters of names and ids replaced.

    Parameters
    ----------
    place : str
        The file or configuration key, with the row or id if known: ``"cases.csv row 7"``.
    found : str
        What was found there.
    remedy : str
        What users can do.
    transient : bool, optional
        Whether it may pass by itself: a server is away, say.
    """

    place: str
    found: str
    remedy: str
    transient: bool = False

    def __post_init__(self) -> None:
        """Hide the secrets in addresses, and make each part one line."""
        for name in ("place", "found", "remedy"):
            object.__setattr__(self, name, one_line_text(redacted(getattr(self, name))))

    def __str__(self) -> str:
        return f"{self.place}: {self.found}; {self.remedy}"


class InputError(GeoError, ValueError):
    """The inputs or the configuration are unusable; ``problems`` lists all reasons.

    Parameters
    ----------
    problems : Problem or iterable of Problem
        At least one.
    """

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (
            (problems,) if isinstance(problems, Problem) else tuple(problems)
        )
        super().__init__("\n".join(map(str, self.problems)))

    @property
    def transient(self) -> bool:
        """Whether all problems may pass by themselves."""
        return all(problem.transient for problem in self.problems)

    def __reduce__(self) -> tuple[type[InputError], tuple[Any, ...]]:
        # Workers send errors by pickle, whose default rebuilds them from the message alone.
        return type(self), (self.problems,)


class VariablesError(InputError):
    """A source has several variables, and none was chosen.

    Parameters
    ----------
    problems : Problem or iterable of Problem
    names : iterable of str
        Of all of them.
    """

    def __init__(self, problems: Problem | Iterable[Problem], names: Iterable[str]) -> None:
        super().__init__(problems)
        self.names = tuple(names)

    def __reduce__(self) -> tuple[type[InputError], tuple[Any, ...]]:
        return type(self), (self.problems, self.names)


def name_first(items: Sequence[object], limit: int = 5) -> str:
    """Return the first ``limit`` items as text, with the total number if there are more."""
    text = ", ".join(str(item) for item in items[:limit])
    return text if len(items) <= limit else f"{text}, ... ({len(items)} in all)"


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]
