"""The classes that a raster has inside the areas, and their shares, for `disagg check`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from geo.core.errors import InputError, name_first
from geo.sources.class_names import class_names
from geo.sources.registry import source_of
from pipeline.config.schema import Config
from pipeline.ingest.raster_sample import RasterSampler
from pipeline.ingest.raster_suspicions import Suspicion
from pipeline.storage.location import is_remote

N_LISTED = 20  # classes, the most frequent ones
WHOLE = 0.999  # share of the known pixels from which classes are all that there are


@dataclass(frozen=True)
class ClassShareProfile:
    """One class: its value, its covariate ("" for none), its share of the known pixels."""

    value: float
    covariate: str
    share: float


@dataclass(frozen=True)
class ClassesProfile:
    """Classes of a raster inside the areas.

    Attributes
    ----------
    key : str
        ``covariates.<name>`` of the first covariate of the raster.
    path : str
    n_class : int
        Of those that were found.
    each : tuple of ClassShareProfile
        The most frequent ones first.
    sampled : bool
        Whether blocks of the raster were drawn at random.
    """

    key: str
    path: str
    n_class: int
    each: tuple[ClassShareProfile, ...]
    sampled: bool


def profile_classes(
    config: Config, sampler: RasterSampler
) -> tuple[tuple[ClassesProfile, ...], list[Suspicion]]:
    """Describe the classes of each raster with ``classes``, and return suspicions about them."""
    groups: dict[tuple[object, ...], list[str]] = {}
    suspicions: list[Suspicion] = []
    for name, spec in config.covariates.items():
        if isinstance(spec.classes, dict):
            key = spec.path, replace(spec.choice, share=None), spec.header
            groups.setdefault(key, []).append(name)
        elif spec.kind == "path":
            suspicions += _taken_as_numbers(name, spec.path, spec.band or 1)
    profiles = []
    for names in groups.values():
        spec = config.covariates[names[0]]
        try:
            source = source_of(spec.path, replace(spec.choice, share=None), spec.header)
            sample = sampler.sample(source)
        except InputError:  # reported where the covariate is read
            continue
        value, times = np.unique(sample.inside, return_counts=True)
        share = times / max(1, sample.inside.size)
        covariate = {
            number: name for name in names for number in config.covariates[name].choice.share or ()
        }
        first = np.argsort(-share, kind="stable")[:N_LISTED]
        each = tuple(
            ClassShareProfile(float(value[k]), covariate.get(float(value[k]), ""), float(share[k]))
            for k in first
        )
        key_of_first = f"covariates.{names[0]}"
        profiles.append(ClassesProfile(key_of_first, spec.path, value.size, each, sample.sampled))
        if len(names) > 1 and share[np.isin(value, list(covariate))].sum() > WHOLE:
            text = f"the shares of {name_first(names, N_LISTED)} sum to 1: one tells nothing"
            remedy = "leave one out of `classes`: the others are then seen against it"
            place = f"{key_of_first} ({spec.path})"
            suspicions.append(Suspicion("classes", place, text, remedy))
    return tuple(profiles), suspicions


def _taken_as_numbers(name: str, path: str, band: int) -> list[Suspicion]:
    """Return the suspicion that a raster with names of classes is no quantity."""
    try:
        known = {} if is_remote(path) else class_names(path, band)
    except InputError:
        return []
    if not known:
        return []
    text = f"has a table of {len(known)} classes ({name_first(list(known.values()))}), but is read "
    text += "as a quantity"
    remedy = f"if its numbers are classes, set covariates.{name}.classes: all, or name some"
    return [Suspicion("classes", f"covariates.{name} ({path})", text, remedy)]
