"""Local copies of a configuration's inputs at addresses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from geo.core.copies import copying
from geo.core.errors import InputError, Problem
from geo.core.trust import is_web_address, trusting
from pipeline.config.schema import Config, Section
from pipeline.storage.input_cache import is_cached, kept_copy, local_copy
from pipeline.storage.location import StorageError
from pipeline.storage.web_state import web_said

BRIEF_S = 10.0  # without a byte of a server's first answer


@contextlib.contextmanager
def local_inputs(config: Config) -> Iterator[Config]:
    """Yield the configuration with local inputs; errors name the original addresses.

    Inputs that are opened within may refer to the places that the configuration trusts.

    Raises
    ------
    InputError
        If objects are missing; lists all of them.
    StorageError
        If an object store fails.
    """
    copies, problems, storage = dict[str, str](), list[Problem](), config.storage.open()
    brief = replace(storage, retries=min(storage.retries, 2), timeout=min(storage.timeout, BRIEF_S))
    for key, url in config.input_paths().items():
        if not is_cached(url) or url in copies:
            continue
        if is_web_address(url):
            # A server that is away or refuses: the raster tells when it is opened, beside all other
            # problems. Asked briefly, for a run asks with all its attempts before it begins.
            with contextlib.suppress(StorageError):
                if web_said(url, brief) and (copy := local_copy(url, storage)):
                    copies[url] = str(copy)
            continue
        copy = local_copy(url, storage)
        if copy is None:
            problems.append(Problem(f"{key} ({url})", "no such object", "correct the address"))
        else:
            copies[url] = str(copy)
    if problems:
        raise InputError(problems)
    # What STAC items refer to is copied once it is opened.
    copying_too = copying(partial(kept_copy, storage=storage))
    if not copies:
        with trusting(config.trust), copying_too:
            yield config
        return
    try:
        with trusting(config.trust), copying_too:
            yield _with_paths(config, copies)
    except InputError as error:
        raise InputError([_renamed(problem, copies) for problem in error.problems]) from error


def _with_paths(section: Any, copies: dict[str, str]) -> Any:
    """Copy a section; replace paths at any depth."""
    if isinstance(section, str):
        return copies.get(section, section)
    if isinstance(section, dict):
        return {key: _with_paths(value, copies) for key, value in section.items()}
    if isinstance(section, tuple):
        return tuple(_with_paths(value, copies) for value in section)
    if not isinstance(section, Section):
        return section
    now = {name: getattr(section, name) for name in type(section).model_fields}
    new = {name: _with_paths(value, copies) for name, value in now.items()}
    # Update changed fields only: pydantic records which fields were set.
    return section.model_copy(update={k: v for k, v in new.items() if v != now[k]})


def _renamed(problem: Problem, copies: dict[str, str]) -> Problem:
    for url, copy in copies.items():
        problem = replace(
            problem,
            place=problem.place.replace(copy, url),
            found=problem.found.replace(copy, url),
            remedy=problem.remedy.replace(copy, url),
        )
    return problem
