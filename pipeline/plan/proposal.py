"""Propose the most accurate settings whose run ends within a given time.

A ladder of settings goes from the most to the least accurate; the first whose foreseen time fits is
taken. What users set is never changed. The ladder is a pure function of the sizes, and the choice
one of the ladder, of what is foreseen for a rung, and of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from geo.core.errors import InputError, Problem
from pipeline.config.model_factory import resolved
from pipeline.config.model_schema import WARM_KINDS
from pipeline.config.schema import Config
from pipeline.config.size_defaults import cap_for, settings, sized
from pipeline.plan.duration import tell_duration
from pipeline.plan.estimate import RunPlan, foresee, mean_pixels
from pipeline.plan.probe import Probe, probe
from pipeline.plan.sizes import Sizes, measure_inputs

MARGIN = 1.15  # the time foreseen may be short by so much (docs/plan.md)

#: Settings by section and key, as in a configuration: a rung of the ladder.
Values = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Proposal:
    """Settings whose run ends in time.

    Attributes
    ----------
    config : Config
        With them.
    plan : RunPlan
    seconds, within : float
        Foreseen for all stages, and given.
    loss : str
        Settings that save time at the cost of accuracy.
    kept : tuple of str
        Keys of the ladder that users set, and that were left.
    """

    config: Config
    plan: RunPlan
    seconds: float
    within: float
    loss: str
    kept: tuple[str, ...]

    @property
    def changes(self) -> dict[str, dict[str, Any]]:
        """The settings, for :func:`pipeline.config.reader.load_config`."""
        return settings(self.config)

    @property
    def yaml(self) -> str:
        """The settings as YAML, one line a section."""
        return as_yaml(self.changes)


def as_yaml(values: Values) -> str:
    """Return settings as YAML, one line a section."""
    return "".join(
        f"{name}: "
        + yaml.safe_dump(dict(keys), default_flow_style=True, sort_keys=False, width=1000)
        for name, keys in values.items()
    )


def propose(
    config: Config,
    within: float,
    workers: int | None = None,
    sizes: Sizes | None = None,
    measure: Callable[[Config, float, int], Probe] = probe,
) -> Proposal:
    """Return the most accurate settings whose run ends within a time.

    Parameters
    ----------
    config : Config
        As users wrote it.
    within : float
        Seconds for all stages.
    workers : int, optional
        As configured where not given.
    sizes : Sizes, optional
        Measured where not given.
    measure : callable
        Times the model of a configuration, see :func:`pipeline.plan.probe.probe`.

    Raises
    ------
    InputError
        If no settings end in time, or the model's time cannot be foreseen.
    """
    if config.series is not None:
        what = "has no settings to choose for several periods (time)"
        raise InputError(Problem("--within", what, "run without it, or give fewer model.inducing"))
    if config.response_kind.unsized(1):
        what = f"has no settings to choose for models of {config.response_kind.totals}"
        raise InputError(Problem("--within", what, "run without it"))
    found = measure_inputs(config) if sizes is None else sizes
    timed: dict[tuple[Any, ...], Probe] = {}

    def plan(values: Values) -> tuple[Config, RunPlan]:
        tried = sized(applied(config, values), found.area_pixels)
        mean = mean_pixels(tried, found)
        model = tuple(resolved(tried, key) for key in ("inducing", "precision", "pair_pixels"))
        key = (*model, tried.output.draws, round(np.log2(mean)))
        if key not in timed:
            timed[key] = measure(tried, mean, found.n_bags)
        return tried, foresee(tried, found, timed[key], workers)

    rungs = list(ladder(config, found.area_pixels))
    least = np.inf
    for rung in rungs:
        tried, planned = plan(rung)
        seconds = total_seconds(planned)
        if seconds is None:
            raise InputError(
                Problem(
                    "--within",
                    f"the time of model.kind: {config.model.kind} cannot be foreseen",
                    "run without --within, or give a kind that goes block by block",
                )
            )
        if MARGIN * seconds <= within:
            kept = tuple(_kept(config, rung))
            return Proposal(tried, planned, seconds, within, loss(rung, kept), kept)
        least = min(least, MARGIN * seconds)
    fixed = sorted({key for rung in rungs for key in _kept(config, rung)})
    own = f", or leave {', '.join(fixed)} to it" if fixed else ""
    raise InputError(
        Problem(
            "--within",
            f"no settings end within {tell_duration(within)}; the least foreseen is "
            f"{tell_duration(float(least))}",
            f"give --within {tell_duration(float(least))}, or a coarser grid{own}",
        )
    )


def total_seconds(plan: RunPlan) -> float | None:
    """Return the seconds of all stages with the plan's workers; None if one is not foreseen."""
    each = [stage.seconds.get(plan.workers) for stage in plan.stages]
    return None if None in each else float(sum(s for s in each if s is not None))


def ladder(config: Config, area_pixels: np.ndarray) -> Iterator[Values]:
    """Yield settings from the most to the least accurate.

    Parameters
    ----------
    config : Config
        For the kind of model; its settings are kept by :func:`applied`.
    area_pixels : (n_area,) array
    """
    n = float(np.sum(area_pixels))
    double = {"precision": "float64"}
    single = {"precision": "float32"}
    refits = {"area_pixels": "all", "start": "cold", "leave_out": "refit"}
    yield {"model": double, "fit": {"area_pixels": "all"}, "evaluate": refits}
    yield {"model": single, "fit": {"area_pixels": "all"}, "evaluate": refits}
    quick: dict[str, Any] = {"start": "cold", "leave_out": "refit"}
    if config.model.kind in WARM_KINDS:
        by_weights = isinstance(config.evaluate.folds, int)
        quick = {"start": "warm", "leave_out": "importance" if by_weights else "refit"}
    seen = None
    for fit, evaluate, more in _STEPS:
        fitted = "all" if fit >= n else cap_for(area_pixels, fit)
        scored = "all" if evaluate >= n else cap_for(area_pixels, evaluate)
        if (fitted, scored, more) == seen:
            continue
        seen = (fitted, scored, more)
        values: dict[str, dict[str, Any]] = {
            "model": single | more.get("model", {}),
            "fit": {"area_pixels": fitted} | more.get("fit", {}),
            "evaluate": {"area_pixels": scored} | quick | more.get("evaluate", {}),
            "output": more.get("output", {}),
        }
        yield values


_FEWER: dict[str, dict[str, Any]] = {"model": {"inducing": 100}, "evaluate": {"folds": 3}}
_FEW: dict[str, dict[str, Any]] = {
    "model": {"inducing": 100},
    "evaluate": {"folds": 3, "calibration": "none"},
    "output": {"draws": 200},
}
_LAST: dict[str, dict[str, Any]] = {
    "model": {"inducing": 64, "integrate": "none"},
    "fit": {"max_epochs": 150},
    "evaluate": {"folds": 2, "epochs": 30, "calibration": "none"},
    "output": {"draws": 100},
}
_STEPS: tuple[tuple[float, float, dict[str, dict[str, Any]]], ...] = (
    # Pixels of the fit, of the evaluation, and what else changes.
    (np.inf, 1e6, {}),
    (4e6, 1e6, {}),
    (2e6, 5e5, {}),
    (1e6, 2.5e5, {}),
    (5e5, 1.25e5, {}),
    (2.5e5, 6e4, {"model": {"inducing": 150}}),
    (1.25e5, 3e4, _FEWER),
    (6e4, 1.5e4, _FEW),
    (3e4, 8e3, _LAST),
    (3e4, 8e3, _LAST | {"evaluate": {**_LAST["evaluate"], "schemes": ["area"]}}),
    (3e4, 8e3, _LAST | {"evaluate": {**_LAST["evaluate"], "schemes": []}}),
)


_PLAIN = {  # values that give nothing up
    "model.precision": "float64",
    "fit.area_pixels": "all",
    "evaluate.area_pixels": "all",
    "evaluate.start": "cold",
    "evaluate.leave_out": "refit",
}


def loss(values: Values, kept: Sequence[str]) -> str:
    """Return what settings give up, as text: those that differ from a run without a limit."""
    named = {f"{name}.{key}": value for name, keys in values.items() for key, value in keys.items()}
    parts = [
        f"{key}: {value}"
        for key, value in named.items()
        if key not in kept and _PLAIN.get(key) != value
    ]
    return ", ".join(parts) or "nothing"


def applied(config: Config, values: Values) -> Config:
    """Return the configuration with these values, where users gave none of their own."""
    update = {}
    for name, keys in values.items():
        section = getattr(config, name)
        free = {k: v for k, v in keys.items() if not _is_set(section, k)}
        free = {k: tuple(v) if isinstance(v, list) else v for k, v in free.items()}
        if free:
            update[name] = section.model_copy(update=free)
    return config.model_copy(update=update)


def _is_set(section: Any, key: str) -> bool:
    return key in section.model_fields_set and getattr(section, key) != "auto"


def _kept(config: Config, values: Values) -> Iterator[str]:
    for name, keys in values.items():
        for key in keys:
            if _is_set(getattr(config, name), key):
                yield f"{name}.{key}"
