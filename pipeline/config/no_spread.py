"""What is said of a map whose model has no posterior: its intervals have no width."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.config.schema import Config

NO_SPREAD = "the model has no uncertainty"


def spread_caution(config: Config) -> str:
    """Return what to beware of where the model has no uncertainty; empty where it has."""
    if config.model.has_spread:
        return ""
    quantity = config.response_kind.quantity
    return (
        f"{config.model.kind} has no uncertainty: the lower and the upper end of each {quantity} "
        "are its mean, standard deviations are 0, and probabilities to be above a threshold 0 or "
        "1. The map does not tell how far it may be from the truth"
    )


def without_spread(text: str, *, spread: bool) -> str:
    """Return the description of an end, deviation or probability: what it is worth, too."""
    return text if spread else f"{text} ({NO_SPREAD})"
