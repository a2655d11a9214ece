"""Shorter runs of all stages, for tests of other things than the length of these.

Half of the processor time of a run of a few areas went into the chain of its hyperparameters, the
members of its mixture and its refits to simulated data; a sixth into pictures. A module whose tests
are about those says ``WHOLE_RUNS = True``.
"""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from models.aggregate import hyperparameter_chain as chain
from models.aggregate import vbagg
from pipeline.config import size_defaults

BLANK = b64decode(  # a picture of one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTjWSgAAAABJRU5ErkJggg=="
)


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Shorten what every run draws, until the patch is undone."""
    patch.setattr(chain, "WARM", 20)
    patch.setattr(chain.explore, "__defaults__", (100,))
    for name in ("SDS", "SPREADS", "SIDES"):
        patch.setattr(chain, name, getattr(chain, name)[::3])
    patch.setattr(vbagg, "MEMBERS", 4)
    patch.setattr(size_defaults, "SIMULATIONS", "none")
    patch.setattr(Figure, "savefig", _leave_blank)


def _leave_blank(self: Figure, file: Any, **how: Any) -> None:
    del self, how
    if isinstance(file, (str, Path)):
        Path(file).write_bytes(BLANK)
    elif hasattr(file, "write"):  # not a page of a document
        file.write(BLANK)
