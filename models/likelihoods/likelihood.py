r"""The interface of a likelihood: its properties, its log density and its draws.

The aggregate of a bag is ``eta_a = sum_i p_i Psi(f_i)``. A likelihood computes
``h(eta) = log p(y | eta)`` and its derivatives by ``eta`` and by the logarithms of its own
parameters. Estimators of the expectation of ``h`` under a posterior of ``f`` are in
:mod:`models.aggregate.moment_matching` (any likelihood), :mod:`models.aggregate.bounds` (some) and
:mod:`models.gp.pathwise` (draws; any likelihood). Counts need not be whole numbers (reported counts
are often adjusted), hence ``gammaln`` for factorials.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from models.backend.arrays import namespace
from models.core.block import BagBlock
from models.core.errors import BagsError, NumericalError
from models.core.protocol import Summary
from models.likelihoods.constant import LikelihoodRate, OneRate

TINY = 1e-100
NO_CASE = 0.5  # what a fit starts at where nobody has a case: no rate would have no logarithm

# A parameter's logarithm: a number, or one a draw, (n_draws, 1), that broadcasts against ``eta``.
Value = float | np.ndarray
Params = Mapping[str, Value]

# Which lower bound of ``E h`` a likelihood has, see :mod:`models.aggregate.bounds`.
BoundForm = Literal["none", "logarithmic", "harmonic"]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a likelihood: something positive, of which the fit learns the logarithm.

    Attributes
    ----------
    start : float
        Logarithm that the fit starts at.
    excess_power : float or None
        The parameter to this power is a deviation that may vanish: of a factor on the mean, or of
        noise. The weak priors shrink it to 0. None: no prior, and no limit.
    in_units : bool
        Whether start and prior are in units that the responses set (:meth:`Likelihood.units`).
    spread : float or None
        Deviation of a normal prior of the logarithm around its unit; None: no such prior.
    source : str
        Source of responses that it belongs to, where these are not the areas.
    tells : str
        What it says to a reader, a sentence: ``{value}`` is the parameter, ``{factor}`` that by
        which responses vary, ``exp`` of the deviation.
    """

    start: float
    excess_power: float | None = None
    in_units: bool = False
    spread: float | None = None
    source: str = ""
    tells: str = ""

    @property
    def of_areas(self) -> bool:
        """Whether it is noise between areas, or of their responses."""
        return self.excess_power is not None and not self.source


@dataclass(frozen=True)
class Terms:
    """``h`` and its derivatives, all of the shape of ``eta``.

    Attributes
    ----------
    value, d1, d2, d3
        ``h`` and its derivatives by ``eta``; the last two are None at order 1.
    by, by_d2 : dict of arrays
        Derivative of ``h``, and of its second derivative, by each parameter (a logarithm).
    by_d1 : dict of arrays
        The same of its first derivative, of laws that a source beside areas may have.
    """

    value: Any
    d1: Any
    d2: Any = None
    d3: Any = None
    by: dict[str, Any] = field(default_factory=dict)
    by_d2: dict[str, Any] = field(default_factory=dict)
    by_d1: dict[str, Any] = field(default_factory=dict)


class Likelihood(ABC):
    """Distribution of a bag's response given its aggregate.

    A subclass defines :meth:`terms` and :meth:`draw`, and changes those of the attributes that
    differ from these defaults, which are those of counts. If real responses vary by more than its
    own law allows, it overrides :meth:`constant` with a wider one.

    Attributes
    ----------
    name : str
        Value of ``likelihood=...`` and ``model.likelihood``.
    about : str
        What a response is, in a few words.
    links : tuple of str
        Links that make sense under it, the default first.
    parameters : dict of Parameter
        By name, ``log_...``.
    responses : (low, high)
        Closed range of a response.
    aggregates : (low, high)
        Open range of the aggregate.
    counts : bool
        Whether a response is a number of cases; false where it is a value of the bag.
    averages : bool
        Whether the aggregate is the weighted mean over the bag, not the weighted sum.
    needs_trials : bool
        Whether ``y`` counts the positives among a number tested, which must be given. The
        configuration calls the column ``counts.tested``.
    takes_area_effect : bool
        Whether bags can differ by more than its own law says (:meth:`with_area_effect`).
    area_effect_by_default : bool
        Whether ``area_effect: auto`` gives it one.
    bound_form : {"none", "logarithmic", "harmonic"}
        The closed lower bound that ``estimator="bound"`` uses.
    quadratic : bool
        Whether ``h`` is quadratic in ``eta``: a natural step is then exact, however long.
    """

    name: ClassVar[str]
    about: ClassVar[str] = ""
    links: ClassVar[tuple[str, ...]]
    parameters: Mapping[str, Parameter] = {}
    responses: ClassVar[tuple[float, float]] = (0.0, np.inf)
    aggregates: ClassVar[tuple[float, float]] = (0.0, np.inf)
    counts: ClassVar[bool] = True
    averages: ClassVar[bool] = False
    needs_trials: ClassVar[bool] = False
    takes_area_effect: ClassVar[bool] = True
    area_effect_by_default: ClassVar[bool] = False
    bound_form: ClassVar[BoundForm] = "none"
    quadratic: ClassVar[bool] = False

    def __str__(self) -> str:
        """Return its name."""
        return self.name

    def describe_as(self, base: Likelihood) -> None:
        """Take on what another says of its responses, aggregates and links."""
        for name in ("links", "aggregates", "responses", "counts", "averages", "needs_trials"):
            setattr(self, name, getattr(base, name))

    @property
    def positive(self) -> bool:
        """Whether the aggregate is above 0."""
        return self.aggregates[0] == 0.0

    @property
    def named_parameters(self) -> dict[str, Parameter]:
        """The parameters by the names that users read: without the logarithm."""
        return {name.removeprefix("log_"): each for name, each in self.parameters.items()}

    @abstractmethod
    def terms(
        self, y: np.ndarray, eta: np.ndarray, params: Params, bag_data: Any, order: int = 1
    ) -> Terms:
        """Evaluate ``h``.

        Parameters
        ----------
        y : (n_bag,)
        eta : (..., n_bag), inside :attr:`aggregates`
        params : dict of float, or of arrays that broadcast against ``eta``
            Logarithms of the parameters; (n_draws, 1) where each draw has its own.
        bag_data : (..., n_bag)
            What :meth:`bag_data` returned for these bags.
        order : {1, 3}
            Highest derivative by ``eta`` wanted.
        """

    @abstractmethod
    def draw(
        self, eta: np.ndarray, params: Params, bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw a response for each ``eta`` (n_draws, n_bag); ``params`` as in :meth:`terms`."""

    def with_area_effect(self) -> Likelihood | None:
        """Return the law with an effect of each bag of its own kind.

        None where that is a log-normal factor of the mean (:mod:`models.likelihoods.area_effect`).
        """
        return None

    def without_factor(self, params: Params) -> tuple[Likelihood, float]:
        """Return the law given the bag's factor, and the variance of that factor's logarithm."""
        del params
        return self, 0.0

    def factor_variance(self, params: Params, bag_data: Any) -> Any:
        """Return the variance of the logarithm of each bag's factor: a number, or (n_bag,)."""
        del bag_data
        return self.without_factor(params)[1]

    def factor_deviation(self, sd: Any, mean: Any) -> Any:
        """Return the deviation of the factor on a bag's mean that its noise stands for.

        Parameters
        ----------
        sd : number or array
            Of the noise, as :attr:`Parameter.excess_power` has it.
        mean : number or array
            The aggregate.
        """
        del mean
        return sd

    def log_scale(self, params: Params, bag_data: Any) -> Any:
        """Return the logarithm of what multiplies each bag's aggregate: (n_bag,), or None."""
        del params, bag_data

    def displaced(self, bag_data: Any) -> Any:
        """Return which bags are of one pixel of theirs, unknown which: (n_bag,) bool, or None."""
        del bag_data

    def by_factor(self, slope: Any, bag_data: Any) -> dict[str, Any]:
        """Name slopes (..., n_bag) by the logarithm of the deviation of each bag's factor."""
        del slope, bag_data
        return {}

    def told(self, y: Any, params: Params, bag_data: Any) -> Any:
        """Return about which aggregate each response tells of by itself, above 0."""
        del params, bag_data
        return namespace(y).maximum(y, 0.5)

    def units(self, sample: Summary) -> dict[str, float]:
        """Return the units of the parameters that are ``in_units``, logarithms."""
        del sample
        return {}

    def bag_data(self, weight: Any, offsets: Any, trials: Any, squares: Any = None) -> Any:
        """Return the data of each bag that :meth:`terms` needs besides ``eta``: (..., n_bag).

        ``squares`` (n_bag,) are the summed squares of the weights of all pixels, where ``weight``
        are those of some.
        """
        del trials, squares
        return namespace(weight).ones(offsets.shape[0] - 1)

    def data_of(self, block: BagBlock) -> Any:
        """Return :meth:`bag_data` of the bags of a block."""
        return self.bag_data(block.weight, block.offsets, block.trials, block.squares)

    def starting_scale(self, sample: Summary) -> tuple[float, float, dict[str, float]]:
        """Return the base rate, the level of ``Psi(f)`` in its units, and the parameters.

        Raises
        ------
        BagsError
            If a response is impossible, or no value is above 0.
        """
        self.check_responses(sample)
        total_y, total_weight = float(sample.y.sum()), float(sample.weight.sum())
        if total_y <= 0:
            if not self.counts:
                msg = (
                    f"every training bag is 0, and values of the {self} likelihood are above 0; "
                    "correct them, or use another likelihood"
                )
                raise BagsError(msg)
            total_y = NO_CASE
        return total_y / total_weight, 1.0, self.start(sample)

    def cases_at_one(self, sample: Summary, base: float) -> float | None:
        """Return the cases of all bags together where ``Psi(f)`` is 1 everywhere.

        None where responses are no counts.
        """
        return base * float(sample.weight.sum()) if self.counts else None

    def constant(self, y: np.ndarray, exposure: np.ndarray, bag_data: Any) -> OneRate:
        """Fit one rate to all bags: what a map must beat.

        By default the responses follow the likelihood itself, at one rate. A subclass whose real
        responses vary by more than that returns a wider law; else a flat map with the right spread
        would beat the constant (``docs/design/yardsticks.md``).

        Parameters
        ----------
        y, exposure : (n_bag,) arrays
            Responses, and the weights of the bags, or the numbers tested.
        bag_data : (..., n_bag) array
            What :meth:`bag_data` returned for these bags.
        """
        return LikelihoodRate.fit(self, y, exposure, bag_data)

    def start(self, sample: Summary | None = None) -> dict[str, float]:
        """Return the parameters at their start: in their units, where a sample is given."""
        units = {} if sample is None else self.units(sample)
        return {
            name: units.get(name, 0.0) + parameter.start
            for name, parameter in self.parameters.items()
        }

    def check_responses(self, sample: Summary) -> None:
        """Raise BagsError if the bags have no weight, or one has an impossible response."""
        low, high = self.responses
        wrong = ~((sample.y >= low) & (sample.y <= high))
        found = None
        if not float(sample.weight.sum()) > 0:
            found = "the training bags have no weight; check the population"
        elif wrong.any():
            bag = int(np.argmax(wrong))
            most = "" if np.isinf(high) else f" and at most {high:g}"
            found = (
                f"y of training bag {bag} is {sample.y[bag]:g}, and a response of the {self} "
                f"likelihood is at least {low:g}{most}; correct it, or use another likelihood"
            )
        elif self.needs_trials and sample.trials is None:
            found = f"the {self} likelihood needs the number tested in each bag; give trials"
        if found:
            raise BagsError(found)

    def inside(self, eta: np.ndarray, gap: float = 0.0) -> Any:
        """Bring aggregates off the ends of their range: by ``TINY`` below and ``gap`` above."""
        if not self.positive:
            return eta
        high = self.aggregates[1]
        return namespace(eta).clip(eta, TINY, None if np.isinf(high) else high - gap)

    def check_mean(self, y: np.ndarray, mean: Any) -> None:
        """Raise NumericalError where a mean is not finite, or is 0 under a response above 0."""
        xp = namespace(mean)
        if not self.positive:
            return
        if not bool(xp.isfinite(mean).all()) or bool(((y > 0) & (mean <= 0)).any()):
            msg = (
                "the bound is not finite: the fit diverged, or a bag with cases has no weight; "
                "lower the learning rate, or check the population"
            )
            raise NumericalError(msg)


def exponential(value: Value, beside: Any) -> Any:
    """Return ``e^value``: a float of a number, else an array where ``beside`` lives."""
    if np.ndim(value) == 0:
        return float(np.exp(value))
    xp = namespace(beside)
    return xp.exp(xp.asarray(value))


def log_and_ratio(y: np.ndarray, eta: np.ndarray) -> tuple[Any, Any]:
    """Return ``log eta`` and ``y / eta``; both 0 where ``y`` is, which allows ``eta = 0``."""
    xp = namespace(eta)
    counted = xp.broadcast_to(y > 0, eta.shape)
    safe = xp.where(counted, eta, 1.0)
    return xp.log(safe), xp.where(counted, y / safe, 0.0)
