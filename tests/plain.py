"""Models without what their defaults add: one kernel, no priors, no effect of areas."""

from __future__ import annotations

from typing import Any

from models.training.parameters import parameter_names

PLAIN = {"kernel": "ard", "priors": "none", "area_effect": False}


def plain(model: type, **settings: Any) -> Any:
    """Make a model of ``PLAIN`` and ``settings``: for tests of one part alone."""
    known = parameter_names(model)
    return model(**{**{k: v for k, v in PLAIN.items() if k in known}, **settings})
