"""Adam on a dictionary of arrays, and the schedule of its rate."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from models.core.protocol import Arrays

DECAY_MEAN, DECAY_SQUARE, EPSILON = 0.9, 0.999, 1e-8


def adam_step(
    params: Arrays, grad: Arrays, memory: Arrays, step: int, rate: float
) -> tuple[Arrays, Arrays]:
    """Take one step of Adam up the gradient (Kingma & Ba 2015, algorithm 1).

    Parameters
    ----------
    params : dict of arrays
    grad : dict of arrays
        Gradient of what is maximised; a parameter without an entry stays as it is.
    memory : dict of arrays
        ``mean.NAME`` and ``square.NAME``; empty at the start.
    step : int
        Steps made before this one.
    rate : float

    Returns
    -------
    params, memory : dict of arrays
        New dictionaries; the old ones are not changed.
    """
    new, moments = dict(params), dict(memory)
    for name, g in grad.items():
        mean = DECAY_MEAN * memory.get(f"mean.{name}", 0.0) + (1 - DECAY_MEAN) * g
        square = DECAY_SQUARE * memory.get(f"square.{name}", 0.0) + (1 - DECAY_SQUARE) * g * g
        moments[f"mean.{name}"], moments[f"square.{name}"] = mean, square
        spread = np.sqrt(square / (1 - DECAY_SQUARE ** (step + 1))) + EPSILON
        new[name] = params[name] + rate * mean / (1 - DECAY_MEAN ** (step + 1)) / spread
    return new, moments


@dataclass
class Plateau:
    """Lower the learning rate when the bound stops rising, and decide when to stop.

    The bound of an epoch is noisy, so the means of two successive windows of ``patience`` epochs
    are compared. The rate falls to a third each time they do not rise; when they do not rise after
    ``n_drop`` falls, the fit has converged.

    Attributes
    ----------
    tolerance : float
        Rise of the bound, nats per bag and epoch, that still counts as progress.
    bounds : list of float
        Bounds of the epochs, nats per bag.
    """

    tolerance: float
    patience: int = 4
    n_drop: int = 2
    factor: float = 1.0
    drops: int = 0
    since: int = 0
    bounds: list[float] = field(default_factory=list)

    def see(self, bound_per_bag: float) -> bool:
        """Take in the bound of an epoch, nats per bag; return whether the fit has converged."""
        self.bounds.append(bound_per_bag)
        self.since += 1
        window = self.patience
        if self.since < 2 * window:
            return False
        recent, before = self.bounds[-window:], self.bounds[-2 * window : -window]
        if np.mean(recent) - np.mean(before) > self.tolerance * window:
            return False
        if self.drops == self.n_drop:
            return True
        self.drops += 1
        self.factor /= 3.0
        self.since = 0
        return False
