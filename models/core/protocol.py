"""The interface between models and the training loop.

A model defines the sums that workers compute over blocks of bags (:meth:`Model.block_stats`) and
the driver's update from these sums (:meth:`Model.update`): a gradient step, or a closed form. The
loop (:mod:`models.training.loop`) uses nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from models.core.block import BagBlock

Arrays = dict[str, np.ndarray]
Sweep = Literal["minibatch", "full", "single"]
Method = TypeVar("Method", bound=Callable[..., Any])


def override(method: Method) -> Method:
    """Mark a method that the base class documents (``typing.override`` of Python 3.12)."""
    method.__override__ = True  # type: ignore[attr-defined]
    return method


@dataclass(frozen=True)
class Summary:
    """Statistics of the training data that initialise a model.

    Attributes
    ----------
    x : (n_sample, n_feat) float64
        Covariates of a random sample of pixels, as measured.
    coords : (n_sample, n_axis) float64 or None
        Their positions, km.
    x_mean, x_sd : (n_feat,) float64
        Scaling of the covariates over the training pixels alone.
    y, weight : (n_bag,) float64
        Responses of the training bags, and their summed weights.
    n_pix : int
        Number of training pixels.
    trials : (n_bag,) float64 or None
        Numbers tested in the training bags, where the response is positives.
    bag_y : (n_sample,) float64 or None
        Response of the bag that each sampled pixel is in.
    bag : (n_sample,) int64 or None
        That bag.
    pixel_weight : (n_sample,) float64 or None
        Weight of each sampled pixel.
    n_all : int or None
        Number of pixels that the training pixels stand for, where they are some of them.
    source, pixel_source : (n_bag,), (n_sample,) int64 or None
        Source of each bag and of the bag of each sampled pixel; None: the areas alone. ``x_mean``,
        ``x_sd``, ``n_pix`` and ``n_all`` are of the areas.
    """

    x: np.ndarray
    coords: np.ndarray | None
    x_mean: np.ndarray
    x_sd: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    n_pix: int
    trials: np.ndarray | None = None
    bag_y: np.ndarray | None = None
    bag: np.ndarray | None = None
    pixel_weight: np.ndarray | None = None
    n_all: int | None = None
    source: np.ndarray | None = None
    pixel_source: np.ndarray | None = None

    @property
    def n_bag(self) -> int:
        """Number of training bags."""
        return int(self.y.shape[0])

    def of(self, number: int) -> Summary:
        """Return the summary of the bags of one source; 0 are the areas."""
        if self.source is None or self.pixel_source is None:
            return self
        bags, pixels = self.source == number, self.pixel_source == number

        def chosen(name: str, keep: np.ndarray) -> Any:
            array = getattr(self, name)
            return None if array is None else array[keep]

        trials = chosen("trials", bags)
        return replace(
            self,
            **{name: chosen(name, bags) for name in ("y", "weight")},
            trials=None if trials is None or np.isnan(trials).all() else trials,
            **{
                name: chosen(name, pixels)
                for name in ("x", "coords", "bag_y", "bag", "pixel_weight")
            },
            source=None,
            pixel_source=None,
        )


@dataclass(frozen=True)
class State:
    """Everything that a model learns, as plain arrays that a checkpoint can store.

    Attributes
    ----------
    params : dict of arrays
        Learnt parameters, unconstrained.
    fixed : dict of arrays
        Constants computed from the data at the start, such as scalings.
    memory : dict of arrays
        The optimiser's moments, or the memory of an EM algorithm.
    step : int
        Updates made.
    rate : float
        Learning rate of the next update; set by the loop's schedule.
    members : dict of arrays
        Draws of the hyperparameters with their posterior, stacked: ``weight`` (n_member,), which
        adds up to 1, and ``(n_member, ...)`` by the name in ``params`` that each stands for; what
        is not in it, members share. Empty where hyperparameters are not integrated.
    """

    params: Arrays
    fixed: Arrays
    memory: Arrays = field(default_factory=dict)
    step: int = 0
    rate: float = 0.0
    members: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Stats:
    """Sums over the bags of some blocks: they add leaf by leaf, in float64.

    Attributes
    ----------
    bound : float
        Sum of the bags' parts of the bound, nats.
    n_bag : int
        Bags summed over.
    sums : dict of float64 arrays
        Sums that the model's update needs.
    """

    bound: float
    n_bag: int
    sums: Arrays

    def __add__(self, other: Stats) -> Stats:
        """Add leaf by leaf."""
        sums = {name: value + other.sums[name] for name, value in self.sums.items()}
        return Stats(self.bound + other.bound, self.n_bag + other.n_bag, sums)


@dataclass(frozen=True)
class Info:
    """Result of an update, for the loop.

    Attributes
    ----------
    bound : float
        The bound on the whole data set that the step estimated, nats.
    converged : bool or None
        Whether the fit has converged, for closed forms; where None, the loop's schedule decides.
    stopped : str
        Why the fit must end before it converged; empty where it need not.
    report : dict of float
        What else a line of the history holds: nats left, passes.
    """

    bound: float
    converged: bool | None = None
    stopped: str = ""
    report: dict[str, float] = field(default_factory=dict)


class BagSums(Protocol):
    """Sums over all bags of a fit."""

    def __call__(self, state: State, cap: int, slopes: bool) -> Stats:
        """Return them under a state, of at most ``cap`` pixels a bag; 0 for all where they are."""

    def bags(self, state: State, cap: int) -> BagBlock:
        """Return all bags, of at most ``cap`` pixels each."""

    def parts(self, asked_of: Iterable[tuple[Arrays, Sequence[int]]]) -> Iterator[Stats]:
        """Yield the sums over some blocks under parameters of their own, each: one pass."""


class Algorithm(Protocol):
    """A way to fit, in steps whose whole memory is in the state."""

    def init(self, state: State) -> State:
        """Return the state of the first step; of a fit that goes on, the same state."""

    def step(self, state: State) -> tuple[State, Info]:
        """Take the next step."""

    def terminate(self, state: State, info: Info) -> tuple[bool, str]:
        """Return whether the fit has converged, and why it must end if it has not; ``""``: not."""

    def phase(self, state: State) -> str:
        """Return what the next step does, in a few words; ``""`` where it is always the same."""


class Model(Protocol):
    """Interface of a model for the training loop and the pipeline.

    Attributes
    ----------
    sweep : {"minibatch", "full", "single"}
        Whether a step is a batch of blocks or all of them; ``single`` models are no sums over
        blocks: they hold all bags in memory and fit themselves.
    keeps_local : bool
        Whether :meth:`block_stats` returns something that it wants back with the same block at the
        next step (variational factors of bags or pixels), a dict of arrays.
    saves_local : bool
        Whether that must be in a checkpoint; false where ``params`` alone let it be computed anew.
    """

    sweep: Sweep
    keeps_local: bool
    saves_local: bool

    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """Return the starting state."""

    def block_params(self, state: State) -> Arrays:
        """Return the arrays that blocks need; every worker receives them at every step."""

    def needs_block(self, params: Arrays, local: Any) -> bool:
        """Return whether :meth:`block_stats` reads the block, and not ``local`` alone."""

    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        """Return the block's sums, and what to keep with this block.

        ``local`` is what the last call for this block returned, None the first time. ``block`` is
        None where :meth:`needs_block` returned false.
        """

    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """Make one step from the sums over a minibatch (or over everything)."""

    def refinement(self, state: State, n_bag: int, sums: BagSums) -> Algorithm | None:
        """Return the fit's own steps; None where the loop makes them.

        Parameters
        ----------
        state : State
            At the start.
        n_bag : int
        sums : callable
            From a state, the most pixels of a bag (0 for all of them) and whether slopes by the
            kernel's parameters are wanted, the sums of all bags.
        """
