r"""Counts by area and period: sparse variational Gaussian process of space and time.

    y_at ~ p(. | sum_i p_it Psi(f(x_it, t))),     f(x, t) = mean + sum_j h_j(x, t),

each ``h_j`` with a kernel of one period times a Markov correlation in time, and inducing variables
of its own (METHODS section 9). At any one period that is :class:`models.aggregate.vbagg.VBAgg`
with the same kernel: its blocks, estimators, likelihoods, priors and stages of the fit serve as
they are. What ties the periods together is the driver's (:mod:`models.temporal.state_space`).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np

from models.aggregate.posterior import Gaussian, Mixture, unpack
from models.aggregate.vbagg import NARROW_ROOT, VBAgg
from models.backend.arrays import like, namespace, spread, to_host
from models.core.block import BagBlock
from models.core.errors import BagsError, ParameterError
from models.core.protocol import Arrays, BagSums, Model, State, Stats, Summary, Sweep, override
from models.gp import sparse_gp
from models.gp.kernel_terms import split_terms, term_kernel
from models.gp.kernel_text import parse_kernel
from models.gp.kernels import Kernel
from models.gp.priors import level_unit
from models.gp.scaling import named_kernel, scaled_inputs
from models.likelihoods.mixture import MixturePrediction
from models.likelihoods.prediction import BagPrediction, Prediction
from models.likelihoods.registry import LIKELIHOODS
from models.temporal.near import near_inputs, stats_near
from models.temporal.path_prior import Group, PathPrior
from models.temporal.periods import Period, PeriodSource, PeriodSummary
from models.temporal.placing import Points, climb_pixels, constant_values, place_terms
from models.temporal.posterior import PathPosterior, PeriodDraws, path_posterior
from models.temporal.prior_paths import groups_by_time
from models.temporal.search import TemporalRefinement
from models.temporal.sites import Site, Split, packed
from models.temporal.smoother import path_prior
from models.temporal.time_text import (
    SpaceTimeText,
    auto_text,
    check_space_time,
    parse_space_time,
)
from models.temporal.update import updated
from models.training.executor import BlockSource
from models.training.parameters import Count, Positive


@dataclass(kw_only=True, eq=False, repr=False)
class SpaceTime(VBAgg):
    """Sparse variational GP of rates in space and time, for responses known by area and period.

    Parameters are those of :class:`models.aggregate.vbagg.VBAgg` and:

    Parameters
    ----------
    kernel : str
        See :mod:`models.temporal.time_text`, which says what ``auto`` is.
    n_inducing : int or "auto"
        Inducing variables of the terms of two and more dimensions that hold still, together; 160.
        Those of space are averages of areas, :func:`models.temporal.placing.place_terms`.
    n_moving, n_season : int
        Those of each such term that drifts, and of each that has a season.
    season_length : float or None
        Time that a season takes, in the unit of the periods' times: 12 months. Without it ``auto``
        has no season.
    harmonics : int
        Of a season.

    Attributes
    ----------
    posterior_ : PathPosterior
        See :mod:`models.temporal.posterior`.
    """

    takes_sources = False
    kind = "space_time"
    about = "the same in space and time: of a configuration with `time`"
    source = "Law et al. 2018; Hamelijnck et al. 2021"
    sweep: ClassVar[Sweep] = "full"
    averages: ClassVar[bool] = False

    #: Makes the model of one time; :mod:`models.temporal.at_period` sets it.
    one_period: ClassVar[Callable[[SpaceTime, float, PeriodDraws | None], VBAgg]]

    n_inducing: Count | Literal["auto"] = "auto"
    n_moving: Count = 64
    n_season: Count = 25
    season_length: Positive | None = 12.0
    harmonics: Count = 2

    @property
    @override
    def link_name(self) -> str:
        links = LIKELIHOODS[self.likelihood].links
        return ("exp" if "exp" in links else links[0]) if self.link == "auto" else self.link

    @property
    @override
    def numbers_areas(self) -> bool:
        return self.text(self.fitted_state().fixed).has_area

    @property
    @override
    def n_points(self) -> int:
        return 160 if self.n_inducing == "auto" else self.n_inducing

    @override
    def check_params(self) -> None:
        if self.posterior_steps != "natural" or self.estimator_name == "monte_carlo":
            msg = (
                f"posterior_steps: {self.posterior_steps!r}, estimator: {self.estimator!r}: "
                "several periods are fitted by natural steps; use natural, and auto"
            )
            raise ParameterError(msg)
        super().check_params()

    @override
    def check_kernel(self) -> None:
        if self.kernel != "auto":
            check_space_time(self.kernel)

    # -- the kernel ------------------------------------------------------------------------------

    def text(self, fixed: Arrays) -> SpaceTimeText:
        """Return the parts of the kernel's description."""
        given = self.kernel
        if given == "auto":
            given = auto_text(
                # A fit of before had no function of several covariates, as with one alone.
                int(fixed["n_feat"][0]) if "n_feat" in fixed else 1,
                placed="coord_scale" in fixed,
                season=self.season_length is not None,
            )
        if given not in self._texts:
            self._texts[given] = parse_space_time(given, self.season_length, self.harmonics)
        return self._texts[given]

    @cached_property
    def _texts(self) -> dict[str, SpaceTimeText]:
        return {}

    @override
    def _kernel(self, fixed: Arrays) -> Kernel:
        return term_kernel(self._whole(fixed), fixed)

    def _whole(self, fixed: Arrays) -> Kernel:
        """Return the kernel of one period, without inducing variables."""
        text = self.text(fixed)
        return self._parsed(text.period, fixed, int(fixed["n_area"][0]) if text.has_area else 0)

    def _parsed(self, text: str, fixed: Arrays, n_area: int) -> Kernel:
        """Return a kernel of one period from its description."""
        n_axis = fixed["coord_mean"].size if "coord_scale" in fixed else 0
        n_feat = fixed["x_mean"].size - self.text(fixed).has_area
        return parse_kernel(text, n_feat, has_coords=n_axis > 0, n_axis=n_axis, n_area=n_area)

    def split_times(self, fixed: Arrays) -> np.ndarray:
        """Return the number of the time of each of the kernel's split terms."""
        text = self.text(fixed)
        found = []
        for term, number in zip(text.terms, text.time_of, strict=True):
            found += [number] * len(list(split_terms(self._parsed(term, fixed, n_area=1))))
        return np.array(found)

    def state_space(self, state: State, times: np.ndarray | None = None) -> PathPrior:
        """Return the prior over the periods of a fit, or over other times."""
        fixed, groups = state.fixed, self.groups(state)
        split, times = Split.of(fixed), fixed["times"] if times is None else times
        return path_prior(groups, times, split)

    def groups(self, state: State) -> list[Group]:
        """Return the inducing values of a state by their kernel in time."""
        text = self.text(state.fixed)
        theta = text.split(state.params["time"])
        return groups_by_time(state.fixed["value_time"], text.times, theta)

    def time_slopes(self, state: State, by_time: Sequence[np.ndarray]) -> np.ndarray:
        """Return the slopes of ``log Z`` by ``time``: (n_time,)."""
        n = len(self.text(state.fixed).times)
        return np.concatenate([np.zeros(0), *by_time[len(by_time) - n :]])

    @override
    def log_prior(self, state: State) -> tuple[float, Arrays]:
        value, grad = super().log_prior(state)
        weak = self.priors == "weak"
        text, step = self.text(state.fixed), float(state.fixed["step"][0])
        slopes = [np.zeros(0)]
        for each, own in zip(text.times, text.split(state.params["time"]), strict=True):
            value += float(each.log_prior(own, step)) if weak else 0.0
            slopes.append(each.log_prior_slope(own, step) if weak else np.zeros(own.size))
        return value, {**grad, "time": np.concatenate(slopes)}

    def constant_values(self, fixed: Arrays) -> np.ndarray:
        """Return the inducing values of the function 1, had by one term alone: (n_value,).

        A term that holds still, where there is one; zeros where all are linear.
        """
        return constant_values(self._whole(fixed), fixed)

    @property
    def longest_step(self) -> float:
        """Most that an inducing value moves in a natural step, in deviations of the prior."""
        quadratic = self.resolved_likelihood.quadratic
        return np.inf if quadratic else sparse_gp.LONGEST_STEP

    # -- the contract with the training loop -----------------------------------------------------

    @override
    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """Inducing points by k-means++ of each term, rates at their mean."""
        if not isinstance(sample, PeriodSummary):
            msg = "the source has no periods; give PeriodSource(periods), or use VBAgg"
            raise BagsError(msg)
        self.check_params()
        self.forget_kernels()
        fixed, level, own = self.starting_scale(sample)
        base = float(fixed["base_rate"][0])
        fixed |= level_unit(self.resolved_likelihood, sample, base, weak=self.priors == "weak")
        steps = np.diff(sample.times)
        fixed |= {
            "times": sample.times,
            "block_period": sample.block_period,
            "n_area": np.array([sample.n_area]),
            "n_feat": np.array([sample.x.shape[1]]),
            "step": np.array([np.median(steps) if steps.size else 1.0]),
            "climb_pixels": np.array([climb_pixels(sample)]),
        }
        x = sample.x
        if self.text(fixed).has_area:  # a column of its own, of the numbers as they are
            assert sample.bag is not None
            x = np.column_stack([x, sample.bag % sample.n_area])
            fixed["x_mean"] = np.append(fixed["x_mean"], 0.0)
            fixed["x_sd"] = np.append(fixed["x_sd"], 1.0)
        z = scaled_inputs(fixed, x, sample.coords, np.float64)
        text, times = self.text(fixed), self.split_times(fixed)
        points = Points(self.n_points, self.n_moving, self.n_season)
        whole = self._whole(fixed)
        w, terms = place_terms(whole, times, text.times, sample, z, points, rng)
        fixed |= terms
        split, n_period = Split.of(fixed), sample.times.size
        narrow = Site.narrow(split, NARROW_ROOT, np.zeros(split.n_value))
        with_data = set(sample.block_period.tolist())
        sites = [narrow if t in with_data else Site.none(split) for t in range(n_period)]
        step = float(fixed["step"][0])
        params = {
            "mean": np.array([self.resolved_link.start(level)]),
            "theta": whole.start(self.resolved_link.start_variance),
            "time": np.concatenate([np.zeros(0), *(each.start(step) for each in text.times)]),
            "w": w,
            **packed(sites),
            **{name: np.array([value]) for name, value in own.items()},
        }
        return State(params, fixed, rate=self.learning_rate)

    @property
    @override
    def phi_names(self) -> tuple[str, ...]:
        return ("mean", "theta", "time", *self.resolved_likelihood.parameters)

    def shared_params(self, state: State) -> Arrays:
        """Return what the blocks of all periods need alike."""
        params = state.params
        names = ("theta", "w", "mean", *self.resolved_likelihood.parameters)
        return {**state.fixed, **{name: params[name] for name in names}}

    @override
    def block_params(self, state: State) -> Arrays:
        """Return what the blocks of all periods need alike: their own is the fit's."""
        return self.shared_params(state)

    @override
    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        return stats_near(super().block_stats, params, self.with_area(params, block), local)

    @override
    def near(self, params: Arrays, z: np.ndarray) -> Arrays:
        return near_inputs(params, z)

    def with_area(self, params: Arrays, block: BagBlock) -> BagBlock:
        """Return a block whose inputs hold the number of the area, where the kernel has them."""
        if not self.text(params).has_area:
            return block
        n_feat = params["x_mean"].size
        if block.x.shape[1] == n_feat:  # brought from a worker, which had added it
            return block
        xp = namespace(block.x)
        if block.area is not None:
            area = like(block.area, block.x)
        else:
            number = to_host(block.bag) % int(params["n_area"][0])
            area = spread(like(number, block.x), block.offsets)
        x = xp.concatenate([block.x, area[:, None].astype(block.x.dtype)], axis=1)
        return replace(block, x=x)

    @override
    def refinement(self, state: State, n_bag: int, sums: BagSums) -> TemporalRefinement:
        return TemporalRefinement(self, sums, state, n_bag)

    # -- the posterior ---------------------------------------------------------------------------

    @override
    def prediction_params(self, state: State) -> Arrays:
        return path_posterior(self, state).pack()

    @override
    def unpacked(self, params: Arrays) -> PathPosterior | Gaussian | Mixture:  # type: ignore[override]
        """Return the posterior of packed arrays: ``params_``, or those of one period."""
        if "alpha" in params:
            return unpack(self, params)
        return PathPosterior.unpacked(self, params)

    @property
    @override
    def posterior_(self) -> PathPosterior:  # type: ignore[override]
        """The posterior of all periods; kept, with what it has smoothed."""
        state = self.fitted_state()
        held: tuple[State, PathPosterior] | None = getattr(self, "_held_posterior", None)
        if held is None or held[0] is not state:
            held = (state, path_posterior(self, state))
            self._held_posterior = held
        return held[1]

    # -- what users call -------------------------------------------------------------------------

    @override
    def fit(  # type: ignore[override]
        self,
        periods: Sequence[Period] | BlockSource,
        *,
        n_thread: int | None = None,
        device: Literal["auto", "cpu", "gpu"] = "cpu",
    ) -> Self:
        """Fit to periods in memory, or to a source whose summary is a :class:`PeriodSummary`.

        Parameters
        ----------
        periods : sequence of Period, or BlockSource
        n_thread : int, optional
            Threads over the blocks of a period; all cores where not given. It does not change the
            result.
        device : {"cpu", "gpu", "auto"}
            What computes the blocks.
        """
        from models.training.device import block_executor, find_device
        from models.training.loop import start_training, train

        source: Any = PeriodSource(periods) if isinstance(periods, Sequence) else periods
        threads, fitted = n_thread or os.cpu_count() or 1, cast(Model, self)
        training = start_training(fitted, source, **self.loop_params("start"))
        with block_executor(fitted, source, threads, find_device(device)) as executor:
            train(fitted, source, executor, training, **self.loop_params("train"))
        return self.adopt(training)

    def with_periods(
        self,
        *periods: Period,
        n_thread: int | None = None,
        device: Literal["auto", "cpu", "gpu"] = "cpu",
    ) -> Self:
        """Return a model that knows some periods more, or better: see :mod:`update`.

        Hyperparameters stay as they are, their draws get other weights. This model stays as it is.

        Parameters
        ----------
        periods : Period
            By rising time; one whose time is known takes the place of what was known of it.
        n_thread, device
            As of :meth:`fit`.
        """
        found = updated(self, self.fitted_state(), periods, n_thread=n_thread, device=device)
        model = type(self)(**self.get_params())
        model.state_ = found.state
        model.params_ = model.prediction_params(found.state)
        row = {"evidence": float(found.evidence[0]), "passes": float(found.passes)}
        model.history_ = [*self.history_, {**self.history_[-1], **row}]
        model.converged_ = self.converged_
        return model

    def at(self, time: float, drawn: PeriodDraws | None = None) -> VBAgg:
        """Return the model of one time; see :class:`models.temporal.at_period.PeriodModel`."""
        # Its class is made of this one, and puts itself here when it is imported.
        importlib.import_module("models.temporal.at_period")
        return type(self).one_period(self, time, drawn)

    @override
    def predict_pixels(
        self,
        x: np.ndarray,
        coords: np.ndarray | None = None,
        period: float | None = None,
        area: np.ndarray | None = None,
    ) -> Prediction | MixturePrediction:
        """Predict the rate of each pixel at one time, per unit of weight.

        Parameters
        ----------
        x : (n_pix, n_feat)
            Covariates as measured, of that period.
        coords : (n_pix, n_axis), km
        period : float, optional
            A time, of the data or any other: later ones are forecasts; the last of the data where
            not given.
        area : (n_pix,) int64, optional
            Number of each pixel's area; -1 for none, whose effect is then unknown.
        """
        posterior = self.posterior_
        at = posterior.at(posterior.times[-1] if period is None else period)
        return at.moments(self.inputs(x, area), coords)

    def inputs(self, x: np.ndarray, area: np.ndarray | None = None) -> np.ndarray:
        """Return covariates with the number of the area, where the kernel has effects of areas."""
        fixed = self.fitted_state().fixed
        if not self.text(fixed).has_area:
            return np.asarray(x)
        area = np.full(x.shape[0], -1) if area is None else np.asarray(area)
        most = int(fixed["n_area"][0])
        if area.shape != (x.shape[0],) or area.max(initial=-1) >= most:
            msg = (
                f"area has shape {area.shape} and numbers up to {area.max(initial=-1)}; give one "
                f"for each of {x.shape[0]} pixels, below {most}, or -1"
            )
            raise BagsError(msg)
        return np.column_stack([x, area])

    @override
    def sample_functions(  # type: ignore[override]
        self,
        n_draws: int,
        rng: np.random.Generator,
        periods: Sequence[float] | None = None,
        moving: Sequence[int] | None = None,
    ) -> PeriodDraws:
        """Draw rates in space and time: whole functions at each of the periods, jointly.

        Parameters
        ----------
        n_draws : int
        rng : numpy Generator
        periods : sequence of float, optional
            Times, forecasts among them; those of the data where not given.
        moving : sequence of int, optional
            Columns of the covariates that differ by period; all if not given. Others cost once
            where the same pixels are evaluated period after period.
        """
        return self.posterior_.draws(n_draws, rng, periods, moving)

    @override
    def predict_bags(  # type: ignore[override]
        self,
        bags: BagBlock,
        *,
        period: float | None = None,
        area: np.ndarray | None = None,
        n_draws: int = 500,
        rng: np.random.Generator | None = None,
        draws: PeriodDraws | None = None,
        observed: bool = False,
    ) -> BagPrediction:
        """Return joint draws of the expected response of each bag of one period.

        Parameters
        ----------
        bags : BagBlock
        period : float, optional
            Its time; the last of the data where not given.
        area : (n_bag,) int64, optional
            Number of each bag's area; the bags' own numbers where not given.
        n_draws, rng, draws, observed
            As of :meth:`models.aggregate.aggregate_model.AggregateModel.predict_bags`; ``draws``
            are those of :meth:`sample_functions`, so that periods can be added up and compared.
        """
        period = float(self.posterior_.times[-1]) if period is None else period
        if draws is None:
            rng = rng or np.random.default_rng(self.seed)
            draws = self.sample_functions(n_draws, rng, [period])
        given = replace(Period(period, bags, area).numbered(0, 1 << 40), bag=bags.bag)
        if self.text(self.fitted_state().fixed).has_area:
            own = np.repeat(bags.bag if area is None else area, np.diff(bags.offsets))
            given = replace(given, x=self.inputs(given.x, own))
        return super().predict_bags(given, draws=draws.at(period), observed=observed)

    @override
    def named_hyperparameters(self) -> dict[str, float]:
        return self.posterior_.hyperparameters()

    def named(self, fixed: Arrays, params: Arrays) -> dict[str, float]:
        """Return the kernel's parameters by name: of space in km, of time as times are given."""
        space = named_kernel(self._whole(fixed), params["theta"], fixed)
        names = self.text(fixed).time_names
        return {**space, **dict(zip(names, np.exp(params["time"]).tolist(), strict=True))}
