"""The kinds of responses.

The configuration's ``counts`` or ``labels`` and its likelihood decide which one a run has. To
add one, name its class in the last lines, or call :func:`register` from other code.
"""

from __future__ import annotations

from pipeline.responses.averages import Averages
from pipeline.responses.counts import Counts
from pipeline.responses.labels import Labels
from pipeline.responses.response import Given, Response
from pipeline.responses.tested import Tested
from pipeline.responses.values import Values

#: By name; the last that takes a configuration has it.
RESPONSES: dict[str, type[Response]] = {}


def register(kind: type[Response]) -> type[Response]:
    """Add a kind of response.

    Raises
    ------
    ValueError
        If there is one of that name.
    """
    if kind.name in RESPONSES:
        message = f"response {kind.name}: already registered; give the kind another name"
        raise ValueError(message)
    RESPONSES[kind.name] = kind
    return kind


def response_of(given: Given) -> Response:
    """Return the response that a configuration has."""
    return next(kind for kind in reversed(RESPONSES.values()) if kind.takes(given))(given)


def words() -> dict[str, type[Response]]:
    """Return the words of ``counts.of``, with the kind that each asks for."""
    return {kind.of: kind for kind in RESPONSES.values() if kind.of}


for _kind in (Counts, Values, Averages, Tested, Labels):
    register(_kind)
