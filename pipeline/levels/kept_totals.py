"""Which totals reconciled maps add up to, which they do not, and why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipeline.levels.reconcile import EQUAL, Tier


def kept_totals(tiers: Sequence[Tier], order: Sequence[str]) -> dict[str, list[int]]:
    """Return how many totals of each level are kept, and how many were given, in some order."""
    found = {each.level.name: [int(_kept(each).sum()), _n_given(each)] for each in tiers}
    return {name: found[name] for name in order if name in found}


def level_texts(kept: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the levels whose totals are kept; of others how many are, such as ``a (3 of 4)``."""
    return [
        name if n == given else f"{name} ({n:,} of {given:,})"
        for name, (n, given) in kept.items()
        if n
    ]


def tag_text(to: str, kept: Mapping[str, Sequence[int]]) -> str:
    """Return the tag ``reconciled`` of the rasters: the totals that they add up to."""
    without = [name for name, (n, _) in kept.items() if not n]
    names = ", ".join(level_texts(kept))
    text = f"to {to} of {names}" if names else f"to no total of {to}"
    return text + (f"; not of {', '.join(without)}" if without and names else "")


def not_kept(tiers: Sequence[Tier], to: str) -> Iterator[str]:
    """Say of each level which totals the maps do not add up to, and why; ``to`` names these."""
    for tier in tiers:
        name, n_given, given = tier.level.name, _n_given(tier), np.isfinite(tier.given)
        if not n_given:
            yield f"no area of the level {name} has a total in {to}"
            continue
        dropped = given & ~np.isfinite(tier.target)
        scaled = given & ~dropped & ~_kept(tier)
        for which, what in (
            (dropped & ~tier.nobody, "dropped: those of the parts contradict and hold"),
            (dropped & tier.nobody, "dropped: nobody lives there in mapped pixels"),
            (scaled, "scaled: those of areas around contradict and hold"),
        ):
            n = int(which.sum())
            verb = "is" if n == 1 else "are"
            if n:
                yield f"{_number(n, n_given)} of the level {name} {verb} {what}"


def _number(n: int, of: int) -> str:
    if n == of:
        return "the only total" if n == 1 else f"all {n:,} totals"
    return f"{n:,} of {of:,} totals"


def _n_given(tier: Tier) -> int:
    return int(np.isfinite(tier.given).sum())


def _kept(tier: Tier) -> np.ndarray:
    """Return which totals hold as they were given, (n_area,) bool."""
    return np.isclose(tier.target, tier.given, rtol=10 * EQUAL, atol=0)
