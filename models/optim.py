"""Adam, on a dictionary of arrays (Kingma & Ba 2015), and the schedule of its rate."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass
class Adam:
    """First and second moments of the gradient; plain arrays, so that a checkpoint can hold them.

    Attributes
    ----------
    mean, square : dict of arrays
        Running means of the gradient and of its square, by parameter.
    count : int
        Steps taken.
    """

    mean: Arrays = field(default_factory=dict)
    square: Arrays = field(default_factory=dict)
    count: int = 0
    decay: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def ascend(self, params: Arrays, grad: Arrays, rate: float) -> Arrays:
        """Return the parameters one step up the gradient; frozen ones have no entry in ``grad``."""
        self.count += 1
        b1, b2 = self.decay
        new = dict(params)
        for name, g in grad.items():
            mean = self.mean.get(name, np.zeros_like(g))
            square = self.square.get(name, np.zeros_like(g))
            self.mean[name] = b1 * mean + (1 - b1) * g
            self.square[name] = b2 * square + (1 - b2) * g * g
            step = self.mean[name] / (1 - b1**self.count)
            step /= np.sqrt(self.square[name] / (1 - b2**self.count)) + self.epsilon
            new[name] = params[name] + rate * step
        return new


@dataclass
class Plateau:
    """Lower the learning rate when the bound stops rising, and say when to stop.

    The bound of an epoch is noisy, so the means of two successive windows of ``patience`` epochs
    are compared. The rate falls to a third each time; after ``n_drop`` falls, the fit has converged.

    Attributes
    ----------
    tolerance : float
        Rise of the bound, nats per bag and epoch, that still counts as progress.
    """

    tolerance: float
    patience: int = 10
    n_drop: int = 3
    factor: float = 1.0
    drops: int = 0
    since: int = 0
    bounds: list[float] = field(default_factory=list)

    def see(self, bound_per_bag: float) -> bool:
        """Take in the bound of an epoch, nats per bag; return whether the fit has converged."""
        self.bounds.append(bound_per_bag)
        self.since += 1
        w = self.patience
        if self.since < 2 * w:
            return False
        recent, before = np.mean(self.bounds[-w:]), np.mean(self.bounds[-2 * w : -w])
        if recent - before > self.tolerance * w:
            return False
        if self.drops == self.n_drop:
            return True
        self.drops += 1
        self.factor /= 3.0
        self.since = 0
        return False
