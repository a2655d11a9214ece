"""How often a fit goes over the areas, and over how many of their pixels.

A fit that climbs to its optimum (:mod:`models.aggregate.refinement`) takes most of its passes over
few pixels of each area; the counts below are those of fits of the small simulated country
(``docs/plan.md``). Other fits take all of ``fit.max_epochs``, their longest case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from models.aggregate.vbagg import CLIMB_PIXELS, FEW, LEAST_CLIMB
from models.gp.inducing_points import LARGEST_NODES, LEAST_NODES, MOST_AREAS, MOST_NODES
from models.training.few_pixels import BLOCK
from pipeline.config.model_factory import new_model, resolved
from pipeline.config.schema import Config
from pipeline.plan.sizes import Passage, Sizes, passage

#: Of the climb with its curvatures, and of the last steps on all pixels: steps, passes of one.
CLIMB_STEPS, CLIMB_PASSES = 14, 5.0
WHOLE_STEPS, WHOLE_PASSES = 4, 4.0
MEMBER_PASSES = 4.0  # of one draw of the hyperparameters
HESSIANS = 5  # taken of the held site
WARM_SHARE = 0.25  # of the climb, where a fit begins at another's optimum
#: What a pass takes, as a share of one that makes the kernel's matrices and all derivatives: most
#: passes find the former made and need none of the latter.
PASS_SHARE = 0.65


@dataclass(frozen=True)
class FitPasses:
    """Passes of one fit.

    Attributes
    ----------
    few, whole : Passage
        Pixels of a pass of the climb, and of one over all.
    n_few, n_whole : float
        As many passes that make everything anew would take as long.
    n_hessian : int
    """

    few: Passage
    whole: Passage
    n_few: float
    n_whole: float
    n_hessian: int

    @property
    def n_pixels(self) -> float:
        """Pixels that are visited, each as often as it is."""
        return self.n_few * self.few.n_pixels + self.n_whole * self.whole.n_pixels


def n_nodes(config: Config, sizes: Sizes) -> int:
    """Return the points that the inducing variables of a model are made of, nearly."""
    model: Any = new_model(config)
    if not climbs(model) or model.wanted_points is not None:
        return int(resolved(config, "inducing"))
    if sizes.n_areas > MOST_AREAS:
        return MOST_AREAS
    each = min(max(MOST_NODES // sizes.n_areas, LEAST_NODES), LARGEST_NODES)
    return each * sizes.n_areas


def climbs(model: Any) -> bool:
    """Tell whether a model's fit is a climb to the optimum, not epochs."""
    return bool(getattr(model, "by_terms", False))


def fit_passes(
    config: Config, sizes: Sizes, model: Any, cap: int | str, epochs: int, *, warm: bool = False
) -> FitPasses:
    """Foresee the passes of a fit.

    Parameters
    ----------
    config : Config
    sizes : Sizes
    model : model
        Of the configuration.
    cap : int or "all"
        Pixels that an area keeps in this fit.
    epochs : int
        Steps, or passes, that are allowed.
    warm : bool
        Whether it begins at another fit's optimum.
    """
    whole = passage(config, sizes, cap)
    if not climbs(model):
        return FitPasses(whole, whole, 0.0, float(epochs), 0)
    most = max(LEAST_CLIMB, CLIMB_PIXELS // whole.n_areas)
    if whole.n_pixels <= 1.5 * most * whole.n_areas:
        few = whole
    else:
        few = passage(config, sizes, most if cap == "all" else min(most, int(cap)))
    share = WARM_SHARE if warm else 1.0
    climb = min(epochs, CLIMB_STEPS * share)
    last = 0.0 if few is whole or model.few_pixels else min(epochs - climb, WHOLE_STEPS)
    pairs = min(epochs - climb - last, model.n_member / 2)
    if whole.n_pixels <= FEW:
        few = _here(few)
        whole = _here(whole)
    elif few is not whole:
        few = _here(few)
    members = 2 * MEMBER_PASSES * pairs
    n_few, n_last = CLIMB_PASSES * climb, WHOLE_PASSES * last
    if last:
        n_last += members
    else:
        n_few += members
    return FitPasses(
        few,
        whole,
        PASS_SHARE * n_few,
        PASS_SHARE * n_last + 1.0,  # one brings the few pixels to the driver
        1 if warm else HESSIANS,
    )


def _here(read: Passage) -> Passage:
    """Return the passage over pixels that are in the driver's memory."""
    return replace(read, n_blocks=max(1, round(read.n_pixels / BLOCK)), store_bytes=0)
