"""Commands start without what they do not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import models
from models.training.registry import CLASSES, kinds

#: Each takes a tenth of a second and more to import.
SLOW = {"numba", "sklearn", "scipy.stats", "xarray", "dask.array", "distributed", "matplotlib"}


LEAN = (
    "models.likelihoods.registry",
    "models.aggregate.vbagg",
    "pipeline.config.reader",
    "pipeline.ingest.stage",
    "pipeline.run.runner",
    "pipeline.publishing.publish",
    "pipeline.updates.attended",
)


@pytest.mark.ci
def test_what_a_check_and_a_second_run_import():
    code = (
        "import importlib, sys\n"
        f"for name in {LEAN!r}:\n"
        "    importlib.import_module(name)\n"
        f"    slow = sorted({SLOW!r} & set(sys.modules))\n"
        "    assert not slow, (name, slow)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_announced_kinds_and_names_are_those_of_the_classes():
    for name, model in CLASSES.items():
        assert model.__name__ == name
        kind = model.__dict__.get("kind", "")
        assert not kind or kinds()[kind] is model
    for kind, model in kinds().items():
        assert model.kind == kind
        assert CLASSES[model.__name__] is model


def test_every_public_name_is_there_and_no_other():
    assert {name for name in models.__all__ if not hasattr(models, name)} == set()
    with pytest.raises(AttributeError, match="no attribute 'VBAg'"):
        _ = models.VBAg
    with pytest.raises(AttributeError, match="no attribute 'FittedError'"):
        _ = models.errors.FittedError


def test_a_model_that_is_not_fitted_raises_what_scikit_learn_knows():
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError, match="call fit first") as raised:
        models.VBAgg().fitted_state()
    assert isinstance(raised.value, models.errors.ModelError)
    assert raised.type is models.errors.NotFittedError
    assert raised.type.__module__ == "models.core.errors"


def test_a_model_of_one_time_needs_no_other_import():
    code = (
        "from models.temporal.space_time import SpaceTime\n"
        "from contextlib import suppress\n"
        "with suppress(AttributeError): SpaceTime().at(0.0)  # it is not fitted\n"
        "print(SpaceTime.one_period.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "models.temporal.at_period"
