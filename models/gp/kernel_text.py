"""Kernels from their description, such as ``linear + matern32(space)``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np

from models.core.errors import ParameterError
from models.gp import kernel_grammar as grammar
from models.gp.area_kernel import Areas
from models.gp.kernel_sums import Product, Sum
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
#: Without covariates.
BARE = "matern32(space)"
#: With one covariate: nothing acts together with it.
ALONE = {"smooth_joint": "smooth_additive"}


@dataclass(frozen=True)
class Place:
    """Where a factor stands: its columns of the inputs, its label, and whether they are space.

    ``n_area`` is the number of areas where the column is that of areas.
    """

    columns: tuple[int, int]
    label: str
    spatial: bool
    n_area: int = 0


@dataclass(frozen=True)
class Columns:
    """How many columns the inputs have of each kind: covariates, the area's number, coordinates.

    ``n_area`` is the number of areas; there is no such column where it is 0.
    """

    n_feat: int
    n_axis: int
    n_area: int = 0

    def place(self, name: str, word: str) -> Place:
        """Return the place ``x``, ``area`` or ``space``."""
        ends = np.cumsum([0, self.n_feat, self.n_area > 0, self.n_axis]).tolist()
        number = ("x", "area", "space").index(name)
        columns = (ends[number], ends[number + 1])
        label = word if name == "area" else f"{word}_{name}"
        return Place(columns, label, name == "space", self.n_area)


AREA = "area"
Build = Callable[[Place], Kernel]


@dataclass(frozen=True)
class Factor:
    """One word of a kernel's description: how it is built, and where it stands by default."""

    build: Build
    prefers_space: bool


FACTORS: dict[str, Factor] = {}


def parse_kernel(
    text: str, n_feat: int, *, has_coords: bool, n_axis: int = 2, n_area: int = 0
) -> Kernel:
    """Build a kernel from its description.

    Parameters
    ----------
    text : str
        Factors joined by ``*`` and ``+``, which binds less, and brackets
        (:mod:`models.gp.kernel_grammar`). Factors: ``ard rbf matern12 matern32 matern52 linear
        constant``, each (but the constant) with ``(x)`` for the covariates (the default; for the
        Materns, the coordinates where there are any) or ``(space)`` for the coordinates. Or a name
        of :data:`NAMED`, such as ``additive``, the VBAgg paper's ``ard(x) + matern32(space)``; a
        name stands for its text as written, without brackets.
    n_feat : int
        Number of covariates.
    has_coords : bool
        Whether coordinates follow the covariates in the inputs.
    n_axis : int
        Columns of the coordinates, 2 or 3.
    n_area : int
        Number of areas, where the inputs have a column of the area's number between the covariates
        and the coordinates; ``area`` is then a factor as well.

    Raises
    ------
    ParameterError
        If the text breaks the grammar, a word is unknown, or coordinates are asked for and there
        are none; the message marks the column.
    """
    return _parsed(text, Columns(n_feat, n_axis if has_coords else 0, n_area))


@lru_cache(maxsize=64)
def _parsed(text: str, columns: Columns) -> Kernel:
    """Build a kernel once: each pass of a fit asks for it."""
    return _built(grammar.parse(text, NAMED), text, columns, {})


def check_drawable(text: str) -> None:
    """Raise ParameterError if joint draws of a kernel's functions are not available.

    The message marks the column of the innermost part that has none.
    """
    for node in grammar.walk(grammar.parse(text, NAMED)):
        kernel = _built(node, text, Columns(2, 2), {})
        try:
            kernel.features(kernel.start(1.0), 2, np.random.default_rng(0))
        except ParameterError as error:
            found, _, remedy = str(error).removeprefix("kernel: ").partition("; ")
            raise grammar.refused(text, node.column, found, remedy) from None


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
    _parsed.cache_clear()


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
    _parsed.cache_clear()


def _ard(place: Place) -> Radial:
    return Radial("rbf", place.columns, ard=True, label=place.label, spatial=place.spatial)


def _constant(place: Place) -> Constant:
    del place
    return Constant()


register_factor("ard", _ard)
for _shape in list(SHAPES.values()):
    register_shape(_shape)
register_factor("linear", lambda place: Linear(place.columns, place.label))
register_factor("ridge", lambda place: Ridge(place.columns, place.label))
register_factor("smooth", lambda place: Smooths(place.columns, place.label))
register_factor("constant", _constant)
register_factor(AREA, lambda place: Areas(place.columns, place.n_area, place.label))


def _built(node: grammar.Node, text: str, columns: Columns, seen: dict[str, int]) -> Kernel:
    """Return the kernel of a tree; ``seen`` counts the labels that it has so far."""
    if isinstance(node, grammar.Factor):
        factor = _factor(node, text, columns)
        # Factors of the same name get numbers, so that each parameter has a name of its own.
        label = getattr(factor, "label", "")
        seen[label] = count = seen.get(label, 0) + 1
        return replace(factor, label=f"{label}_{count}") if count > 1 else factor  # type: ignore[type-var]
    kernels = [_built(part, text, columns, seen) for part in node.parts]
    return reduce(Sum if isinstance(node, grammar.Sum) else Product, kernels)


def _factor(node: grammar.Factor, text: str, columns: Columns) -> Kernel:
    if node.word not in FACTORS:
        known = [name for name in FACTORS if name != AREA or columns.n_area]
        remedy = (
            f"join {', '.join(known)} by + and *, each with (x) or (space), "
            f"or use {', '.join(NAMED)}"
        )
        raise grammar.refused(text, node.column, f"{node.word!r} is not known", remedy)
    factor = FACTORS[node.word]
    place = "space" if factor.prefers_space and columns.n_axis else "x"
    if node.word == AREA:
        if node.arguments or not columns.n_area:
            found = f"{str(node)!r} stands by itself, in a model of several periods"
            raise grammar.refused(text, node.column, found, "use area, or area * time(matern12)")
        place = AREA
    elif node.arguments:
        place, column = str(node.arguments[0]), node.arguments[0].column
        if len(node.arguments) > 1 or place not in ("x", "space"):
            found = f"the place {', '.join(map(str, node.arguments))!r} is not known"
            raise grammar.refused(text, column, found, f"use {node.word}(x) or {node.word}(space)")
    if place == "x" and not columns.n_feat and factor.build is not _constant:
        found = f"{str(node)!r} needs covariates"
        raise grammar.refused(text, node.column, found, "give some, or use (space)")
    if place == "space" and not columns.n_axis:
        found = f"{str(node)!r} needs coordinates"
        raise grammar.refused(text, node.column, found, "give coords, or use (x)")
    return factor.build(columns.place(place, node.word))
