"""How often a fit goes over the areas, and over how many of their pixels.

A fit that climbs to its optimum (:mod:`models.aggregate.refinement`) takes most of its passes over
few pixels of each area; the counts below are those of fits of the small simulated country
(``docs/plan.md``). Other fits take all of ``fit.max_epochs``, their longest case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from models.aggregate.hyperparameter_chain import KEPT, KEPT_EACH, SDS, SIDES, SPREADS
from models.aggregate.hyperparameter_chain import WARM_SHARE as CHAIN_WARM
from models.aggregate.refinement import MOST_CHAINED as MOST_AREAS_CHAINED
from models.aggregate.vbagg import CLIMB_PIXELS, FEW, LEAST_CLIMB
from models.gp.inducing_points import LARGEST_NODES, LEAST_NODES, MOST_AREAS, MOST_NODES
from models.temporal.search import MOST_CHAINED
from models.training.few_pixels import BLOCK
from pipeline.config.model_factory import new_model, resolved
from pipeline.config.schema import Config
from pipeline.plan.sizes import Passage, Sizes, passage


@dataclass(frozen=True)
class Visits:
    """Passes over the bags, by what they do.

    Attributes
    ----------
    points : float
        Hyperparameters under which a climb of q(u) begins: the kernel's matrices are made anew.
    steps : float
        Steps of q(u).
    slopes : float
        Passes with all gradients.
    """

    points: float = 0.0
    steps: float = 0.0
    slopes: float = 0.0

    @property
    def passes(self) -> float:
        """All of them."""
        return self.steps + self.slopes

    def __add__(self, other: Visits) -> Visits:
        """Return both together."""
        return Visits(
            self.points + other.points, self.steps + other.steps, self.slopes + other.slopes
        )

    def __mul__(self, n: float) -> Visits:
        """Return as many of them."""
        return Visits(n * self.points, n * self.steps, n * self.slopes)


@dataclass(frozen=True)
class Habits:
    """What fits to the optimum took.

    Attributes
    ----------
    climb, whole : (int, Visits)
        Steps of the fit, and visits of one: of the climb with its curvatures, and of the last on
        all pixels.
    member : Visits
        Of one draw of the hyperparameters.
    """

    climb: tuple[int, Visits]
    whole: tuple[int, Visits]
    member: Visits


#: Four fits of 50 to 300 areas (docs/plan.md).
ONE_PERIOD = Habits((12, Visits(1.1, 3.4, 1.1)), (5, Visits(1.1, 2.5, 1.0)), Visits(1.1, 3.1))
#: Two fits of 16 areas x 3 and 6 months: 33 and 34 passes, 11 over all pixels, 3.3 of a draw.
SERIES = Habits((10, Visits(1.1, 2.4, 1.0)), (3, Visits(1.1, 2.6, 1.1)), Visits(1.1, 3.3))
#: Fits that begin at another's optimum, by what they fit, counted on three maps. Without a region
#: the optimum is further away, and q(u) takes more steps to follow.
WARM = {
    "area": replace(ONE_PERIOD, climb=(5, Visits(1.1, 3.8, 1.2)), member=Visits(1.6, 4.2)),
    "block": replace(ONE_PERIOD, climb=(10, Visits(1.2, 5.2, 1.4)), member=Visits(1.6, 4.2)),
    "simulated": replace(ONE_PERIOD, climb=(4, Visits(1.1, 3.6, 1.2)), member=Visits(1.6, 4.2)),
}
HESSIANS = 10  # taken of the held site
EVALUATIONS = 1900  # of a chain on the evidence of a series: its steps, and the grid that it visits
GRID = SDS.size * SPREADS.size * SIDES.size  # evaluations of which jumps are made


@dataclass(frozen=True)
class FitPasses:
    """Passes of one fit.

    Attributes
    ----------
    few, whole : Passage
        Pixels of a pass of the climb, and of one over all.
    of_few, of_whole : Visits
    n_hessian : int
    n_evidence : int
        Evaluations of the evidence between areas, or areas and periods, by a chain.
    """

    few: Passage
    whole: Passage
    of_few: Visits
    of_whole: Visits
    n_hessian: int
    n_evidence: int = 0

    @property
    def n_few(self) -> float:
        """Passes of the climb."""
        return self.of_few.passes

    @property
    def n_whole(self) -> float:
        """Passes over all pixels."""
        return self.of_whole.passes

    @property
    def n_pixels(self) -> float:
        """Pixels that are visited, each as often as it is."""
        return self.n_few * self.few.n_pixels + self.n_whole * self.whole.n_pixels


def n_nodes(config: Config, sizes: Sizes) -> int:
    """Return the points that the inducing variables of a model are made of, nearly."""
    model: Any = new_model(config)
    if not climbs(model) or model.wanted_points is not None:
        return int(resolved(config, "inducing"))
    if sizes.n_bags > MOST_AREAS:
        return MOST_AREAS
    each = min(max(MOST_NODES // sizes.n_bags, LEAST_NODES), LARGEST_NODES)
    return each * sizes.n_bags


def climbs(model: Any) -> bool:
    """Tell whether a model's fit is a climb to the optimum, not epochs."""
    return bool(getattr(model, "by_terms", False))


def fit_passes(
    config: Config, sizes: Sizes, model: Any, cap: int | str, epochs: int, warm: str | None = None
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
    warm : {"area", "block", "simulated"}, optional
        What it fits if it begins at another fit's optimum: all areas but some, all but a region,
        simulated counts.
    """
    n_period = sizes.periods.fitted
    whole = _beside(passage(config, sizes, cap).over(n_period), sizes, sizes.point_pixels)
    if not climbs(model):
        return FitPasses(whole, whole, Visits(), Visits(slopes=float(epochs)), 0)
    most = max(LEAST_CLIMB, CLIMB_PIXELS // whole.n_areas)
    if whole.n_pixels <= 1.5 * most * whole.n_areas:
        few = whole
    else:
        few = passage(config, sizes, most if cap == "all" else min(most, int(cap))).over(n_period)
        few = _beside(few, sizes, min(sizes.point_pixels, most * sizes.n_points))
    habits = ONE_PERIOD if config.series is None else SERIES
    habits = habits if warm is None else WARM[warm]
    (climb_steps, of_climb), (whole_steps, of_whole) = habits.climb, habits.whole
    climb = min(epochs, climb_steps)
    last = 0.0 if few is whole or model.few_pixels else min(epochs - climb, whole_steps)
    pairs = min(epochs - climb - last, model.n_member / 2)
    if config.series is not None:
        few = _here(few)
    elif whole.n_pixels <= FEW:
        few = _here(few)
        whole = _here(whole)
    elif few is not whole:
        few = _here(few)
    members = habits.member * (2 * pairs)
    of_few, of_last = of_climb * climb, of_whole * last
    if last:
        of_last += members
    else:
        of_few += members
    n_evidence = 0
    if pairs and config.series is not None:
        n_evidence = EVALUATIONS if chained(config, whole.n_areas) else 0
    elif pairs and explores(model, whole.n_areas):
        n_evidence = n_explored(model.n_member if model.few_pixels else KEPT // KEPT_EACH) + GRID
    return FitPasses(
        few,
        whole,
        of_few,
        of_last + Visits(steps=1.0),  # one brings the few pixels to the driver
        1 if warm else HESSIANS,
        n_evidence,
    )


def explores(model: Any, n_area: int) -> bool:
    """Tell whether a chain explores the evidence of the areas of a model of one period."""
    return climbs(model) and model.priors == "weak" and 1 < n_area <= MOST_AREAS_CHAINED


def n_explored(n_draw: int) -> int:
    """Return the evaluations of a chain that is for so many draws."""
    return round((1 + CHAIN_WARM) * min(KEPT, KEPT_EACH * n_draw))


def chained(config: Config, n_count: int) -> bool:
    """Tell whether a chain explores the evidence of all counts of a series."""
    return config.series is not None and n_count <= MOST_CHAINED


def _beside(read: Passage, sizes: Sizes, n_pixels: int) -> Passage:
    """Return a passage over areas that visits the points beside them as well."""
    if not sizes.n_points:
        return read
    n_pix, n_areas = read.n_pixels + n_pixels, read.n_areas + sizes.n_points
    return replace(read, n_pixels=n_pix, n_areas=n_areas, n_blocks=read.n_blocks + 1)


def _here(read: Passage) -> Passage:
    """Return the passage over pixels that are in the driver's memory."""
    n_block = max(read.n_steps, round(read.n_pixels / BLOCK))
    return replace(read, n_blocks=n_block, store_bytes=0)
