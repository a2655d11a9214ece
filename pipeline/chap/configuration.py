"""The configuration that CHAP passes to a model: its covariates, and options of users.

additional_continuous_covariates: [rainfall, mean_temperature]
user_option_values: {lags: [1, 2, 3], likelihood: negative_binomial}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from geo.core.errors import InputError, Problem, name_first, one_line
from models import SpaceTime
from models.core.errors import ModelError

_COVARIATES, _OPTIONS = "additional_continuous_covariates", "user_option_values"
_OWN = ("lags", "threads")
_OF_TABLE = ("season_length",)  # follows from the step


@dataclass(frozen=True)
class Settings:
    """What users may choose.

    Attributes
    ----------
    covariates : list of str or None
        Columns; all of the table where None.
    lags : tuple of int or None
        Steps; :data:`pipeline.chap.covariates.LAGS` where None.
    threads : int or None
    model : dict
        Parameters of :class:`models.temporal.space_time.SpaceTime`.
    """

    covariates: list[str] | None = None
    lags: tuple[int, ...] | None = None
    threads: int | None = None
    model: dict[str, Any] = field(default_factory=dict)

    def chosen(self, names: list[str]) -> list[str]:
        """Return the covariates to use of those that a table has."""
        if self.covariates is None:
            return names
        absent = [name for name in self.covariates if name not in names]
        if absent:
            remedy = f"the table has {name_first(names, 20)}"
            raise InputError(Problem(_COVARIATES, f"no column {name_first(absent)}", remedy))
        return self.covariates


def read_settings(path: Path | None) -> Settings:
    """Read a configuration; the defaults without one.

    Raises
    ------
    InputError
        If it is no such file, or an option or its value is unknown.
    """
    if path is None:
        return Settings()
    remedy = f"give YAML with {_COVARIATES} and {_OPTIONS}"
    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(Problem(str(path), f"is not read: {one_line(error)}", remedy)) from error
    if not isinstance(said, dict):
        raise InputError(Problem(str(path), "has no keys", remedy))
    covariates, options = said.get(_COVARIATES), said.get(_OPTIONS) or {}
    if not isinstance(options, dict) or not isinstance(covariates or [], list):
        raise InputError(Problem(str(path), "is of another form", remedy))
    model = {name: value for name, value in options.items() if name not in _OWN}
    allowed = sorted({*SpaceTime().get_params(), *_OWN} - set(_OF_TABLE))
    unknown = [name for name in model if name not in allowed]
    if unknown:
        place = f"{path}: {_OPTIONS}.{unknown[0]}"
        raise InputError(Problem(place, "is unknown", f"use {', '.join(allowed)}"))
    try:
        SpaceTime(**model).check_params()
    except ModelError as error:
        found, _, remedy = str(error).partition("; ")
        place = f"{path}: {_OPTIONS}"
        raise InputError(Problem(place, found, remedy or "correct it")) from error
    threads = options.get("threads")
    if threads is not None and not (isinstance(threads, int) and threads > 0):
        place = f"{path}: {_OPTIONS}.threads"
        raise InputError(Problem(place, f"{threads!r}", "give a number from 1"))
    # An empty list is CHAP's default, for models whose covariates are fixed.
    return Settings(covariates or None, _lags(path, options.get("lags")), threads, model)


def _lags(path: Path, said: Any) -> tuple[int, ...] | None:
    if said is None or said == []:  # of the step
        return None
    lags = said if isinstance(said, list) else [said]
    if not all(isinstance(each, int) and 0 <= each <= 104 for each in lags):
        place = f"{path}: {_OPTIONS}.lags"
        raise InputError(Problem(place, f"{said!r}", "give steps from 0 to 104, as [1, 2, 3]"))
    return tuple(lags)
