r"""The posterior of all periods as a value; at a period it is a posterior like any other.

``at(time)`` returns the :class:`models.aggregate.posterior.Gaussian` or ``Mixture`` of one period:
what predicts, draws, averages and weighs does not know that there are others. A time without data,
after the last period or between two, is a period without a site: a forecast is a prediction step.

Functions drawn at several periods hang together: by Matheron's rule (:mod:`models.gp.draws`) with
random features whose coefficients carry a path of the term's kernel in time each, and joint draws
of ``u_1 ... u_T``. So sums and differences of periods are joint draws as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from models.aggregate.aggregate_model import learnt_parameters
from models.aggregate.posterior import PREFIX, WEIGHT, Gaussian, Mixture
from models.aggregate.rate_draws import (
    CountedDraws,
    PooledDraws,
    SurfaceDraws,
    allocate,
    count_over_times,
)
from models.backend.arrays import solve_lower
from models.core.block import BagBlock
from models.core.errors import ParameterError
from models.core.protocol import Arrays, State, override
from models.gp.draws import N_FEATURE, Surface, feature_share, grouped
from models.gp.kernel_terms import TermKernel
from models.gp.linear_part import Coefficient
from models.gp.random_features import Features
from models.likelihoods.mixture import MixturePrediction
from models.likelihoods.observation import likelihood_params
from models.likelihoods.prediction import Prediction
from models.temporal.area_draws import OwnEffects
from models.temporal.basis import Basis
from models.temporal.joint_functions import Columns, FunctionsInTime, JointTerms
from models.temporal.joint_moments import JointMoments
from models.temporal.kept_moments import KeptMoments, Moments
from models.temporal.near import ConditionNear, near
from models.temporal.path_prior import PathPrior
from models.temporal.prior_paths import draw_paths
from models.temporal.sites import Site, Split, unpacked
from models.temporal.temporal_model import TemporalModel
from models.temporal.time_text import STILL


@dataclass(frozen=True)
class Path:
    """The posterior of all periods under one set of hyperparameters.

    Attributes
    ----------
    model : TemporalModel
    arrays : dict of arrays
        Constants and parameters of a state.
    """

    model: TemporalModel
    arrays: Arrays
    _kept: KeptMoments = field(default_factory=KeptMoments, repr=False, compare=False)
    _means: dict[float, np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    @property
    def times(self) -> np.ndarray:
        """Times of the periods of the data: (n_period,)."""
        return self.arrays["times"]

    @property
    def state(self) -> State:
        """The arrays as a state."""
        return State(self.arrays, self.arrays)

    @cached_property
    def basis(self) -> Basis:
        """Of the whitened inducing values."""
        return Basis.of(self.model, self.arrays, self.arrays)

    @property
    def split(self) -> Split:
        """Which of the values are of one area each."""
        return Split.of(self.arrays)

    def over(self, times: Sequence[float]) -> tuple[PathPrior, list[Site]]:
        """Return the prior at the periods of the data and at others, and their sites."""
        sites = dict(zip(self.times.tolist(), unpacked(self.arrays, self.split), strict=True))
        every = np.array(sorted({*sites, *map(float, times)}))
        none = Site.none(self.split)
        space = self.model.state_space(self.state, every)
        return space, [sites.get(time, none) for time in every.tolist()]

    def moments_of_values(self, times: Sequence[float]) -> list[Moments]:
        """Return mean and covariance of the whitened values at some times."""
        wanted = [float(time) for time in times]
        held = [self._kept.get(self, time) for time in wanted]
        known = [each for each in held if each is not None]
        if len(known) == len(held):
            return known
        space, sites = self.over(wanted)
        found = space.smooth(sites)
        every = space.times.tolist()
        each = dict(zip(every, zip(found.mean, found.cov, strict=True), strict=True))
        self._means.update({time: mean for time, (mean, _) in each.items()})
        asked = {time: each.pop(time) for time in wanted}
        self._kept.put(self, asked, each)
        return [asked[time] for time in wanted]

    def means_of_values(self, times: Sequence[float]) -> list[np.ndarray]:
        """Return the means alone, which are kept of all times."""
        wanted = [float(time) for time in times]
        if any(time not in self._means for time in wanted):
            self.moments_of_values(wanted)
        return [self._means[time] for time in wanted]

    def at(self, time: float) -> AtTime:
        """Return the posterior at one time."""
        return AtTime(self.model, self.params_at(time), self, time)

    def params_at(self, time: float) -> Arrays:
        """Return the block parameters of one time."""
        ((mean, cov),) = self.moments_of_values([time])
        shared = self.model.shared_params(self.state)
        return {**shared, **self.basis.block_arrays(mean, cov), "v_mean": mean}

    def values(self, n_draws: int, rng: np.random.Generator, times: Sequence[float]) -> np.ndarray:
        """Draw the whitened values at several times, jointly: (n_time, n_value, n_draws)."""
        space, sites = self.over(times)
        rows = np.searchsorted(space.times, np.asarray(times, dtype=np.float64))
        return space.draws(sites, n_draws, rng)[rows]

    def draws(
        self,
        v: np.ndarray,
        rng: np.random.Generator,
        times: Sequence[float],
        n_feature: int,
        moving: Sequence[int] | None = None,
    ) -> list[SurfaceDraws]:
        """Draw rates at several times, jointly, with drawn :meth:`values`: those of each time."""
        model, arrays, basis, split = self.model, self.arrays, self.basis, self.split
        wanted, n_draws = np.asarray(times, dtype=np.float64), v.shape[2]
        means = self.means_of_values(times)
        few = basis.few  # with the effect of one area: the others are alike
        kernel, theta, w = basis.kernel, few["theta"], few["w"]
        features = kernel.features(theta, n_feature, rng)
        share = np.ones((features.n_feature, n_draws))
        group = grouped(features, share)
        sizes = [each.n_feature for each in features.parts]
        weights = self._feature_paths(sizes, wanted, rng, n_draws)
        prior = self.model.state_space(self.state, wanted)
        nugget = basis.jitter_sd * prior.prior_draws(n_draws, rng)
        of_values, effects = kernel.inducing_features(features, w), None
        of_terms: list[Features | None] = list(features.parts)
        if split.n_own:
            effects = OwnEffects.of(features, basis.own_sd)
            of_terms = effects.others(features)
            features = replace(features, parts=tuple(each for each in of_terms if each))
            of_values = np.delete(of_values, split.first, 0)[:, effects.shared]
            nothing = near(arrays, np.zeros(0, np.int64))
            kernel, w = model._kernel(nothing), nothing["w"]
        assert isinstance(kernel, TermKernel)
        terms = JointTerms(kernel, theta, w, of_terms, self.term_times, self.moving_columns(moving))
        mean, scale = float(arrays["mean"][0]), float(arrays["base_rate"][0])
        surface = Surface(kernel, theta, w, mean, model.link_name, scale)
        likelihood = model.resolved_likelihood
        own = likelihood_params(likelihood, arrays)
        shared = self.model.shared_params(self.state)
        found: list[SurfaceDraws] = []
        every = zip(wanted.tolist(), means, v, weights, nugget, strict=True)
        for time, mean_v, u_white, weight, noise in every:
            weight = weight * share
            (u_shared, u_own), (noise, own_noise) = split.parts(u_white), split.parts(noise)
            at_shared = weight if effects is None else weight[effects.shared]
            off = u_shared - solve_lower(basis.lower, of_values @ at_shared + noise)
            coefficients = solve_lower(basis.lower, off, transposed=True)
            mean_v = mean_v[:, None]
            away = basis.alpha(u_white - mean_v)
            about, own_about = split.parts(np.hstack([basis.alpha(mean_v), away]))
            functions = FunctionsInTime(
                surface, features, at_shared, coefficients, group, np.float64, about, terms
            )
            if effects is not None:
                table = effects.table(weight, u_own, own_noise)
                functions = replace(
                    functions,
                    table=table,
                    about_table=effects.sd**2 * np.vstack([own_about, np.zeros((1, 1 + n_draws))]),
                    column=effects.column,
                )
            if not found:
                terms.take(Columns(at_shared, np.hstack([coefficients, about])))
            condition = ConditionNear(model, partial(self.params_at, time), away)
            found.append(SurfaceDraws(functions, shared, likelihood, own, condition))
        return found

    def moving_columns(self, columns: Sequence[int] | None) -> frozenset[int]:
        """Return the columns of the inputs that differ by period: all covariates if not told."""
        if columns is not None:
            return frozenset(columns)
        has_area = self.model.text(self.arrays).has_area
        return frozenset(range(self.arrays["x_mean"].size - has_area))

    @cached_property
    def term_times(self) -> list[int]:
        """Number of the time of each term."""
        firsts = np.cumsum([0, *self.arrays["term_values"].tolist()])[:-1]
        return [int(self.arrays["value_time"][first]) for first in firsts]

    def _feature_paths(
        self, sizes: list[int], times: np.ndarray, rng: np.random.Generator, n_draws: int
    ) -> np.ndarray:
        """Draw the coefficients of the features: (n_time, n_feature, n_draws)."""
        text = self.model.text(self.arrays)
        theta = text.split(self.arrays["time"])
        paths = []
        for number, size in zip(self.term_times, sizes, strict=True):
            if number == STILL:
                still = rng.standard_normal((size, n_draws))
                paths.append(np.broadcast_to(still, (times.size, size, n_draws)))
            else:
                kernel, shape = text.times[number], (size, n_draws)
                paths.append(draw_paths(kernel, theta[number], times, shape, rng))
        return np.concatenate(paths, axis=1)

    def hyperparameters(self) -> dict[str, float]:
        """Return the hyperparameters by name."""
        own = learnt_parameters(self.model.resolved_likelihood, self.arrays)
        return {**own, **self.model.named(self.arrays, self.arrays)}


@dataclass(frozen=True)
class AtTime(Gaussian):
    """The posterior of a path at one time.

    Attributes
    ----------
    path : Path
    time : float
    """

    path: Path
    time: float

    @override
    def draws(
        self, n_draws: int, rng: np.random.Generator, n_feature: int = N_FEATURE
    ) -> SurfaceDraws:
        v = self.path.values(n_draws, rng, [self.time])
        return self.path.draws(v, rng, [self.time], n_feature)[0]


@dataclass(frozen=True)
class PathPosterior:
    """The posterior of all periods, over draws of the hyperparameters where there are any.

    Attributes
    ----------
    mode : Path
        That at the optimum.
    parts : tuple of Path
        Under each draw; the mode where there is none.
    weight : (n_part,) float64
    members : dict of arrays
        What differs between the draws, a row each; none where there is no draw.
    """

    mode: Path
    parts: tuple[Path, ...]
    weight: np.ndarray
    members: Arrays = field(default_factory=dict)

    @property
    def times(self) -> np.ndarray:
        """Times of the periods of the data: (n_period,)."""
        return self.mode.times

    def prepare(self, times: Sequence[float]) -> None:
        """Smooth for several times that are not of the data, at the cost of one of them."""
        for part in {id(each): each for each in (self.mode, *self.parts)}.values():
            part.moments_of_values([_checked(time) for time in times])

    def at(self, time: float) -> Gaussian | Mixture:
        """Return the posterior at one time: of the data, between them, or a forecast."""
        time = _checked(time)
        if self.parts[0] is self.mode:  # no draws of the hyperparameters
            return self.mode.at(time)
        parts = tuple(part.at(time) for part in self.parts)
        return Mixture(self.mode.at(time), parts, self.weight)

    def moments(
        self, x: np.ndarray, coords: np.ndarray | None, time: float | None = None
    ) -> Prediction | MixturePrediction:
        """Return the distribution of the rate at pixels at one time; the last where not given."""
        return self.at(self.times[-1] if time is None else time).moments(x, coords)

    def draws(
        self,
        n_draws: int,
        rng: np.random.Generator,
        times: Sequence[float] | None = None,
        moving: Sequence[int] | None = None,
    ) -> PeriodDraws:
        """Draw rates at several times, jointly; at the periods of the data where not given.

        ``moving`` are the columns of the covariates that differ by period, all if not given:
        where the same pixels are evaluated period after period, the others are evaluated once.
        """
        return next(self.draws_in_parts([n_draws], rng, times, moving))

    def draws_in_parts(
        self,
        counts: Sequence[int],
        rng: np.random.Generator,
        times: Sequence[float] | None = None,
        moving: Sequence[int] | None = None,
    ) -> Iterator[PeriodDraws]:
        """Draw as :meth:`draws`, in parts of so many: the filter runs once for all of them.

        A part has few draws of the hyperparameters, the next part others: each costs random
        features of its own, at every pixel of every time.
        """
        wanted = [_checked(time) for time in (self.times if times is None else times)]
        if sorted(set(wanted)) != wanted:
            msg = f"periods: {wanted} do not rise; give each time once, in order"
            raise ParameterError(msg)
        alone = self.parts[0] is self.mode
        n_draws = sum(counts)
        chosen = np.zeros(n_draws, np.int64) if alone else allocate(self.weight, n_draws, rng)
        if len(counts) > 1:  # by the member, members in random order
            chosen = chosen[np.argsort(rng.permutation(len(self.parts))[chosen], kind="stable")]
        members = np.split(chosen, np.cumsum(counts)[:-1])
        total = np.bincount(chosen, minlength=len(self.parts))
        values: dict[int, np.ndarray] = {}
        used = np.zeros_like(total)
        for member in members:
            parts = []
            for k, count in zip(*np.unique(member, return_counts=True), strict=True):
                if k not in values:
                    values[k] = self.parts[k].values(int(total[k]), rng, wanted)
                v = values[k][:, :, used[k] : used[k] + count]
                used[k] += count
                n_feature = feature_share(count / n_draws)
                parts.append(self.parts[k].draws(v, rng, wanted, n_feature, moving))
            if alone:
                yield PeriodDraws(tuple(wanted), tuple(parts[0]))
                continue
            each = tuple(PooledDraws.of(own, member) for own in zip(*parts, strict=True))
            yield PeriodDraws(tuple(wanted), each)

    def joint_moments(
        self, times: Sequence[float], moving: Sequence[int] | None = None
    ) -> JointMoments:
        """Return who tells the distribution of pixels at several times; see :meth:`draws`."""
        wanted = [_checked(time) for time in times]
        return JointMoments(self.parts, self.weight, wanted, moving)

    def coefficients(self) -> list[Coefficient]:
        """Return the slopes of the kernel's linear part in the last period; maybe none."""
        return self.at(self.times[-1]).coefficients()

    def hyperparameters(self) -> dict[str, float]:
        """Return the hyperparameters at the optimum, by name."""
        return self.mode.hyperparameters()

    def pack(self) -> Arrays:
        """Return the arrays that :meth:`unpacked` makes it of."""
        own = {PREFIX + name: each for name, each in self.members.items()}
        weight = {PREFIX + WEIGHT: np.asarray(self.weight, dtype=np.float64)} if own else {}
        return {**self.mode.arrays, **own, **weight}

    @classmethod
    def unpacked(cls, model: TemporalModel, arrays: Arrays) -> PathPosterior:
        """Return the posterior that was packed."""
        shared = {name: each for name, each in arrays.items() if not name.startswith(PREFIX)}
        own = {
            name.removeprefix(PREFIX): each
            for name, each in arrays.items()
            if name.startswith(PREFIX)
        }
        return _mixed(model, shared, own)


@dataclass(frozen=True)
class PeriodDraws:
    """Rates drawn at several periods: draw ``k`` of one belongs to draw ``k`` of another.

    Attributes
    ----------
    times : tuple of float
    each : tuple of SurfaceDraws or PooledDraws
        Those of each time, which products read as draws of one surface.
    """

    times: tuple[float, ...]
    each: tuple[SurfaceDraws | PooledDraws, ...]

    @property
    def n_draws(self) -> int:
        """Number of draws."""
        return self.each[0].n_draws

    def at(self, time: float) -> SurfaceDraws | PooledDraws:
        """Return the draws of one time."""
        if float(time) not in self.times:
            msg = f"period: {time} was not drawn; draw it together with {list(self.times)}"
            raise ParameterError(msg)
        return self.each[self.times.index(float(time))]

    def among(
        self, times: Sequence[float], parts: Sequence[tuple[int, int]] | None = None
    ) -> PeriodDraws:
        """Return the draws of some of the times, whose memory ends with them.

        Parameters
        ----------
        times : sequence of float
        parts : sequence of (int, int), optional
            Of each time, the first draw and the step to the next; all draws where not given.
        """
        parts = [(0, 1)] * len(times) if parts is None else parts
        each = [self.at(t).afresh() for t in times]
        return PeriodDraws(
            tuple(map(float, times)),
            tuple(
                own if step == 1 else own.share(first, step)
                for own, (first, step) in zip(each, parts, strict=True)
            ),
        )

    def rate(self, x: np.ndarray, coords: np.ndarray | None = None, *, period: float) -> np.ndarray:
        """Evaluate the rates of one time, per unit of weight: (n_draws, n_pix)."""
        return self.at(period).rate(x, coords)

    def bag_counts(self, bags: BagBlock, *, period: float) -> np.ndarray:
        """Aggregate the rates of one time over each bag: (n_draws, n_bag)."""
        return self.at(period).bag_counts(bags)

    def counted(self, blocks: Sequence[BagBlock]) -> list[CountedDraws]:
        """Aggregate the rates of every time over a block of that time, pixel after pixel."""
        return count_over_times(self.each, blocks)


def path_posterior(model: TemporalModel, state: State) -> PathPosterior:
    """Return the posterior of a learnt state."""
    return _mixed(model, {**state.fixed, **state.params}, state.members)


def _mixed(model: TemporalModel, shared: Arrays, own: Arrays) -> PathPosterior:
    kept = KeptMoments()
    mode = Path(model, shared, kept)
    if not own:
        return PathPosterior(mode, (mode,), np.ones(1))
    named = {name: each for name, each in own.items() if name != WEIGHT}
    parts = tuple(
        Path(model, {**shared, **{name: each[k] for name, each in named.items()}}, kept)
        for k in range(own[WEIGHT].size)
    )
    return PathPosterior(mode, parts, own[WEIGHT], named)


def _checked(time: float) -> float:
    time = float(time)
    if not np.isfinite(time):
        msg = f"period: {time} is no time; give a number, in the unit of the data's periods"
        raise ParameterError(msg)
    return time
