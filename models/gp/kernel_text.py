"""Kernels from their description, such as ``linear + matern32(space)``."""

from __future__ import annotations

import re
from dataclasses import replace

from models.core.errors import ParameterError
from models.gp.kernel_sums import Pair, Product, Sum
from models.gp.kernels import Constant, Kernel, Linear, Radial

NAMED = {"additive": "ard(x) + matern32(space)"}
FACTORS = ("ard", "rbf", "matern12", "matern32", "matern52", "linear", "constant")
_NAME = re.compile("|".join(rf"\b{name}\b" for name in NAMED))
_FACTOR = re.compile(r"^\s*([a-z0-9]+)\s*(?:\(\s*(x|space)\s*\))?\s*$")


def parse_kernel(text: str, n_feat: int, *, has_coords: bool) -> Kernel:
    """Build a kernel from its description.

    Parameters
    ----------
    text : str
        Factors joined by ``*`` and ``+``: ``ard rbf matern12 matern32 matern52 linear constant``,
        each (but the constant) with ``(x)`` for the covariates (the default; for the Materns, the
        coordinates where there are any) or ``(space)`` for the coordinates; or ``additive``, the
        VBAgg paper's ``ard(x) + matern32(space)``.
    n_feat : int
        Number of covariates.
    has_coords : bool
        Whether coordinates follow the covariates in the inputs.

    Raises
    ------
    ParameterError
        If a word is unknown, or coordinates are asked for and there are none.
    """
    terms = [
        [_factor(part, n_feat, has_coords=has_coords) for part in term.split("*")]
        for term in _NAME.sub(lambda found: NAMED[found[0]], text).split("+")
    ]
    kernels = [_joined(Product, factors) for factors in _labelled(terms)]
    return _joined(Sum, kernels)


def _factor(text: str, n_feat: int, *, has_coords: bool) -> Radial | Linear | Constant:
    match = _FACTOR.match(text)
    if not match or match[1] not in FACTORS:
        msg = (
            f"kernel: {text.strip()!r} is not known; join {', '.join(FACTORS)} by + and *, "
            f"each with (x) or (space), or say {', '.join(NAMED)}"
        )
        raise ParameterError(msg)
    kind = match[1]
    if kind == "constant":
        return Constant()
    place = match[2] or ("space" if kind.startswith("matern") and has_coords else "x")
    if place == "space" and not has_coords:
        msg = f"kernel: {text.strip()!r} needs coordinates; give coords, or use (x)"
        raise ParameterError(msg)
    columns = (0, n_feat) if place == "x" else (n_feat, n_feat + 2)
    label = f"{kind}_{place}"
    if kind == "linear":
        return Linear(columns, label)
    return Radial(
        "rbf" if kind == "ard" else kind,
        columns,
        ard=kind == "ard",
        label=label,
        spatial=place == "space",
    )


def _labelled(terms: list[list[Radial | Linear | Constant]]) -> list[list[Kernel]]:
    """Give factors of the same name numbers, so that each parameter has a name of its own."""
    seen: dict[str, int] = {}
    out: list[list[Kernel]] = []
    for term in terms:
        row: list[Kernel] = []
        for factor in term:
            seen[factor.label] = seen.get(factor.label, 0) + 1
            count = seen[factor.label]
            row.append(replace(factor, label=f"{factor.label}_{count}") if count > 1 else factor)
        out.append(row)
    return out


def _joined(pair: type[Pair], kernels: list[Kernel]) -> Kernel:
    joined = kernels[0]
    for kernel in kernels[1:]:
        joined = pair(joined, kernel)
    return joined
