"""The training loop of all models, for any source of blocks and any executor.

It lives beside the models, not in ``pipeline``, so that ``model.fit(bags)`` in a notebook and
``disagg run`` on a cluster are the same loop (docs/design/training.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from models.backend.blas import one_blas_thread
from models.core.protocol import Model, Refinement, State
from models.training.executor import BlockSource, Executor, Local
from models.training.few_pixels import WholeSums
from models.training.optim import Plateau
from models.training.schedule import plan_epoch


@dataclass
class Training:
    """A fit, finished or not: all that a checkpoint must hold.

    Attributes
    ----------
    state : State
    plateau : Plateau
        Schedule of the learning rate.
    epoch : int
        Epochs finished.
    history : list of dict
        For each epoch: ``epoch``, ``bound`` (nats, all bags), ``rate``, ``seconds``.
    converged : bool
    local : dict of dict of arrays
        What the model keeps with each block, by number.
    stopped : str
        Why the model ended the fit before it converged; empty where it did not.
    """

    state: State
    plateau: Plateau
    epoch: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    converged: bool = False
    local: Local = field(default_factory=dict)
    stopped: str = ""


@dataclass(frozen=True)
class StepReport:
    """What a progress bar shows after each step, and after each pass of a longer step.

    Attributes
    ----------
    epoch : int
        From 1.
    step, n_step : int
        Steps done of those of the epoch.
    bound, rate : float
    phase : str
        What a fit with steps of its own does now; empty for others.
    n_pass : int
        Passes over the bags of such a fit.
    nats_left : float
        What its last step left to gain; infinite where unknown.
    """

    epoch: int
    step: int
    n_step: int
    bound: float
    rate: float
    phase: str = ""
    n_pass: int = 0
    nats_left: float = np.inf


def start_training(
    model: Model, source: BlockSource, *, seed: int, learning_rate: float, tolerance: float
) -> Training:
    """Return a fit before its first step."""
    rng = np.random.default_rng([seed, 0])
    state = model.init(source.summary(rng), rng)
    return Training(replace(state, rate=learning_rate), Plateau(tolerance))


# One BLAS thread everywhere: the numbers then depend on neither cores nor workers, and on the
# small matrices of a step two threads are slower than one (measured: 20 ms against 2).
@one_blas_thread()
def train(
    model: Model,
    source: BlockSource,
    executor: Executor,
    training: Training,
    *,
    seed: int,
    learning_rate: float,
    batch_bags: int,
    max_epochs: int,
    on_epoch: Callable[[Training], None] | None = None,
    on_step: Callable[[StepReport], None] | None = None,
) -> Training:
    """Run epochs until the bound no longer rises or ``max_epochs`` are done.

    The order of blocks is drawn from ``(seed, epoch)`` alone, sums over blocks are made in that
    order in float64, and ``training`` holds everything else: a fit taken up again from a finished
    epoch, on any number of workers, gives the same numbers.

    Parameters
    ----------
    model, source, executor
        What is fitted, to what, and who computes.
    training : Training
        From :func:`start_training` or a checkpoint; it is carried on in place.
    on_epoch, on_step : callable, optional
        Called after each epoch (a checkpoint) and each step (a progress bar).

    Returns
    -------
    Training
        The same object; ``converged`` is a status, not an exception.
    """
    block_bags = source.block_bags
    n_bag = int(block_bags.sum())
    blocks = np.flatnonzero(block_bags).tolist()
    with WholeSums(model, executor, blocks) as sums:
        settled = model.refinement(training.state, n_bag, sums)
        if settled is not None:
            return _settle(settled, sums, training, max_epochs, on_epoch, on_step)
    while training.epoch < max_epochs and not (training.converged or training.stopped):
        started = time.perf_counter()
        rng = np.random.default_rng([seed, 1, training.epoch])
        steps = plan_epoch(block_bags, n_bag if model.sweep == "full" else batch_bags, rng)
        total, state = 0.0, training.state
        for number, blocks in enumerate(steps):
            fresh: Local = {}
            ahead = steps[number + 1] if number + 1 < len(steps) else ()
            stats = executor.sum(model.block_params(state), blocks, training.local, fresh, ahead)
            state, info = model.update(state, stats, n_bag)
            training.local.update(fresh)
            total += info.bound * stats.n_bag
            if on_step is not None:
                on_step(
                    StepReport(training.epoch + 1, number + 1, len(steps), info.bound, state.rate)
                )
        bound = total / n_bag
        seconds = time.perf_counter() - started
        training.epoch += 1
        training.history.append(
            {"epoch": training.epoch, "bound": bound, "rate": state.rate, "seconds": seconds}
        )
        still = training.plateau.see(bound / n_bag)
        training.stopped = info.stopped
        training.converged = still if info.converged is None else info.converged
        training.converged &= not info.stopped
        training.state = replace(state, rate=learning_rate * training.plateau.factor)
        if on_epoch is not None:
            on_epoch(training)
    return training


def _settle(
    refinement: Refinement,
    sums: WholeSums,
    training: Training,
    max_epochs: int,
    on_epoch: Callable[[Training], None] | None,
    on_step: Callable[[StepReport], None] | None,
) -> Training:
    """Advance a fit that has its own steps over all bags, until it has converged."""
    rows = training.history
    n_pass = int(sum(row.get("passes", 0) for row in rows))
    last = rows[-1] if rows else {}
    bound, left = last.get("bound", np.nan), last.get("nats_left", np.inf)

    def show(epoch: int, step: int) -> None:
        if on_step is not None:
            phase = refinement.phase(training.state)
            rate = training.state.rate
            on_step(StepReport(epoch, step, 1, bound, rate, phase, n_pass, left))

    def passed() -> None:  # a step may take hundreds
        nonlocal n_pass
        n_pass += 1
        show(training.epoch + 1, 0)

    sums.on_pass = passed
    while training.epoch < max_epochs and not (training.converged or training.stopped):
        started = time.perf_counter()
        training.state, info = refinement.advance(training.state)
        training.epoch += 1
        seconds = time.perf_counter() - started
        training.history.append(
            {"epoch": training.epoch, "bound": info.bound, **info.report, "seconds": seconds}
        )
        training.stopped = info.stopped
        training.converged = bool(info.converged) and not info.stopped
        bound, left = info.bound, info.report.get("nats_left", np.inf)
        show(training.epoch, 1)
        if on_epoch is not None:
            on_epoch(training)
    return training
