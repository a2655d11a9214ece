"""Shorter runs of all stages, for tests of other things than the length of these.

What is away is asked again as often, and sooner.

Half of the processor time of a run of a few areas went into the chain of its hyperparameters, the
members of its mixture and its refits to simulated data; a sixth into pictures. A module whose tests
are about those says ``WHOLE_RUNS = True``.
"""

from __future__ import annotations

import os
from base64 import b64decode
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import rasterio.session
import typer.main
from matplotlib.figure import Figure

from models.aggregate import hyperparameter_chain as chain
from models.aggregate import vbagg
from pipeline.config import size_defaults
from pipeline.core.sources import SourceTree
from pipeline.reporting import render
from pipeline.storage import location, web_state

BLANK = b64decode(  # a picture of one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTjWSgAAAABJRU5ErkJggg=="
)
NODES = {name: getattr(chain, name)[::3] for name in ("SDS", "SPREADS", "SIDES")}
# Users have no boto3, which moto brings. Where keys of S3 are set, each `rasterio.Env` would make a
# session of it: a third of the time of a run.
rasterio.session.boto3 = None
# A user's process makes these once, the tests' made them at every command: a tenth of their time.
COMMAND, TEMPLATE = cache(typer.main.get_command), cache(render._template)
REACHED = cache(SourceTree.reached)


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Shorten what every run draws, until the patch is undone."""
    patch.setattr(chain, "KEPT", 80)
    for name, nodes in NODES.items():
        patch.setattr(chain, name, nodes)
    patch.setattr(vbagg, "MEMBERS", 4)
    patch.setattr(size_defaults, "SIMULATIONS", "none")
    for asked in (location, web_state):
        patch.setattr(asked, "_FIRST_WAIT", 0.002)
    patch.setattr(os, "fsync", lambda _: None)  # no test cuts the power
    patch.setattr(typer.main, "get_command", COMMAND)
    patch.setattr(render, "_template", TEMPLATE)
    patch.setattr(SourceTree, "reached", lambda self, roots: REACHED(self, frozenset(roots)))
    patch.setattr(Figure, "savefig", _leave_blank)
    patch.setattr(Figure, "tight_layout", lambda *_, **__: None)


def _leave_blank(self: Figure, file: Any, **how: Any) -> None:
    del self, how
    if isinstance(file, (str, Path)):
        Path(file).write_bytes(BLANK)
    elif hasattr(file, "write"):  # not a page of a document
        file.write(BLANK)
