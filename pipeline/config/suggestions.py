"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def near(word: str, words: list[str]) -> list[str]:
    """Return the closest of some words, as a list of one or none."""
    found = difflib.get_close_matches(word.lower(), words, 1, cutoff=0.6)
    return (
        found
        or [w for w in words if len(word) > 2 and (w.startswith(word) or word.startswith(w))][:1]
    )


def suggest_value(value: Any, choices: Iterable[str]) -> str:
    """Return the remedy for a value that is not a choice."""
    choices = list(choices)
    found = near(value, choices) if isinstance(value, str) else []
    if len(choices) == 1:
        return f"use {choices[0]}"
    known = f"choose from {', '.join(choices)}"
    return f"did you mean {found[0]}? ({known})" if found else known
