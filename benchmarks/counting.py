"""Products, exponentials and passes of the product's code, counted from the shapes of its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from models import VBAgg
from models.gp import bag_variance, draws, kernels, pixel_pass
from models.temporal import joint_functions

#: Visits of areas in fits, and their pixels; flops of matrix products; values of exponentials.
KEYS = ("passes", "pixels", "flops", "exps")
Add = Callable[[str, float], None]


@contextmanager
def counted(add: Add) -> Iterator[None]:
    """Call ``add(key, number)`` for all that is counted, in this process and those it forks.

    The products are those of the pixels (moments, their adjoints), of the pairs of an area and of
    drawn functions; symmetric ones count half. What the driver does with the inducing variables
    alone is left out.
    """
    kept: dict[tuple[Any, str], Callable[..., Any]] = {}

    def put(owner: Any, name: str, count: Callable[..., None]) -> None:
        function = kept[owner, name] = getattr(owner, name)

        def counting(*args: Any, **named: Any) -> Any:
            count(*args, **named)
            return function(*args, **named)

        setattr(owner, name, counting)

    def visit_of_bags(_: Any, params: Any, block: Any, __: Any) -> None:
        if "gather" not in params:
            add("passes", block.n_bag)
            add("pixels", block.n_pix)

    def symmetric(fwd: Any, *_: Any) -> None:
        add("flops", fwd.k.shape[0] * fwd.k.shape[1] ** 2)

    def pairs(variance: Any, group: Any) -> None:
        n_pair = float((np.diff(group.starts) ** 2).sum())  # of the same area
        add("flops", 3 * n_pair * variance._fwd.k.shape[1])  # K Q K', the adjoint's with K
        add("exps", n_pair / 2)

    def moments(
        _: Any, params: Any, z: Any, *, learn: bool = True, slopes: bool = True, **__: Any
    ) -> None:
        add("flops", (2 if learn and slopes else 1) * z.shape[0] * params["alpha"].shape[0] ** 2)

    def kernel(_: Any, at: Any) -> None:
        add("exps", at.z.shape[0] * at.w.shape[0])

    def drawn(functions: Any, z: Any) -> None:
        n, n_feature = z.shape[0], functions.features.n_feature
        own = functions.weights.size + functions.coefficients.size
        add("flops", 2 * n * own)
        add("exps", n * n_feature / 2)

    def drawn_and_about(functions: Any, z: Any) -> None:
        drawn(functions, z)
        add("flops", 2 * z.shape[0] * functions.about.size)

    put(VBAgg, "block_stats", visit_of_bags)
    put(pixel_pass.PixelPass, "_by_q", symmetric)
    put(pixel_pass, "forward", moments)
    put(bag_variance.BagVariance, "visit", pairs)
    put(kernels.Radial, "evaluate", kernel)
    for kind in (draws.FunctionDraws, joint_functions.FunctionsInTime):
        put(kind, "latent", drawn)
        put(kind, "latent_and_about", drawn_and_about)
    try:
        yield
    finally:
        for (owner, name), function in kept.items():
            setattr(owner, name, function)
