"""What can be wrong with an input, said so that a person can mend it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an input.

    Parameters
    ----------
    place : str
        The file or configuration key, with the row or id where it is known: ``"cases.csv row 7"``.
    found : str
        What was found there.
    remedy : str
        What to do about it.
    """

    place: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place}: {self.found}; {self.remedy}"


class InputError(ValueError):
    """The inputs or the configuration are unusable; ``problems`` has every reason found.

    Parameters
    ----------
    problems : iterable of Problem
        At least one.
    """

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (
            (problems,) if isinstance(problems, Problem) else tuple(problems)
        )
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[type[InputError], tuple[tuple[Problem, ...]]]:
        # The default would rebuild it from the message alone: workers send errors by pickle.
        return type(self), (self.problems,)
