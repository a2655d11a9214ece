"""Estimators that recalibrate themselves, and choose settings, by fits within their fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from models.core.errors import BagsError, ParameterError
from models.core.protocol import override
from models.mil.data.calibration import Recalibration
from models.mil.data.inner_folds import Rounds, Settings
from models.training.estimator import Estimator

if TYPE_CHECKING:
    from models.core.block import BagBlock
    from models.likelihoods.prediction import Prediction
    from models.likelihoods.probability import Probability, ProbabilityDraws
from scipy.special import logsumexp

from models.core.errors import UnsupportedError
from models.likelihoods.probability import Probability, ProbabilityDraws, label_log_density


@dataclass(kw_only=True, eq=False, repr=False)
class InnerFits(Estimator):
    """Base of the models whose probabilities and settings inner folds may decide.

    Parameters
    ----------
    calibrate : {"auto", "cv", "none"}
        ``cv``: the probabilities of bags are recalibrated by an intercept and slopes by their logit
        and by the logarithm of their size, fitted to predictions of bags that were held out in five
        inner folds: six fits instead of one. Probabilities of instances stay the model's own: no
        label tells of them. ``auto`` is ``cv`` where ``needs_calibration``.
    tune : bool
        Choose among the settings of :meth:`tuning_settings` by the log probability of bags that
        are held out in five inner folds. The constructor's arguments stay as they are.

    Attributes
    ----------
    needs_calibration : bool
        Whether probabilities of new bags are much better recalibrated, as measured.
    weighs : bool
        Whether settings at "auto" are chosen by :meth:`left_out_log_probability`, one fit a
        candidate, and not by inner folds, five.
    recalibration_ : Recalibration
        Intercept and slopes; 0, 1 and 0 where nothing is recalibrated, or where a label has a
        single bag, which leaves nothing to fit them to.
    selection_ : list of dict
        Of settings that were chosen: ``settings``, ``log_score`` (of held-out bags, nats), the
        standard ``error`` of its difference to the best and whether it was ``chosen``, one row a
        candidate; empty where nothing was chosen.
    """

    weighs: ClassVar[bool] = False
    needs_calibration: ClassVar[bool] = False

    calibrate: Literal["auto", "cv", "none"] = "auto"
    tune: bool = False
    selection_: list[dict[str, Any]] = field(init=False)

    # -- what a model defines ------------------------------------------------------------------

    def fit_once(self, bags: BagBlock, *, n_thread: int | None = None, **how: Any) -> Self:
        """Fit with the settings as they are, without inner folds and recalibration."""
        return Estimator.fit(self, bags, n_thread=n_thread, **how)

    def bag_distribution(
        self, bags: BagBlock, **how: Any
    ) -> Probability | Prediction | ProbabilityDraws:
        """Return the model's own distribution of each bag's probability, not recalibrated."""
        raise NotImplementedError

    def tuning_settings(self, mean_size: float) -> Sequence[Settings]:
        """Return the settings that ``tune`` chooses from, in place of the model's own.

        Parameters
        ----------
        mean_size : float
            Instances of a training bag on average.
        """
        del mean_size
        return ()

    def automatic_settings(self, mean_size: float) -> Rounds:
        """Return the candidates for settings at "auto", in rounds; none by default.

        Each round changes some settings of the best of the rounds before; its first candidate has
        the values to begin with.

        Parameters
        ----------
        mean_size : float
            Instances of a training bag on average.
        """
        del mean_size
        return ()

    def left_out_log_probability(self, bags: BagBlock) -> np.ndarray:
        """Return the log probability of each training bag's label given the others: (n_bag,)."""
        return left_out_log_probability(bags.y, self.bag_distribution(bags))

    # -- what all of them do -------------------------------------------------------------------

    @override
    def check_params(self) -> None:
        super().check_params()
        other = self._not_labels
        if other and (self.calibrate == "cv" or self.tune):
            name = "tune" if self.tune else "calibrate"
            what = f"is for labels of 0 and 1, and {other} is {getattr(self, other)!r}"
            msg = f"{name}: {what}; leave it out"
            raise ParameterError(msg)

    @property
    def recalibrates(self) -> bool:
        """Whether a fit recalibrates the probabilities of bags."""
        if self.calibrate == "auto":
            return self.needs_calibration and not self._not_labels
        return self.calibrate == "cv"

    def predict_bags(
        self, bags: BagBlock, **how: Any
    ) -> Probability | Prediction | ProbabilityDraws:
        """Return the distribution of the probability that each bag is positive.

        Parameters
        ----------
        bags : Bags
        **how
            What a model alone takes, see its ``bag_distribution``.

        Raises
        ------
        BagsError
            If it is given anything else, which :meth:`predict_proba` may take.
        """
        if not hasattr(bags, "offsets"):
            msg = f"predict_bags takes Bags, not {type(bags).__name__}; use predict_proba for it"
            raise BagsError(msg)
        own = self.bag_distribution(bags, **how)
        found: Probability | Prediction | ProbabilityDraws
        found = self.recalibration_.apply(own, np.diff(bags.offsets))
        return found

    def like(self, **changed: Any) -> Self:
        """Return an unfitted model of the same parameters but some."""
        return type(self)(**{**self.get_params(), **changed})

    def take(self, other: Self) -> None:
        """Take over what another model of this class has learnt."""
        self.state_, self.params_ = other.state_, other.params_
        self.history_, self.converged_ = other.history_, other.converged_

    def set_recalibration(self, by: Recalibration) -> None:
        """Apply a recalibration to the probabilities of bags from now on."""
        fixed = {**self.state_.fixed, "recalibration": by.array}
        self.state_ = replace(self.state_, fixed=fixed)

    @property
    def recalibration_(self) -> Recalibration:
        """What ``predict_bags`` is recalibrated by."""
        found = self.fitted_state().fixed.get("recalibration")
        return Recalibration() if found is None else Recalibration.of_array(found)

    @override
    def saved_beside(self) -> dict[str, Any]:
        return {**super().saved_beside(), "selection": getattr(self, "selection_", [])}

    @override
    def restore_beside(self, said: dict[str, Any]) -> None:
        super().restore_beside(said)
        self.selection_ = said.get("selection", [])

    @property
    def _not_labels(self) -> str:
        """Return the parameter by which ``y`` is no label of 0 and 1; empty where it is one."""
        named = self.unlabelled.items()
        return next((name for name, values in named if getattr(self, name) in values), "")


def left_out_log_probability(y: np.ndarray, predicted: Any) -> np.ndarray:
    """Return the log probability of each label given the other bags: (n_bag,), nats.

    Parameters
    ----------
    y : (n_bag,)
        Labels of the bags, 0 or 1, that the model was fitted to.
    predicted : ProbabilityDraws or Probability
        The model's own distribution of their probabilities.
    """
    if isinstance(predicted, ProbabilityDraws):
        log_p = label_log_density(np.asarray(y)[None, :], predicted.draws)
        return np.asarray(np.log(log_p.shape[0]) - logsumexp(-log_p, axis=0))
    if isinstance(predicted, Probability) and predicted.link == "logistic":
        # 1 / sigma(t f) = 1 + e^(-t f), and e^(-t f) is log-normal.
        sign = 2.0 * np.asarray(y) - 1.0
        return np.asarray(-np.logaddexp(0.0, -sign * predicted.m + 0.5 * predicted.s))
    msg = f"{type(predicted).__name__} has no draws of a posterior; choose settings with tune=True"
    raise UnsupportedError(msg)
