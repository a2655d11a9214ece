"""Local copies of a configuration's inputs at addresses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from geo.core.copies import copying
from geo.core.errors import InputError, Problem
from geo.core.trust import is_web_address, trusting
from pipeline.config.schema import Config, Section
from pipeline.storage.chunks import RemoteStore
from pipeline.storage.input_cache import is_cached, is_store, local_copy
from pipeline.storage.location import Storage, StorageError
from pipeline.storage.web_state import web_said

BRIEF_S = 10.0  # without a byte of a server's first answer


@dataclass
class KeptCopies:
    """Copies of addresses that are opened later: of other periods, of STAC items.

    Each address is asked for its state once.

    Attributes
    ----------
    storage : Storage
    paths : dict of str to str
        Path of the copy by address.
    """

    storage: Storage
    paths: dict[str, str] = field(default_factory=dict)

    def __call__(self, address: str) -> str:
        """Return the path of the copy of an address, or the address where none is made."""
        if address not in self.paths and is_cached(address):
            copy = None
            # A server that is away or refuses: what opens the address tells.
            web = (StorageError,) if is_web_address(address) else ()
            with contextlib.suppress(*web):
                copy = local_copy(address, self.storage)
            if copy is not None:
                self.paths[address] = str(copy)
        return self.paths.get(address, address)


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
    problems, storage = list[Problem](), config.storage.open()
    kept = KeptCopies(storage)
    copies = kept.paths
    brief = replace(storage, retries=min(storage.retries, 2), timeout=min(storage.timeout, BRIEF_S))
    for key, url in config.input_paths().items():
        if not is_cached(url) or url in copies:
            continue
        if is_web_address(url):
            # A server that is away or refuses: the raster tells when it is opened, beside all other
            # problems. Asked briefly, for a run asks with all its attempts before it begins.
            with contextlib.suppress(StorageError):
                there = (
                    web_said(url, brief) if not is_store(url) else RemoteStore(url, brief).state()
                )
                if there and (copy := local_copy(url, storage)):
                    copies[url] = str(copy)
            continue
        copy = local_copy(url, storage)
        if copy is None:
            problems.append(Problem(f"{key} ({url})", "no such object", "correct the address"))
        else:
            copies[url] = str(copy)
    if problems:
        raise InputError(problems)
    try:
        with trusting(config.trust), copying(kept):
            yield _with_paths(config, copies) if copies else config
    except InputError as error:
        named = [_renamed(problem, copies) for problem in error.problems]
        if named == list(error.problems):
            raise  # as it is: what kind it is decides whether it is tried again
        raise InputError(named) from error


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
