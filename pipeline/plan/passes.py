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
from models.temporal.search import MOST_CHAINED
from models.training.few_pixels import BLOCK
from pipeline.config.model_factory import new_model, resolved
from pipeline.config.schema import Config
from pipeline.plan.sizes import Passage, Sizes, passage


@dataclass(frozen=True)
class Habits:
    """What fits to the optimum took.

    Attributes
    ----------
    climb, whole : (int, float)
        Steps, and passes of one: of the climb with its curvatures, and of the last on all pixels.
    member : float
        Passes of one draw of the hyperparameters.
    """

    climb: tuple[int, float]
    whole: tuple[int, float]
    member: float


ONE_PERIOD = Habits(climb=(14, 5.0), whole=(4, 4.0), member=4.0)
#: Two fits of 16 areas x 3 and 6 months: 33 and 34 passes, 11 over all pixels, 3.3 of a draw.
SERIES = Habits(climb=(10, 3.4), whole=(3, 3.7), member=3.3)
HESSIANS = 5  # taken of the held site
EVALUATIONS = 1900  # of a chain on the evidence of a series: its steps, and the grid that it visits
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
    n_evidence : int
        Evaluations of the evidence between areas and periods, by a chain.
    """

    few: Passage
    whole: Passage
    n_few: float
    n_whole: float
    n_hessian: int
    n_evidence: int = 0

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
    n_period = sizes.periods.fitted
    whole = passage(config, sizes, cap).over(n_period)
    if not climbs(model):
        return FitPasses(whole, whole, 0.0, float(epochs), 0)
    most = max(LEAST_CLIMB, CLIMB_PIXELS // whole.n_areas)
    if whole.n_pixels <= 1.5 * most * whole.n_areas:
        few = whole
    else:
        few = passage(config, sizes, most if cap == "all" else min(most, int(cap))).over(n_period)
    share = WARM_SHARE if warm else 1.0
    habits = ONE_PERIOD if config.series is None else SERIES
    (climb_steps, climb_passes), (whole_steps, whole_passes) = habits.climb, habits.whole
    climb = min(epochs, climb_steps * share)
    last = 0.0 if few is whole or model.few_pixels else min(epochs - climb, whole_steps)
    pairs = min(epochs - climb - last, model.n_member / 2)
    if config.series is not None:
        few = _here(few)
    elif whole.n_pixels <= FEW:
        few = _here(few)
        whole = _here(whole)
    elif few is not whole:
        few = _here(few)
    members = 2 * habits.member * pairs
    n_few, n_last = climb_passes * climb, whole_passes * last
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
        EVALUATIONS if chained(config, whole.n_areas) and pairs else 0,
    )


def chained(config: Config, n_count: int) -> bool:
    """Tell whether a chain explores the evidence of all counts of a series."""
    return config.series is not None and n_count <= MOST_CHAINED


def _here(read: Passage) -> Passage:
    """Return the passage over pixels that are in the driver's memory."""
    n_block = max(read.n_steps, round(read.n_pixels / BLOCK))
    return replace(read, n_blocks=n_block, store_bytes=0)
