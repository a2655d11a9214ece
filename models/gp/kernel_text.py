"""Kernels from their description, such as ``linear + matern32(space)``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from models.core.errors import ParameterError
from models.gp.kernel_sums import Pair, Product, Sum
from models.gp.kernels import Constant, Kernel, Linear, Radial
from models.gp.regression_kernels import Ridge, Smooths
from models.gp.shapes import SHAPES, Shape

NAMED = {
    "additive": "ard(x) + matern32(space)",
    "smooth_additive": "ridge(x) + smooth(x) + matern32(space)",
    "smooth_joint": "ridge(x) + smooth(x) + rbf(x) + matern32(space)",
    "flexible": "ridge(x) + smooth(x) + ard(x) + matern32(space)",
}
#: Without coordinates: what covariates do together takes the place of space.
SPACELESS = {
    "additive": "ard(x)",
    "smooth_additive": "ridge(x) + smooth(x)",
    "smooth_joint": "ridge(x) + smooth(x) + rbf(x)",
}
#: With one covariate: nothing acts together with it.
ALONE = {"smooth_joint": "smooth_additive"}
_NAME = re.compile("|".join(rf"\b{name}\b" for name in NAMED))
_FACTOR = re.compile(r"^\s*([a-z0-9]+)\s*(?:\(\s*(x|space)\s*\))?\s*$")


@dataclass(frozen=True)
class Place:
    """Where a factor stands: its columns of the inputs, its label, and whether they are space."""

    columns: tuple[int, int]
    label: str
    spatial: bool


Build = Callable[[Place], Kernel]


@dataclass(frozen=True)
class Factor:
    """One word of a kernel's description: how it is built, and where it stands by default."""

    build: Build
    prefers_space: bool


FACTORS: dict[str, Factor] = {}


def parse_kernel(text: str, n_feat: int, *, has_coords: bool, n_axis: int = 2) -> Kernel:
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
    n_axis : int
        Columns of the coordinates, 2 or 3.

    Raises
    ------
    ParameterError
        If a word is unknown, or coordinates are asked for and there are none.
    """
    terms = [
        [_factor(part, n_feat, n_axis if has_coords else 0) for part in term.split("*")]
        for term in _NAME.sub(lambda found: NAMED[found[0]], text).split("+")
    ]
    kernels = [_joined(Product, factors) for factors in _labelled(terms)]
    return _joined(Sum, kernels)


def register_factor(name: str, build: Build, *, prefers_space: bool = False) -> None:
    """Make a kernel a word of ``kernel=...``.

    Parameters
    ----------
    name : str
        Small letters and digits.
    build : callable
        From a :class:`Place` to a kernel, a dataclass with a ``label``.
    prefers_space : bool
        Whether it stands for the coordinates, where there are any and no columns are named.

    Raises
    ------
    ParameterError
        If the name is taken, or is no word.
    """
    if name in FACTORS or name in NAMED or not re.fullmatch("[a-z][a-z0-9]*", name):
        msg = f"kernel: {name!r} is registered, or not lower-case letters and digits; rename it"
        raise ParameterError(msg)
    FACTORS[name] = Factor(build, prefers_space)


def register_shape(shape: Shape) -> None:
    """Make a shape a word of ``kernel=...``, as :func:`register_factor` does a kernel."""

    def build(place: Place) -> Radial:
        return Radial(
            shape.name, place.columns, ard=False, label=place.label, spatial=place.spatial
        )

    register_factor(shape.name, build, prefers_space=shape.prefers_space)
    SHAPES[shape.name] = shape


def unregister_factor(name: str) -> None:
    """Forget a kernel or a shape that code outside the packages registered."""
    FACTORS.pop(name, None)
    SHAPES.pop(name, None)


def _ard(place: Place) -> Radial:
    return Radial("rbf", place.columns, ard=True, label=place.label, spatial=place.spatial)


register_factor("ard", _ard)
for _shape in list(SHAPES.values()):
    register_shape(_shape)
register_factor("linear", lambda place: Linear(place.columns, place.label))
register_factor("ridge", lambda place: Ridge(place.columns, place.label))
register_factor("smooth", lambda place: Smooths(place.columns, place.label))
register_factor("constant", lambda _: Constant())


def _factor(text: str, n_feat: int, n_axis: int) -> Any:
    match = _FACTOR.match(text)
    if not match or match[1] not in FACTORS:
        msg = (
            f"kernel: {text.strip()!r} is not known; join {', '.join(FACTORS)} by + and *, "
            f"each with (x) or (space), or use {', '.join(NAMED)}"
        )
        raise ParameterError(msg)
    factor = FACTORS[match[1]]
    place = match[2] or ("space" if factor.prefers_space and n_axis else "x")
    if place == "space" and not n_axis:
        msg = f"kernel: {text.strip()!r} needs coordinates; give coords, or use (x)"
        raise ParameterError(msg)
    columns = (0, n_feat) if place == "x" else (n_feat, n_feat + n_axis)
    return factor.build(Place(columns, f"{match[1]}_{place}", place == "space"))


def _labelled(terms: list[list[Any]]) -> list[list[Kernel]]:
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
