"""What a fit to the optimum remembers between its steps, and what its stages share."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from models.aggregate.profile_bound import Point, Profile
from models.aggregate.site_evidence import SiteEvidence
from models.aggregate.surface_model import SurfaceModel
from models.core.errors import NumericalError
from models.core.protocol import BagSums, State

CLIMB, CURVATURE, WHOLE, MEMBERS, DONE = range(5)
START_INVERSE = 0.3  # inverse Hessian at the start

_UNKNOWN: Any = None  # of a field that has a value from the first point on


@dataclass(frozen=True)
class Memory:
    """What a fit knows between two steps: the memory of its state, None where it knows nothing.

    Attributes
    ----------
    stage : int
    inverse : (n_phi, n_phi) float64
        Inverse Hessian of minus the profile bound.
    value, left, gained : float
        The bound, what is left to gain, and what the last step gained; nats.
    grad : (n_phi,) float64
        None before the first point of a climb.
    failed : int
        Steps in a row that gained nothing.
    tries, passes : int
        Times that the curvature was taken, and passes over the bags.
    curved : int
        Whether the inverse is that of another's optimum.
    curved_at : float
        The bound where the curvature was taken last, nats.
    unknown, differences : (n,) int64, (n, n_phi) float64
        Hyperparameters whose curvature was found by differences, and these rows of the Hessian.
    steps, bends : (n, n_phi) float64
        The last long steps, and the changes of the gradient along them.
    draws, fall : (n_member, n_phi), (n_member,) float64
        The members' hyperparameters, and nats below the optimum that the bound should be there.
    explained : (n, 4) float64
        See :func:`models.aggregate.hyperparameter_chain.explanations`.
    chain : (4, n_phi) float64
        See :attr:`models.aggregate.hyperparameter_chain.Chain.told`.
    nearer : int
        Draws that were brought nearer to the optimum, because the bound falls there by more than
        was promised.
    """

    stage: int = CLIMB
    inverse: np.ndarray = field(default_factory=lambda: _UNKNOWN)
    value: float = _UNKNOWN
    left: float = _UNKNOWN
    gained: float = _UNKNOWN
    grad: np.ndarray | None = None
    failed: int | None = None
    tries: int | None = None
    passes: int | None = None
    curved: int | None = None
    curved_at: float | None = None
    unknown: np.ndarray | None = None
    differences: np.ndarray | None = None
    steps: np.ndarray | None = None
    bends: np.ndarray | None = None
    draws: np.ndarray = field(default_factory=lambda: _UNKNOWN)
    fall: np.ndarray = field(default_factory=lambda: _UNKNOWN)
    explained: np.ndarray | None = None
    chain: np.ndarray | None = None
    nearer: int | None = None

    @classmethod
    def of(cls, state: State) -> Memory:
        """Read that of a state."""
        names = [each.name for each in fields(cls) if each.name in state.memory]
        held: dict[str, Any] = {name: state.memory[name] for name in names}
        return cls(**{name: v if v.ndim else v.item() for name, v in held.items()})

    def into(self, state: State) -> State:
        """Return a state with this memory."""
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        memory = {name: np.asarray(value) for name, value in held.items() if value is not None}
        return replace(state, memory=memory)

    def at(self, point: Point, inverse: np.ndarray, gained: float) -> Memory:
        """Return the memory at another point."""
        left = 0.5 * float(point.grad @ inverse @ point.grad) + point.left
        return replace(
            self, inverse=inverse, value=point.value, grad=point.grad, left=left, gained=gained,
            failed=0,
        )  # fmt: skip

    @property
    def stuck(self) -> bool:
        """Whether no step gained, from the diagonal either."""
        return (self.failed or 0) > 1


@dataclass
class Search:
    """What the stages of a fit share.

    Attributes
    ----------
    model : SurfaceModel
    sums : BagSums
    n_bag : int
    cap : int
        Pixels of a bag in the climb, where a stage on all of them follows; else 0.
    gathered : int
        Pixels of a bag that the driver has.
    few, whole : Profile
        Of the climb's pixels, and of all.
    n_member : int
    tolerance : float
    passes : int
        Over the bags, in this step.
    """

    model: SurfaceModel
    sums: BagSums
    n_bag: int
    cap: int
    gathered: int
    few: Profile[Any]
    whole: Profile[Any]
    n_member: int
    tolerance: float
    passes: int = 0

    @property
    def after_curvature(self) -> int:
        """The stage that follows a climb."""
        return WHOLE if self.cap else self.after_whole

    @property
    def after_whole(self) -> int:
        """The stage that follows the optimum."""
        return MEMBERS if self.n_member else DONE

    def point(
        self,
        profile: Profile[Any],
        state: State,
        tolerance: float,
        least: float = -np.inf,
        *,
        slopes: bool = True,
    ) -> Point:
        """Return the profile bound at a state's hyperparameters."""
        at = profile.at(state, tolerance, least, slopes=slopes)
        self.passes += at.passes
        return at

    def site_hessian(self, state: State, n_phi: int) -> np.ndarray:
        """Return the Hessian with the site held; a guess for the likelihood's own parameters."""
        hessian = -np.eye(n_phi) / START_INVERSE
        with contextlib.suppress(np.linalg.LinAlgError, NumericalError):  # at the edge of numbers
            found = self._told_by_sites(state)
            if np.isfinite(found).all():
                hessian[: found.shape[0], : found.shape[0]] = found
        return hessian

    def _told_by_sites(self, state: State) -> np.ndarray:
        """Return the Hessian of the mean and the kernel's parameters, which come first."""
        return SiteEvidence(self.model, state).hessian()

    def unknown(self, state: State, n_phi: int) -> list[int]:
        """Return the hyperparameters whose curvature the held site does not tell."""
        found = list(range(1 + state.params["theta"].size, n_phi))
        if not SiteEvidence(self.model, state).knows_mean:
            found.append(0)
        return found

    def known_hessian(self, state: State, memory: Memory, n_phi: int) -> np.ndarray:
        """Return the held site's Hessian, with the differences that the curvature stage took."""
        hessian = self.site_hessian(state, n_phi)
        if memory.unknown is not None and memory.differences is not None:
            for k, row in zip(memory.unknown, memory.differences, strict=True):
                hessian[k] = hessian[:, k] = row
        return np.asarray(0.5 * (hessian + hessian.T))
