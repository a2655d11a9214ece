"""Begin a fit at the kernel, the noise and the inducing points of another."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from models.aggregate.fit_memory import CLIMB
from models.training.estimator import Estimator
from models.training.loop import Training
from models.training.optim import Plateau

PLACES = ("term_values", "term_nodes", "node_share", "node_bag", "term_of")
CURVATURE = ("inverse",)
REFIT_NATS, REFIT_MEMBERS = 0.5, 6  # of a fit that only scores: left to gain, draws
SURFACE = ("v_mean", "root")  # of q(u): what the fit has learnt of the surface itself


def warm_training(training: Training, fitted: Estimator) -> Training:
    """Return a fit before its first step that begins at another's parameters.

    A fit to the optimum of the profile bound takes over everything: its surface climbs to the best
    under its own counts, to a hundredth of a nat, wherever it begins.

    A fit by mini-batches ends where it began as well, so that its posterior of the inducing values
    begins at its start: counts which it leaves out reach it through the kernel, the noise and the
    inducing points alone, and these go on being learnt. The rate begins at a third, where it would
    be after its first fall.

    Parameters
    ----------
    training : Training
        A fit before its first step.
    fitted : Estimator
        A fitted model with the same settings.
    """
    state, learnt = training.state, fitted.fitted_state()
    alike = set(learnt.params) == set(state.params)
    curvature = {name: learnt.memory[name] for name in CURVATURE if alike and name in learnt.memory}
    begun = () if curvature else SURFACE
    params = {
        name: start if name in begun else np.array(learnt.params.get(name, start))
        for name, start in state.params.items()
    }
    n_ind = learnt.params["v_mean"].shape[0]  # a fold may have had fewer of its own
    for name in SURFACE:
        if params[name].shape[0] != n_ind:
            params[name] = _resized(params[name], n_ind)
    fixed = {**state.fixed, **{name: learnt.fixed[name] for name in PLACES if name in learnt.fixed}}
    plateau = Plateau(training.plateau.tolerance, factor=1 / 3, drops=1)
    state = replace(state, params=params, fixed=fixed, rate=state.rate / 3)
    if curvature:  # that of the other's bound leads, and serves
        state = replace(
            state, memory={"stage": np.array(CLIMB), "curved": np.array(1), **curvature}
        )
    return Training(state, plateau)


def lighten(model: Any) -> None:
    """Let a fit that only scores, and begins at the map's own, take less time.

    It ends on few pixels of each area, half a nat from the optimum at most, with six draws of the
    hyperparameters: little beside what other areas would have given. Models that do not climb to
    an optimum stay as they are.
    """
    if getattr(model, "by_terms", False):
        n_member = min(model.n_member, REFIT_MEMBERS) or "none"
        model.set_params(few_pixels=True, nats_left=REFIT_NATS, integrate=n_member)


def start_key(fitted: Estimator) -> str:
    """Return the fingerprint of what a fit takes over from a fitted model."""
    digest, state = hashlib.sha256(), fitted.fitted_state()
    begun = () if CURVATURE[0] in state.memory else SURFACE
    places = {name: state.fixed[name] for name in PLACES if name in state.fixed}
    curvature = {name: state.memory[name] for name in CURVATURE if name in state.memory}
    for name, value in sorted({**state.params, **places, **curvature}.items()):
        if name not in begun:
            digest.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def _resized(start: np.ndarray, n: int) -> np.ndarray:
    if start.ndim == 1:
        return np.zeros(n)
    return np.diag(np.full(n, start[0, 0]))
