"""Stages and what they need: a stage whose inputs have not changed is skipped.

``work/stages.json`` keeps, for each stage, the fingerprints of what it read and of what it left.
A stage is up to date when both still hold, by content: a changed byte of an input, a changed key of
its part of the configuration, or a missing or damaged output runs it again.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.metadata
import json
import logging
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from geo.errors import InputError, Problem
from pipeline.config import Config
from pipeline.fetch import local_inputs
from pipeline.fingerprint import fingerprint_file, fingerprint_value
from pipeline.leftovers import is_sound, remove_abandoned
from pipeline.maplock import is_held
from pipeline.mirror import mirrored
from pipeline.places import MARKER, place_of
from pipeline.progress import Progress
from pipeline.storage import Location, use_storage

StageFunction = Callable[[Config, Progress], dict[str, Any]]

_PACKAGES = ("dask", "exactextract", "geopandas", "numpy", "rasterio", "scipy", "shapely", "zarr")

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Parameters
    ----------
    name : str
        As the command line says it.
    function : str
        ``module:function``, imported when the stage runs.
    config : tuple of str
        Keys of the configuration that change what the stage does.
    files : tuple of str
        Configuration keys (or their first words) whose files the stage reads.
    needs : tuple of str
        Paths in the output directory that an earlier stage must have left.
    outputs : tuple of str
        Glob patterns, in the output directory, of what the stage leaves.
    """

    name: str
    function: str
    config: tuple[str, ...]
    files: tuple[str, ...]
    needs: tuple[str, ...]
    outputs: tuple[str, ...]

    def load(self) -> StageFunction:
        """Import the stage's function."""
        module, _, function = self.function.partition(":")
        loaded: StageFunction = getattr(importlib.import_module(module), function)
        return loaded


_BAGS, _CUBE, _MODEL = "work/bags.zarr", "work/grid.zarr", "work/model"

STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            "ingest",
            "pipeline.ingest:ingest",
            config=(
                "areas",
                "counts",
                "period",
                "labels",
                "population",
                "covariates",
                "grid",
                "fit.seed",
                "output.mask",
            ),
            files=("areas", "counts", "labels", "population", "covariates", "grid"),
            needs=(),
            outputs=(_CUBE, _BAGS),
        ),
        Stage(
            "fit",
            "pipeline.fitting:fit_stage",
            config=("model", "fit"),
            files=(),
            needs=(_BAGS,),
            outputs=(_MODEL,),
        ),
        Stage(
            "predict",
            "pipeline.predict:predict_stage",
            config=("name", "areas", "fit.seed", "output"),
            files=("areas",),
            needs=(_CUBE, _BAGS, _MODEL),
            outputs=(
                "rate_*.tif",
                "cases_*.tif",
                "exceedance_*.tif",
                "probability_*.tif",
                "*.qml",
                "areas.gpkg",
                "areas.csv",
                "preview.png",
            ),
        ),
        Stage(
            "evaluate",
            "pipeline.evaluate:evaluate_stage",
            config=("name", "model", "fit", "output.draws", "output.interval", "evaluate", "truth"),
            files=("evaluate", "truth"),
            needs=(_CUBE, _BAGS, _MODEL),
            outputs=("evaluation.json",),
        ),
    )
}
"""The stages of a run, in order."""

_MAKER = {output: stage.name for stage in STAGES.values() for output in stage.outputs}


@dataclass(frozen=True)
class StageResult:
    """What became of a stage: its summary, whether it was skipped, and why it ran."""

    name: str
    skipped: bool
    seconds: float
    reason: str
    summary: dict[str, Any]


def work_dir(config: Config) -> Path:
    """Directory of what stages leave for each other."""
    return config.output.dir / "work"


def stage_inputs(stage: Stage, config: Config) -> dict[str, str]:
    """Fingerprint everything that a stage depends on, by name.

    Parameters
    ----------
    stage : Stage
        Which.
    config : Config
        The run's.

    Returns
    -------
    dict of str to str
        Configuration keys, files by their key, and what earlier stages left.
    """
    inputs = {"disagg": _version("disagg")}
    dump = config.model_dump(mode="json")
    for key in stage.config:
        inputs[key] = fingerprint_value(_without_paths(_at(dump, key)))
    inputs |= file_fingerprints(config, stage.files)
    for output in stage.needs:
        inputs[output] = fingerprint_file(config.output.dir / output)
    return inputs


def file_fingerprints(config: Config, sections: Sequence[str] | None = None) -> dict[str, str]:
    """Fingerprint the input files of some sections of the configuration, or of all."""
    known: dict[str, str] = {}  # grid.like mostly is a file that another key names too
    prints = {}
    for key, path in config.input_paths().items():
        if sections is None or key.split(".")[0] in sections:
            known.setdefault(path, "")
            known[path] = known[path] or fingerprint_file(path)
            prints[key] = known[path]
    return prints


def run_stage(
    name: str,
    inputs: Mapping[str, str],
    outputs: Sequence[str],
    function: Callable[[], dict[str, Any]],
    *,
    directory: Path,
    force: bool = False,
) -> StageResult:
    """Run a stage unless it is up to date, and remember what it read and left.

    Parameters
    ----------
    name : str
        The stage.
    inputs : mapping of str to str
        Fingerprints of what it depends on.
    outputs : sequence of str
        Glob patterns in ``directory`` of what it leaves.
    function : callable
        Does the work; returns a JSON-able summary.
    directory : Path
        ``output.dir``; the record is ``work/stages.json`` in it.
    force : bool, optional
        Run even if up to date.

    Returns
    -------
    StageResult
        With ``skipped`` true and the summary of the last time where nothing had changed.
    """
    record = read_record(directory).get(name)
    reason = "forced" if force else _reason(record, inputs, directory)
    if record is not None and not reason:
        return StageResult(name, True, record["seconds"], "", record["summary"])
    _LOG.info("%s runs: %s", name, reason)
    _remove_damaged(record, inputs, directory)
    started = datetime.now(UTC)
    clock = time.perf_counter()
    summary = function()
    seconds = time.perf_counter() - clock
    entry = {
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "inputs": dict(inputs),
        "outputs": _output_fingerprints(outputs, directory),
        "summary": summary,
    }
    entry["check"] = fingerprint_value(entry)
    # Read again: nothing else writes the record, but a stage may take hours.
    _write_json(_record_path(directory), {**read_record(directory), name: entry})
    return StageResult(name, False, seconds, reason, summary)


def run_stages(
    config: Config,
    names: Sequence[str],
    progress: Progress,
    *,
    force: bool = False,
    on_start: Callable[[str], None] | None = None,
) -> list[StageResult]:
    """Run stages in order, each skipped when up to date, and write ``run.json``.

    Parameters
    ----------
    config : Config
        The run's.
    names : sequence of str
        Which stages.
    progress : Progress
        Where they report to.
    force : bool, optional
        Run even what is up to date.
    on_start : callable, optional
        Called with each stage's name before it.

    Returns
    -------
    list of StageResult
        One for each name.

    Raises
    ------
    geo.errors.InputError
        If another run is writing to the directory, or an earlier stage has left nothing.
    """
    results = []
    use_storage(config.storage.options())
    with (
        exclusive(config.output.dir),
        mirrored(config.output.dir, config.output.url) as mirror,
        local_inputs(config) as local,
    ):
        for name in names:
            stage = STAGES[name]
            if on_start is not None:
                on_start(name)
            _check_needs(stage, config)
            result = _run_one(stage, local, progress, force=force)
            if mirror is not None:
                mirror.push()
            results.append(result)
            progress.log(_describe(result))
        write_run(config, file_fingerprints(local))
        if mirror is not None:
            mirror.push()
    return results


def _run_one(stage: Stage, config: Config, progress: Progress, *, force: bool) -> StageResult:
    def work() -> dict[str, Any]:
        return stage.load()(config, progress)

    inputs = stage_inputs(stage, config)
    return run_stage(
        stage.name, inputs, stage.outputs, work, directory=config.output.dir, force=force
    )


def stale_stages(config: Config, name: str) -> list[str]:
    """List the stages before ``name`` whose own inputs have changed since they ran."""
    stale = []
    for stage in STAGES.values():
        if stage.name == name:
            break
        record = read_record(config.output.dir).get(stage.name)
        if record is not None and _reason(record, stage_inputs(stage, config), config.output.dir):
            stale.append(stage.name)
    return stale


def write_run(config: Config, fingerprints: Mapping[str, str] | None = None) -> Path:
    """Write ``run.json``: versions, configuration, fingerprints of every input, timings.

    Parameters
    ----------
    config : Config
    fingerprints : mapping, optional
        Of the inputs as they were read; those of now where not given.

    Returns
    -------
    Path
        The file.
    """
    record = read_record(config.output.dir)
    run = {
        "format": "disagg-run",
        "version": 1,
        "name": config.name,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "disagg": _version("disagg"),
            **{package: _version(package) for package in _PACKAGES},
        },
        "config_file": None if config.source is None else str(config.source),
        "config": config.model_dump(mode="json"),
        "fingerprints": dict(fingerprints or file_fingerprints(config)),
        "stages": record,
        "seconds": round(sum(entry["seconds"] for entry in record.values()), 3),
    }
    path = config.output.dir / "run.json"
    _write_json(path, run)
    return path


def read_record(directory: Path) -> dict[str, Any]:
    """Read ``work/stages.json``; empty where there is none, or a damaged one."""
    try:
        record = json.loads(_record_path(directory).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
        return {}
    if not isinstance(record, dict):
        return {}
    return {name: entry for name, entry in record.items() if is_sound(entry)}


def _record_path(directory: Path) -> Path:
    return directory / "work" / "stages.json"


def _reason(record: Any, inputs: Mapping[str, str], directory: Path) -> str:
    """Say why a stage has to run; empty where it need not."""
    if record is None:
        return "first run"
    before = record["inputs"]
    changed = [key for key in {**before, **inputs} if before.get(key) != inputs.get(key)]
    if changed:
        return f"changed: {', '.join(changed)}"
    for name, fingerprint in record["outputs"].items():
        if _output_fingerprint(directory / name) != fingerprint:
            return f"{name} is missing or damaged"
    return "" if record["outputs"] else "left nothing"


def _remove_damaged(record: Any, inputs: Mapping[str, str], directory: Path) -> None:
    """Remove stores of the same inputs that are no longer what the stage left.

    A store of these inputs is otherwise taken as it stands, and looks finished: names and sizes of
    its files are as they were.
    """
    if record is None or record["inputs"] != dict(inputs):
        return
    for name, fingerprint in record["outputs"].items():
        path = directory / name
        if path.is_dir() and _output_fingerprint(path) != fingerprint:
            place = place_of(path)
            if isinstance(place, Location):  # the link stays, or the new store would be local
                place.remove([MARKER])
            else:
                shutil.rmtree(path)


def _output_fingerprints(patterns: Sequence[str], directory: Path) -> dict[str, str]:
    paths = sorted({path for pattern in patterns for path in directory.glob(pattern)})
    return {p.relative_to(directory).as_posix(): _output_fingerprint(p) for p in paths}


def _output_fingerprint(path: Path) -> str:
    # A style is made to be edited: that it is there is enough.
    if path.suffix == ".qml" and path.is_file():
        return "present"
    return fingerprint_file(path)


def is_undamaged(path: Path, fingerprint: str) -> bool:
    """Say whether an output is as its stage left it."""
    return _output_fingerprint(path) == fingerprint


def stage_key(name: str, config: Config) -> tuple[str, bool]:
    """Return the fingerprint of all that a stage depends on, and whether it is up to date.

    The code's version and the place of the results are part of it: two maps share no result.
    """
    stage = STAGES[name]
    inputs = stage_inputs(stage, config)
    record = read_record(config.output.dir).get(name)
    current = record is not None and not _reason(record, inputs, config.output.dir)
    key = fingerprint_value({"stage": name, "dir": str(config.output.dir), "inputs": inputs})
    return key, current


def _check_needs(stage: Stage, config: Config) -> None:
    problems = []
    source = config.source.name if config.source is not None else "CONFIG"
    for maker in dict.fromkeys(_MAKER[need] for need in stage.needs):
        absent = [
            need
            for need in stage.needs
            if _MAKER[need] == maker and not (config.output.dir / need).exists()
        ]
        if absent:
            problems.append(
                Problem(
                    str(config.output.dir / absent[0]),
                    f"not there, and {stage.name} needs it",
                    f"run `disagg {maker} {source}` first, or `disagg run {source}` for all",
                )
            )
    if problems:
        raise InputError(problems)


def summarise_stages(results: Sequence[StageResult]) -> list[dict[str, Any]]:
    """Turn results into what ``--json`` prints."""
    return [asdict(result) for result in results]


def _describe(result: StageResult) -> str:
    if result.skipped:
        return f"{result.name}: up to date, skipped"
    return f"{result.name}: done in {result.seconds:.1f} s"


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Keep a second run out of a directory; the lock ends with the process, however it ends."""
    if is_held(directory):  # by the run that this stage is part of
        yield
        return
    try:
        (directory / "work").mkdir(parents=True, exist_ok=True)
        opened = (directory / "work" / ".lock").open("a")  # what a holder wrote there stays
    except OSError as error:
        found = f"cannot be written to ({error.strerror or error})"
        remedy = "give another output.dir, or free this one for writing"
        raise InputError(Problem(f"output.dir ({directory})", found, remedy)) from error
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                Problem(
                    str(directory),
                    "another run is writing here",
                    "wait until it ends, or give this run another output.dir",
                )
            ) from None
        remove_abandoned(directory)
        yield


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _at(dump: Any, key: str) -> Any:
    for part in key.split("."):
        dump = dump[part]
    return dump


def _without_paths(value: Any) -> Any:
    """Leave out where files are: what they hold is fingerprinted by itself."""
    if not isinstance(value, dict):
        return value
    return {
        key: _without_paths(item)
        for key, item in value.items()
        if key not in ("path", "like", "dir", "url") or isinstance(item, dict)
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
