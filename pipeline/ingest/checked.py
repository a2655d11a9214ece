"""What a check of the inputs found; the check itself is the first part of ingest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from geo.core.columns import AREA_ID
from geo.core.errors import InputError, Problem
from geo.core.temporary import temporary_directory
from geo.grids.membership import Membership
from geo.sources.registry import open_source
from pipeline.config.local_inputs import local_inputs
from pipeline.config.schema import Config
from pipeline.core.progress import Progress, Task
from pipeline.ingest.counted import each_period
from pipeline.ingest.examine import Examined, examine
from pipeline.ingest.inputs import Inputs, describe_inputs
from pipeline.ingest.period_files import period_problems
from pipeline.ingest.points import describe_points
from pipeline.ingest.suspicions import OF_ALL_COUNTS
from pipeline.ingest.zone_months import ZoneTotals
from pipeline.storage.location import Place
from pipeline.store.aligned_grid import GridSummary

#: Called with what ingest has opened and measured, before it raises problems; returns more of them.
Look = Callable[[Inputs, Membership | None, GridSummary | None], Sequence[Problem]]
#: Called with the same, the configuration and what was examined, while the aligned grid is there.
Also = Callable[[Config, Inputs, Membership | None, GridSummary | None, Examined], object]
#: The first part of ingest: configuration, directory, progress, and what to call.
Prepare = Callable[[Config, Place, Progress, Look], tuple[Inputs, Any]]


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes
    ----------
    problems : list of Problem
        Empty if ingest would succeed.
    examined : Examined or None
        None if an input is missing on an object store.
    found : dict of str to str
        Description of each input (`describe_inputs`); empty if there are problems.
    ids : list of str
        Of the areas; empty if they are unusable.
    """

    problems: list[Problem]
    examined: Examined | None
    found: dict[str, str]
    ids: list[str]


@dataclass(frozen=True)
class _TasksAlone:
    """Progress without the lines of ingest: what they say is in the profile."""

    progress: Progress

    def task(self, name: str, total: float | None = None) -> AbstractContextManager[Task]:
        return self.progress.task(name, total)

    def log(self, message: str) -> None:
        pass


def checked(
    config: Config, prepare: Prepare, progress: Progress, also: Also | None = None
) -> Checked:
    """Run the first part of ingest in a temporary directory and keep what it found."""
    examined: list[Examined] = []
    problems: list[Problem] = []
    found: dict[str, str] = {}
    ids: list[str] = []
    with temporary_directory("disagg-check-") as directory:
        try:
            with local_inputs(config) as local:
                places = local.input_paths().values(), config.input_paths().values()
                paths = dict(zip(*places, strict=True))

                def look(
                    inputs: Inputs, members: Membership | None, written: GridSummary | None
                ) -> Sequence[Problem]:
                    if inputs.areas is not None:
                        ids.extend(str(i) for i in inputs.areas[AREA_ID])
                    now = examine(local, inputs, members, written, whole_run=True)
                    examined.append(now.with_paths(paths))
                    if also is not None:
                        also(local, inputs, members, written, now)
                    late = [*period_problems(local), *_of_counts(local, inputs)]
                    return [*now.problems, *_of_truth(local), *late]

                inputs, bags = prepare(local, directory, _TasksAlone(progress), look)
                found = describe_inputs(config, inputs)
                points = getattr(bags, "points", None)
                found |= {} if points is None else describe_points(config, points)
                if config.series is not None and config.points and inputs.areas is not None:
                    found |= ZoneTotals(local, inputs.areas, []).told()
        except InputError as error:
            problems = list(error.problems)
    return Checked(problems, _of_whole(examined[0], problems) if examined else None, found, ids)


def _of_whole(examined: Examined, problems: Sequence[Problem]) -> Examined:
    """Leave out what is said of a column some of whose cells cannot be read: they are not in it."""
    parts = [each.place.partition(") row ") for each in problems]
    broken = {f"{place})" for place, row, _ in parts if row}
    kept = [
        each
        for each in examined.suspicions
        if each.code not in OF_ALL_COUNTS or each.place not in broken
    ]
    return replace(examined, suspicions=tuple(kept))


def _of_counts(config: Config, inputs: Inputs) -> list[Problem]:
    """Read the counts of the other periods, which ingest does once the pixels are written."""
    problems: list[Problem] = []
    if config.series is not None and inputs.areas is not None:
        each_period(config, inputs.areas, problems)
    return problems


def _of_truth(config: Config) -> list[Problem]:
    """Look at a raster that no stage opens before the evaluation, hours after the start."""
    problems: list[Problem] = []
    if config.truth is not None:
        open_source(config.truth.path, "truth", problems, config.truth.choice, config.truth.header)
    return problems


def suspicions_logged(config: Config, progress: Progress) -> Look:
    """Return a function that logs each suspicion on a line."""

    def look(
        inputs: Inputs, members: Membership | None, written: GridSummary | None
    ) -> Sequence[Problem]:
        examined = examine(config, inputs, members, written)
        for suspicion in examined.suspicions:
            progress.log(f"ingest: suspicion: {suspicion}")
        return examined.problems

    return look
