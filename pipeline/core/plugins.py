"""Code from outside the packages: likelihoods, kernels, models, formats and products of users.

``DISAGG_PLUGINS`` names Python modules, separated by commas. Each registers what it adds when it is
imported. Every process of a run imports them: the command line, flows and Dask workers, if the
variable is in their environment.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from geo.core.errors import InputError, Problem

VARIABLE = "DISAGG_PLUGINS"


def load_plugins() -> None:
    """Import the modules that ``DISAGG_PLUGINS`` names; each is imported once a process.

    Raises
    ------
    InputError
        If a module cannot be imported.
    """
    for name in os.environ.get(VARIABLE, "").split(","):
        if not name.strip():
            continue
        try:
            importlib.import_module(name.strip())
        except Exception as error:
            found = f"cannot import {name.strip()!r} ({type(error).__name__}: {error})"
            remedy = "correct the module, or add its directory to PYTHONPATH"
            raise InputError(Problem(VARIABLE, found, remedy)) from error


def source_of_others(objects: Iterable[Any], packages: Iterable[str]) -> str:
    """Hash the source files of objects that are defined outside some packages.

    Parameters
    ----------
    objects : iterable
        Classes, functions and instances.
    packages : iterable of str
        Packages whose objects do not count.

    Returns
    -------
    str
        16 hexadecimal digits, or ``"none"`` if every object is defined in the packages.
    """
    own = set(packages)
    modules = {str(each.__module__) for each in objects}
    digest, n_other = hashlib.blake2b(digest_size=8), 0
    for name in sorted(modules):
        if name.partition(".")[0] in own:
            continue
        n_other += 1
        file = getattr(sys.modules.get(name), "__file__", None)
        source = Path(file).read_bytes() if file and Path(file).is_file() else b""
        digest.update(f"{name} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest() if n_other else "none"
