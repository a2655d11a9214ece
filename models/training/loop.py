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
from models.core.protocol import Algorithm, Info, Model, State
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
    shown = _Shown(training, on_step)
    with WholeSums(model, executor, np.flatnonzero(block_bags).tolist()) as sums:
        algorithm = model.refinement(training.state, n_bag, sums) or Epochs(
            model, executor, block_bags, training, shown, seed, learning_rate, batch_bags
        )
        shown.algorithm, sums.on_pass = algorithm, shown.passed
        training.state = algorithm.init(training.state)
        while training.epoch < max_epochs and not (training.converged or training.stopped):
            started = time.perf_counter()
            training.state, info = algorithm.step(training.state)
            training.converged, training.stopped = algorithm.terminate(training.state, info)
            training.epoch += 1
            seconds = time.perf_counter() - started
            training.history.append(
                {"epoch": training.epoch, "bound": info.bound, **info.report, "seconds": seconds}
            )
            shown.stepped()
            if on_epoch is not None:
                on_epoch(training)
    return training


class Epochs:
    """Steps of a model's own ``update`` over batches of blocks, in another order each epoch."""

    def __init__(
        self,
        model: Model,
        executor: Executor,
        block_bags: np.ndarray,
        training: Training,
        shown: _Shown,
        seed: int,
        learning_rate: float,
        batch_bags: int,
    ) -> None:
        self._model, self._executor, self._block_bags = model, executor, block_bags
        self._training, self._shown, self._seed = training, shown, seed
        self._learning_rate, self._n_bag = learning_rate, int(block_bags.sum())
        self._batch = self._n_bag if model.sweep == "full" else batch_bags

    def init(self, state: State) -> State:
        """Return the state as it is."""
        return state

    def step(self, state: State) -> tuple[State, Info]:
        """Go through all blocks once."""
        training, model = self._training, self._model
        rng = np.random.default_rng([self._seed, 1, training.epoch])
        steps = plan_epoch(self._block_bags, self._batch, rng)
        total = 0.0
        for number, blocks in enumerate(steps):
            fresh: Local = {}
            ahead = steps[number + 1] if number + 1 < len(steps) else ()
            params = model.block_params(state)
            stats = self._executor.sum(params, blocks, training.local, fresh, ahead)
            state, info = model.update(state, stats, self._n_bag)
            training.local.update(fresh)
            total += info.bound * stats.n_bag
            self._shown.batch(number + 1, len(steps), info.bound, state.rate)
        bound, rate = total / self._n_bag, state.rate
        still = training.plateau.see(bound / self._n_bag)
        state = replace(state, rate=self._learning_rate * training.plateau.factor)
        converged = still if info.converged is None else info.converged
        return state, Info(bound, converged, info.stopped, {"rate": rate})

    def terminate(self, state: State, info: Info) -> tuple[bool, str]:
        """End where the bound no longer rises at the lowest rate, or the model says so."""
        del state
        return bool(info.converged) and not info.stopped, info.stopped

    def phase(self, state: State) -> str:
        """Return nothing: all steps are alike."""
        del state
        return ""


class _Shown:
    """Tells of batches, passes and steps."""

    algorithm: Algorithm

    def __init__(self, training: Training, on_step: Callable[[StepReport], None] | None) -> None:
        self._training, self._tell = training, on_step or (lambda _: None)
        self._n_pass = int(sum(row.get("passes", 0) for row in training.history))

    def batch(self, number: int, n_batch: int, bound: float, rate: float) -> None:
        """Tell of a batch of an epoch."""
        self._tell(StepReport(self._training.epoch + 1, number, n_batch, bound, rate))

    def passed(self) -> None:
        """Tell of a pass: a step may take hundreds."""
        self._n_pass += 1
        self._step(self._training.epoch + 1, 0)

    def stepped(self) -> None:
        """Tell of a step of passes."""
        if not isinstance(self.algorithm, Epochs):
            self._step(self._training.epoch, 1)

    def _step(self, epoch: int, step: int) -> None:
        state, rows = self._training.state, self._training.history
        last = rows[-1] if rows else {}
        bound, left = last.get("bound", np.nan), last.get("nats_left", np.inf)
        phase = self.algorithm.phase(state)
        self._tell(StepReport(epoch, step, 1, bound, state.rate, phase, self._n_pass, left))
