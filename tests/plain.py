"""Models without what their defaults add: one kernel, no priors, no effect of areas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from models.training.parameters import parameter_names

PLAIN = {"kernel": "ard", "priors": "none", "area_effect": False}


def plain(model: type, **settings: Any) -> Any:
    """Make a model of ``PLAIN`` and ``settings``: for tests of one part alone."""
    known = parameter_names(model)
    return model(**{**{k: v for k, v in PLAIN.items() if k in known}, **settings})


def widened(state: Any) -> Any:
    """Return a start whose posterior has some width: a fit begins with hardly any."""
    root = np.diag(np.full(state.params["v_mean"].size, np.log(0.3)))
    return replace(state, params={**state.params, "root": root})
