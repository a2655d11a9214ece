"""Time of fits: visits of areas times what one takes."""

from __future__ import annotations

import numpy as np

from models.gp.kept_kernels import BUDGET, WITH_BY_PRODUCTS
from pipeline.config.schema import Config
from pipeline.plan.memory import BY_PRODUCTS, CACHE_BYTES
from pipeline.plan.passes import FitPasses, Visits
from pipeline.plan.probe import Probe
from pipeline.plan.sizes import Passage

READ_BLOCK_S, READ_CHUNK_S = 5e-3, 3e-4  # a block of a store beyond the cache, one within it
CLUSTER_STEP_S, THREAD_STEP_S = 12e-3, 2e-4  # of a step, for messages
SHARE = 0.9  # of a further thread that is not lost to the interpreter and to memory
FIT_SHARE = 0.65  # the same of a fit's passes, whose calls are short
AVERAGED_S = 7e-6  # to take averages over areas: a pixel
TABLES = 15  # matrices of covariances between areas that a chain asks for


def speed(n: int, share: float = SHARE) -> float:
    """Return the speedup of ``n`` workers."""
    return 1.0 + (n - 1) * share


def reading(read: Passage, n_cache: int) -> float:
    """Return the seconds to read all blocks once."""
    fits = read.store_bytes <= CACHE_BYTES * n_cache
    return read.n_blocks * (READ_CHUNK_S if fits else READ_BLOCK_S)


def epoch_seconds(config: Config, read: Passage, measured: Probe, n: int) -> float | None:
    """Return the seconds of a pass with all gradients; None where a model has no such thing."""
    if measured.pixel is None or measured.update is None:
        return None
    return _pass(config, read, measured.pixel, measured.update, n)


def _pass(config: Config, read: Passage, pixel: float, update: float, n: int) -> float:
    """Return the seconds of steps of blocks that workers share, and of what the driver does."""
    local = config.compute.scheduler == "local"
    message = THREAD_STEP_S if local else CLUSTER_STEP_S
    blocks = read.n_blocks / read.n_steps  # of a step
    # The last round of a step leaves workers idle, and more of them than blocks do nothing.
    rounds = min(1.0, np.ceil(blocks / n) / blocks)
    pixels = read.n_pixels * pixel + reading(read, 1 if local else n)
    share = FIT_SHARE if local else SHARE
    return read.n_steps * (update + message) + pixels * max(rounds, 1 / speed(n, share))


def fit_seconds(config: Config, passes: FitPasses, measured: Probe, n: int) -> float:
    """Return the seconds of all passes of a fit, and of its chain."""
    seconds = passes.n_hessian * measured.hessian
    for visits, read in ((passes.of_few, passes.few), (passes.of_whole, passes.whole)):
        if measured.pixel is not None and measured.update is not None:
            seconds += _visits(config, visits, read, measured, n)
    if passes.n_evidence:
        seconds += passes.n_evidence * measured.evidence + TABLES * measured.averages
        if config.series is None:
            seconds += AVERAGED_S * passes.whole.n_pixels
    return seconds


def _visits(config: Config, visits: Visits, read: Passage, measured: Probe, n: int) -> float:
    """Return the seconds of visits: the kernel's matrices are made where none are kept."""
    pixel, update = measured.pixel or 0.0, measured.update or 0.0
    if measured.step is None or measured.slopes is None:
        return visits.passes * _pass(config, read, pixel, update, n)
    made = pixel - measured.slopes
    # Of as many pixels as there is room for the matrices are kept from step to step.
    held = 8.0 * read.n_pixels * measured.n_inducing
    bare = min(1.0, BUDGET / held)
    whole = min(1.0, WITH_BY_PRODUCTS * BUDGET / (BY_PRODUCTS * held))
    again = (visits.steps - visits.points) * (1.0 - bare) + visits.slopes * (1.0 - whole)
    each = {
        "steps": (visits.steps, measured.step),
        "slopes": (visits.slopes, measured.slopes),
    }
    seconds = sum(k * _pass(config, read, of, update, n) for k, of in each.values())
    making = (visits.points + max(again, 0.0)) * read.n_pixels * made
    return seconds + making / speed(n, FIT_SHARE)
