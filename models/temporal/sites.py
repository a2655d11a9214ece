r"""What the data of one period say of its inducing values: one Gaussian site a period.

The values ``v_t`` are of two kinds. Those of an effect of each area, ``e``, are as many as there
are areas, and a pixel has one of them alone; all others, ``s``, are shared by all areas. So of any
symmetric matrix that a pixel reads or adds to, covariance or precision, one part is missing: that
between the effects of two areas. What is left has the shape of an arrow,

    [ shared   cross ]
    [ cross'    own  ],      own diagonal,

and a site is ``exp(lambda'v - |B s|^2 / 2 - sum_a d_a (e_a + c_a's)^2 / 2)``: its precision is an
arrow as well. Where some bags are unions of areas (:mod:`models.core.unions`), or the kernel has
no such effect, all values are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from models.backend.blas import on_all_cores
from models.core.protocol import Arrays, State

LINEAR, ROOT, LOAD, OWN, LEVEL = SITE = (
    "site_linear",
    "site_root",
    "site_load",
    "site_own",
    "site_level",
)
# Precision of a site that counts as none, where the prior's is 1. ``q`` without it loses a quarter
# of its square, nats; the filter's work goes by the rank of what is left.
LEAST = 1e-4
STEEP = 2.0  # a load is long if it is so many times the usual one


@dataclass(frozen=True)
class Split:
    """Which inducing values are effects of one area each.

    Attributes
    ----------
    n_value : int
    first, stop : int
        They stand together.
    """

    n_value: int
    first: int = 0
    stop: int = 0

    @classmethod
    def of(cls, fixed: Mapping[str, np.ndarray]) -> Split:
        """Return that of a fit's constants."""
        first, stop = fixed["own"].tolist() if "own" in fixed else (0, 0)
        return cls(fixed["value_time"].size, first, stop)

    @property
    def own(self) -> slice:
        """Places of the effects."""
        return slice(self.first, self.stop)

    @property
    def n_own(self) -> int:
        """Number of effects of areas."""
        return self.stop - self.first

    @cached_property
    def shared(self) -> np.ndarray:
        """Places of all other values: (n_shared,) int64."""
        return np.delete(np.arange(self.n_value), self.own)

    def parts(self, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the shared and the own values of (n_value, ...)."""
        return v[self.shared], v[self.own]

    def join(self, shared: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Put :meth:`parts` together again."""
        return np.concatenate([shared[: self.first], own, shared[self.first :]])


@dataclass(frozen=True)
class Arrow:
    """A symmetric matrix over values, without what stands between the effects of two areas.

    Attributes
    ----------
    shared : (n_shared, n_shared) float64
    cross : (n_shared, n_own) float64
    own : (n_own,) float64
        The diagonal.
    """

    shared: np.ndarray
    cross: np.ndarray
    own: np.ndarray

    @classmethod
    def of(cls, dense: np.ndarray, split: Split, place: np.ndarray | None = None) -> Arrow:
        """Return that of a whole matrix (n_value, n_value), and ``place`` of each value in it."""
        place = np.arange(split.n_value) if place is None else place
        shared, own = split.parts(place)
        return cls(dense[np.ix_(shared, shared)], dense[np.ix_(shared, own)], np.diag(dense)[own])

    @classmethod
    def named(cls, arrays: Arrays, name: str) -> Arrow:
        """Return that of arrays ``name``, ``name_cross`` and ``name_own``; the first may be all."""
        shared = arrays[name]
        none = np.zeros((shared.shape[0], 0)), np.zeros(0)
        cross, own = (arrays.get(f"{name}_{of}", no) for of, no in zip(PARTS, none, strict=True))
        return cls(shared, cross, own)

    @classmethod
    def explained(cls, params: Arrays, cov: Arrow) -> Arrow:
        """Return what a posterior explains of the prior: ``q`` of block parameters.

        They have its shared part. The rest is told by ``cov``, their covariance of some areas: the
        prior has nothing between shared values and own ones, and ``own_prior`` for each of these.
        """
        return cls(params["q"], -cov.cross, params["own_prior"][0] - cov.own)

    def near(self, areas: np.ndarray) -> Arrow:
        """Return the matrix over the shared values and those of some areas."""
        return Arrow(self.shared, self.cross[:, areas], self.own[areas])

    def as_named(self, name: str) -> Arrays:
        """Return the arrays of :meth:`named`."""
        if not self.own.size:
            return {name: self.shared}
        parts = zip(PARTS, (self.cross, self.own), strict=True)
        return {name: self.shared, **{f"{name}_{of}": part for of, part in parts}}

    def __add__(self, other: Arrow) -> Arrow:
        return Arrow(self.shared + other.shared, self.cross + other.cross, self.own + other.own)

    def __sub__(self, other: Arrow) -> Arrow:
        return self + -1.0 * other

    def __rmul__(self, factor: float) -> Arrow:
        return Arrow(factor * self.shared, factor * self.cross, factor * self.own)

    def diagonal(self, split: Split) -> np.ndarray:
        """Return the diagonal: (n_value,)."""
        return split.join(np.diag(self.shared), self.own)

    def dot(self, other: Arrow) -> float:
        """Return the trace of the product; one of both has nothing between areas."""
        own = float(self.own @ other.own) + 2.0 * float(np.vdot(self.cross, other.cross))
        return float(np.vdot(self.shared, other.shared)) + own

    def product(self, other: Arrow) -> tuple[np.ndarray, float]:
        """Return the shared part of the product, and the trace of the own part of it."""
        shared = self.shared @ other.shared + self.cross @ other.cross.T
        return shared, float(np.vdot(self.cross, other.cross)) + float(self.own @ other.own)


PARTS = ("cross", "own")


@dataclass(frozen=True)
class Site:
    """What the data of one period say of ``v_t``.

    Attributes
    ----------
    linear : (n_value,) float64
        ``lambda``.
    root : (rank, n_shared) float64
        ``B``.
    load : (n_shared, n_own) float64
        ``c``, a column an area.
    own : (n_own,) float64
        ``d``.
    split : Split
    level : float
        ``E_q log p(y_t | f_t) - E_q log site_t``, nats: the logarithm of the factor by which the
        likelihood is above the site. ``log Z`` is without it. Not a number where nobody told it:
        models of before had none.
    """

    linear: np.ndarray
    root: np.ndarray
    load: np.ndarray
    own: np.ndarray
    split: Split
    level: float = np.nan

    @classmethod
    def none(cls, split: Split) -> Site:
        """Return that of a period without data."""
        root, load = np.zeros((0, split.shared.size)), np.zeros((split.shared.size, split.n_own))
        return cls(np.zeros(split.n_value), root, load, np.zeros(split.n_own), split, 0.0)

    @classmethod
    def narrow(cls, split: Split, width: float, mean: np.ndarray) -> Site:
        """Return that of values known to so many deviations of the prior."""
        root = np.eye(split.shared.size) / width
        load, own = np.zeros((split.shared.size, split.n_own)), np.full(split.n_own, width**-2.0)
        return cls(mean / width**2, root, load, own, split)

    @property
    def empty(self) -> bool:
        """Whether it says nothing of any spread."""
        return not self.root.size and not self.own.any()

    @property
    def precision(self) -> Arrow:
        """The precision."""
        cross = self.load * self.own
        return Arrow(self.root.T @ self.root + cross @ self.load.T, cross, self.own)

    def times(self, v: np.ndarray) -> np.ndarray:
        """Return the precision times (n_value, ...) values."""
        shared, own = self.split.parts(v)
        pulled = (self.own * (own + self.load.T @ shared).T).T
        return self.split.join(self.root.T @ (self.root @ shared) + self.load @ pulled, pulled)

    def pull(self, mean: np.ndarray) -> np.ndarray:
        """Return ``lambda - Lambda m``: the slope of the logarithm of the site."""
        return self.linear - self.times(mean)

    def expected(self, mean: np.ndarray, cov: Arrow) -> float:
        """Return the expected logarithm of the site under ``N(mean, cov)``, nats."""
        square = float(mean @ self.times(mean)) + self.precision.dot(cov)
        return float(self.linear @ mean) - 0.5 * square

    def whole_root(self) -> np.ndarray:
        """Return a root of the precision over all values: (rank, n_value)."""
        used = np.flatnonzero(self.own)
        half = np.sqrt(self.own[used])
        below = np.zeros((used.size, self.split.n_value))
        below[:, self.split.shared] = (self.load[:, used] * half).T
        below[np.arange(used.size), self.split.first + used] = half
        above = np.zeros((self.root.shape[0], self.split.n_value))
        above[:, self.split.shared] = self.root
        return np.concatenate([above, below])


def signed_roots(precision: Arrow, split: Split) -> tuple[Site, Site]:
    """Return two sites without a linear part whose precisions differ by a given one.

    The first is what a site of this precision may be, no wider than nothing; the second is 0 where
    the precision is not negative along any direction. Else an area whose ``cross`` is long for
    its ``own`` has parts of both signs: they are taken apart at a load that other areas have.

    Parameters
    ----------
    precision : Arrow
    split : Split
    """
    own, cross = precision.own, precision.cross
    length = np.linalg.norm(cross, axis=0)
    usual = STEEP * length.sum() / max(np.abs(own).sum(), np.finfo(float).tiny)
    parts = _apart(own, cross, length, np.inf)
    residual = precision.shared - parts[0].shared + parts[1].shared
    value, vector = _eigen(residual)
    if value.size and value[0] < -LEAST and (length > usual * np.abs(own)).any():
        parts = _apart(own, cross, length, usual)
        value, vector = _eigen(precision.shared - parts[0].shared + parts[1].shared)
    found = []
    for sign, part in zip((1.0, -1.0), parts, strict=True):
        used = sign * value > LEAST
        root = np.ascontiguousarray((vector[:, used] * np.sqrt(sign * value[used])).T)
        load = np.divide(part.cross, part.own, out=np.zeros_like(cross), where=part.own > 0)
        found.append(Site(np.zeros(split.n_value), root, load, part.own, split))
    return found[0], found[1]


def _eigen(residual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues and vectors of the symmetric part; none where all are too small.

    Where an area is one pixel its effect has all of it, and nothing is left.
    """
    found = 0.5 * (residual + residual.T)
    if np.linalg.norm(found) <= LEAST:
        return np.zeros(0), np.zeros((found.shape[0], 0))
    return np.linalg.eigh(found)


def _apart(
    own: np.ndarray, cross: np.ndarray, length: np.ndarray, most: float
) -> tuple[Arrow, Arrow]:
    """Return two precisions of rank one an area whose own parts, and cross, differ by the given.

    Parameters
    ----------
    own, cross, length
        Of the precision; the lengths of the columns of ``cross``.
    most : float
        Length of a load, at most.
    """
    reach = np.maximum(np.abs(own), length / most)
    found = []
    for sign in (1.0, -1.0):
        part = 0.5 * (reach + sign * own)
        part = np.where(part > LEAST, part, 0.0)
        share = np.divide(part, reach, out=np.zeros_like(part), where=reach > 0)
        across = sign * share * cross
        loaded = np.divide(across, part, out=np.zeros_like(across), where=part > 0)
        found.append(Arrow(across @ loaded.T, across, part))
    return found[0], found[1]


def beside(site: Site, share: float, other: Site) -> Site:
    """Return the sum of a site and of a share of another's precision."""
    other_own = share * other.own
    own = site.own + other_own
    weight = np.divide(site.own, own, out=np.zeros_like(own), where=own > 0)
    load = weight * site.load + (1.0 - weight) * other.load
    both = np.flatnonzero((site.own > 0) & (other_own > 0))
    apart = np.sqrt(weight * other_own)[both] * (site.load - other.load)[:, both]
    root = np.concatenate([site.root, np.sqrt(share) * other.root, apart.T])
    return replace(site, root=root, load=np.where(own > 0, load, 0.0), own=own)


def packed(sites: Sequence[Site], most: int = 0) -> Arrays:
    """Return sites as arrays: roots are filled up by zeros to the largest rank, or to ``most``."""
    most = max(most, *(site.root.shape[0] for site in sites))
    root = np.zeros((len(sites), most, sites[0].root.shape[1]))
    for t, site in enumerate(sites):
        root[t, : site.root.shape[0]] = site.root
    level = np.array([site.level for site in sites])
    found = {LINEAR: np.stack([site.linear for site in sites]), ROOT: root, LEVEL: level}
    if sites[0].own.size:
        found |= {name: np.stack([getattr(site, of) for site in sites]) for name, of in AREAS}
    return found


AREAS = ((LOAD, "load"), (OWN, "own"))


def unpacked(params: Mapping[str, np.ndarray], split: Split) -> list[Site]:
    """Return the sites of a state; of their roots the rows that are not 0."""
    found, none = [], Site.none(split)
    for t, (linear, root) in enumerate(zip(params[LINEAR], params[ROOT], strict=True)):
        used = int(np.flatnonzero(root.any(axis=1)).max(initial=-1)) + 1
        load, own = (params[name][t] if name in params else getattr(none, of) for name, of in AREAS)
        site = Site(linear, root[:used], load, own, split)
        nothing = site.empty and not linear.any()
        level = float(params[LEVEL][t]) if LEVEL in params else 0.0 if nothing else np.nan
        found.append(replace(site, level=level))
    return found


def together(state: State) -> State:
    """Return a state whose values are all shared: where bags are unions, areas meet in them."""
    split = Split.of(state.fixed)
    if not split.n_own:
        return state
    whole = Split(split.n_value)

    def joined(params: Arrays) -> Arrays:
        sites = []
        for site in unpacked(params, split):
            root = site.whole_root()
            none = Site.none(whole)
            sites.append(replace(none, linear=site.linear, root=root, level=site.level))
        return packed(sites)

    fixed = {name: each for name, each in state.fixed.items() if name != "own"}
    params = {name: each for name, each in state.params.items() if name not in SITE}
    members = {name: each for name, each in state.members.items() if name not in SITE}
    if members:
        n = state.members[LINEAR].shape[0]
        parts = [
            joined({name: state.members[name][k] for name in SITE if name in state.members})
            for k in range(n)
        ]
        most = max(part[ROOT].shape[1] for part in parts)
        members |= {name: np.stack([part[name] for part in parts]) for name in (LINEAR, LEVEL)}
        members[ROOT] = np.stack([filled(part[ROOT][None], most)[0] for part in parts])
    params |= joined(state.params)
    return replace(state, fixed=fixed, params=params, members=members)


def filled(roots: np.ndarray, most: int) -> np.ndarray:
    """Fill up roots (n, n_period, rank, n_value) by zeros to a rank."""
    return np.pad(roots, [(0, 0), (0, 0), (0, most - roots.shape[2]), (0, 0)])


def carried(
    sites: Sequence[Site], turn: np.ndarray, ratio: float, raised: np.ndarray
) -> list[Site]:
    """Return sites as functions of other values, of which the old ones are a linear function.

    Parameters
    ----------
    sites : sequence of Site
    turn : (n_shared, n_shared) float64
        From the new shared values to the old ones.
    ratio : float
        Of the old own values to the new ones.
    raised : (n_value,) float64
        Added to the old values.
    """

    def one(site: Site) -> Site:
        shift = site.times(raised)
        shared, own = site.split.parts(site.linear - shift)
        return Site(
            site.split.join(turn.T @ shared, ratio * own),
            site.root @ turn,
            turn.T @ site.load / ratio,
            site.own * ratio**2,
            site.split,
            site.level + float(raised @ (site.linear - 0.5 * shift)),
        )

    return on_all_cores(one, sites)


def symmetric(a: np.ndarray) -> np.ndarray:
    """Return the symmetric part."""
    return np.asarray(0.5 * (a + a.T))
