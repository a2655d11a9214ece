"""How often a fit goes over the areas, and over how many of their pixels.

A fit that climbs to its optimum (:mod:`models.aggregate.refinement`) takes most of its passes over
few pixels of each area; the counts below are those of fits of the small simulated country
(``docs/plan.md``). Other fits take all of ``fit.max_epochs``, their longest case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from models.aggregate.vbagg import CLIMB_PIXELS, LEAST_CLIMB
from models.gp.inducing_points import LARGEST_NODES, LEAST_NODES, MOST_AREAS, MOST_NODES
from pipeline.config.model_factory import new_model, resolved
from pipeline.config.schema import Config
from pipeline.plan.sizes import Passage, Sizes, passage

#: Of the climb with its curvatures, and of the last steps on all pixels: steps, passes of one.
CLIMB_STEPS, CLIMB_PASSES = 25, 9.0
WHOLE_STEPS, WHOLE_PASSES = 3, 8.0
MEMBER_PASSES = 18.0  # of one draw of the hyperparameters
HESSIANS = 8  # taken of the held site
WARM_SHARE = 0.35  # of the climb, where a fit begins at another's optimum


@dataclass(frozen=True)
class FitPasses:
    """Passes of one fit.

    Attributes
    ----------
    few, whole : Passage
        Pixels of a pass of the climb, and of one over all.
    n_few, n_whole : float
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
    if not climbs(model) or model.n_inducing != "auto":
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
        # Blocks are read whole, and the chosen pixels of each are kept.
        chosen = passage(config, sizes, most if cap == "all" else min(most, int(cap)))
        few = replace(whole, n_pixels=chosen.n_pixels)
    share = WARM_SHARE if warm else 1.0
    climb = min(epochs, CLIMB_STEPS * share)
    last = 0.0 if few is whole else min(epochs - climb, WHOLE_STEPS)
    pairs = min(epochs - climb - last, model.n_member / 2)
    n_few = CLIMB_PASSES * climb + 2 * MEMBER_PASSES * pairs
    return FitPasses(few, whole, n_few, WHOLE_PASSES * last, 1 if warm else HESSIANS)
