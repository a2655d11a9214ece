r"""Log probability of each bag's label given the other bags, without a further fit.

By importance weights of the posterior that all bags made (Gelfand et al. 1992),

    P(T_b | T_-b) = 1 / E_q[1 / P(T_b | f)],

which is exact where ``q`` is the posterior. It rewards settings that predict, not those that fit:
``E_q P(T_b | f)`` itself grows with every deviation that the prior allows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp

from models.core.errors import UnsupportedError
from models.likelihoods.probability import Probability, ProbabilityDraws, label_log_density


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
