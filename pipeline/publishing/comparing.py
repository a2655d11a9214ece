"""The sides of a comparison by the names that users give them, and that of a publication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geo.core.errors import InputError, Problem
from pipeline.comparison.compare import compare_sides
from pipeline.comparison.sides import Side, find_data, open_side
from pipeline.config.reader import read_config
from pipeline.config.schema import Config
from pipeline.core.progress import Progress
from pipeline.publishing.publish import publish_dir
from pipeline.publishing.versions import open_versions
from pipeline.storage.location import is_remote
from pipeline.storage.lock import exclusive
from pipeline.storage.mirror import mirrored


def find_side(text: str) -> Side:
    """Find what a user wants to compare.

    Parameters
    ----------
    text : str
        ``output.dir`` of a run, the directory of a version, a configuration (its run), or
        ``CONFIG@v0007`` or ``CONFIG@current`` (a version of its map).

    Raises
    ------
    InputError
        If there is nothing of that name.
    """
    if is_remote(text):
        remedy = "give the configuration whose output.dir it is"
        raise InputError(Problem(text, "an address on an object store", remedy))
    path = Path(text)
    if path.is_dir():
        return open_side(path.resolve(), text)
    name, at, version = text.rpartition("@")
    file = Path(name if at else text)
    if not file.is_file():
        found = f"no file or directory {file}"
        remedy = "give output.dir of a run, its configuration, or CONFIG@v0007"
        raise InputError(Problem(text, found, remedy))
    problems: list[Problem] = []
    config = read_config(file, problems, None)
    if config is None or problems:
        raise InputError(problems)
    if not at:
        _download(config)
        return open_side(config.output.dir, text)
    store = open_versions(publish_dir(config))
    chosen = store.current() if version == "current" else None
    versions = store.list()
    chosen = chosen or next((each for each in versions if each.name == version), None)
    if chosen is None:
        names = ", ".join(each.name for each in versions) or "none; publish one first"
        found = f"no version {version} in {store.place}"
        raise InputError(Problem(text, found, f"versions: {names}"))
    return find_data(open_side(store.copy(chosen), text), [config.output.dir])


def _download(config: Config) -> None:
    """Bring the run of an object store to its local folder: another machine may have made it."""
    if config.output.url is None:
        return
    with (
        exclusive(config.output.dir),
        mirrored(config.output.dir, config.output.url, config.storage.open()),
    ):
        pass


def compare(
    a: str,
    b: str,
    out: Path,
    progress: Progress,
    *,
    independent: bool = False,
    n_draws: int | None = None,
) -> dict[str, Any]:
    """Compare two runs or versions by their names; see :func:`find_side`, :func:`compare_sides`."""
    sides = [find_side(a), find_side(b)]
    # A version keeps its model; its grid is that of a run whose inputs are the same.
    places = [side.data or side.config.output.dir for side in sides]
    one, other = (find_data(side, places) for side in sides)
    return compare_sides(one, other, out, progress, independent=independent, n_draws=n_draws)
