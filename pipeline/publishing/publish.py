"""Publish a finished run as a version, if it passes its gates."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from geo.core.errors import InputError, Problem
from geo.core.period_text import natural_key
from geo.core.temporary import temporary_directory
from pipeline.config.no_spread import spread_caution
from pipeline.config.schema import Config
from pipeline.core.progress import Progress, Silent
from pipeline.evaluation.verdict import in_words
from pipeline.products.products import EDITABLE, EVALUATION
from pipeline.publishing.gates import Check, check_gates, read_json
from pipeline.publishing.version_store import Version, VersionStore
from pipeline.publishing.versions import open_versions
from pipeline.run.fingerprints import output_fingerprint
from pipeline.run.ownership import claim, owned, owner_problem
from pipeline.run.record import check_period, read_record
from pipeline.storage.files import file_digest, text_digest
from pipeline.storage.location import Location, Place, StorageUnreachableError
from pipeline.storage.place import read_place
from pipeline.storage.pointer import MovedError, conditional_write_problem

_WORK = "work/"  # in it is what is for later stages, not for readers
_STAGES = ("ingest", "fit", "predict", "evaluate")
# Stages whose outputs make a version; the report is published with them, if there is one.
_MAP = ("predict", "evaluate")


@dataclass(frozen=True)
class Publication:
    """Result of publishing a run.

    Attributes
    ----------
    status : str
        ``published``; ``unchanged``: a version already has this content; ``held``: a gate failed;
        ``superseded``: the version is of an earlier period than the current one, so it is kept
        but not made current.
    version : str or None
        Name of the version.
    directory : Path or Location
        Its directory or prefix; ``output.dir`` if the status is ``held``.
    reasons : tuple of str
        Reasons for ``held``, ``unchanged`` or ``superseded``.
    checks : tuple of Check
        Result of every gate.
    dropped : tuple of str
        Old versions that were removed.
    comparison : dict or None
        ``with``: the version that it was compared with; ``headline``, or ``skipped``: why not.
    """

    status: Literal["published", "unchanged", "held", "superseded"]
    version: str | None
    directory: Place
    reasons: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    dropped: tuple[str, ...] = ()
    comparison: dict[str, Any] | None = None

    @property
    def verdict(self) -> str:
        """What the evaluation found of the map."""
        try:
            found = json.loads(read_place(self.directory / EVALUATION.file))
        except (OSError, ValueError):
            found = None
        return in_words(found if isinstance(found, dict) else {})

    def summary(self) -> dict[str, Any]:
        """Return a JSON-able mapping."""
        return {**asdict(self), "directory": str(self.directory), "verdict": self.verdict}


def publish_dir(config: Config) -> Place:
    """Return the directory of a map's versions, or their prefix on an object store."""
    storage = config.storage.open()
    if config.publish.dir is not None:
        return storage.place(config.publish.dir)
    if config.output.url is not None:
        return storage.place(config.output.url) / "published"
    return config.shared_dir / "published"


def publish_problems(config: Config) -> list[Problem]:
    """Return what is wrong with the place of a map's versions, found without a finished run.

    Raises
    ------
    StorageUnreachableError
        If it is on an object store that cannot be reached.
    """
    place = publish_dir(config)
    wrong = None
    if isinstance(place, Location):
        wrong = conditional_write_problem(place, "publish.dir")
    # A store that denies access says nothing of an owner either.
    wrong = wrong or owner_problem(place, config, "publish.dir")
    return [] if wrong is None else [wrong]


def check_publishable(config: Config) -> None:
    """Raise InputError if there is anything wrong: before hours of work, and before publishing."""
    problems = publish_problems(config)
    if problems:
        raise InputError(problems)


def publish(
    config: Config, *, force: bool = False, progress: Progress | None = None
) -> Publication:
    """Publish the run in ``output.dir`` as a new version if it passes its gates.

    Parameters
    ----------
    config : Config
    force : bool, optional
        Publish even if a gate fails; ``version.json`` records the gates.
    progress : Progress, optional
        Of the comparison with the last version.

    Raises
    ------
    InputError
        If no run has finished there, or its outputs are of several runs; if ``publish.dir`` is
        another map's, or on a store that honours no conditional writes.
    """
    check_publishable(config)
    versions = open_versions(publish_dir(config))
    with owned(config):
        files = _published_files(config)
        fingerprint = _fingerprint(config)
        change = partial(_publish, config, versions, files, fingerprint, force, progress)
        return versions.changed(change)


def _publish(
    config: Config,
    store: VersionStore,
    files: dict[str, Path],
    fingerprint: str,
    force: bool,
    progress: Progress | None,
) -> Publication:
    """Publish what has been found in ``output.dir``, by one state of the versions."""
    out, versions, current = config.output.dir, store.list(), store.current()
    lost = store.current_name()
    if current is None and lost is not None and (versions or not force):
        found = "the current version is damaged"
        remedy = f"disagg rollback {config.source or 'CONFIG'} --to another, then publish"
        if not versions:  # nor can any other be read
            again = f"`disagg publish {config.source or 'CONFIG'} --force`"
            remedy = f"restore it from a back-up, or {again}"
        raise InputError(Problem(f"{store.place}, current version {lost}", found, remedy))
    backfilled = current is not None and _later(current.period, config.period)
    withdrawn = store.withdrawn()
    equal = [v for v in versions if v.fingerprint == fingerprint]
    if current in equal:
        return Publication("unchanged", current.name, current.path)
    for same in equal:
        if backfilled:
            return Publication("unchanged", same.name, same.path)
        if (
            current is not None
            and same.number > current.number
            and not (fingerprint in withdrawn or same.about.get("superseded"))
        ):  # complete, but a crash prevented the link
            store.commit(same)
            return Publication("published", same.name, same.path)
        if fingerprint in withdrawn and not force:
            why = (
                f"{same.name} is this map and was rolled back; to restore it, run "
                f"`disagg rollback {config.source or 'CONFIG'} --to {same.name}`"
            )
            return Publication("unchanged", same.name, same.path, (why,))
    base = _predecessor(config.period, versions, current)
    needed = config.gates.max_change is not None or config.publish.compare is not False
    before = None if base is None or not needed else store.copy(base)
    checks = tuple(check_gates(config, before))
    reasons = tuple(check.reason for check in checks if not check.passed)
    if reasons and not force:
        return Publication("held", None, out, reasons, checks)
    beware = _beware(config, progress or Silent())
    about = {
        "name": config.name,
        "period": config.period,
        "rate_per": config.output.rate_per,
        "published": datetime.now(UTC).isoformat(timespec="seconds"),
        "verdict": in_words(read_json(out / EVALUATION.file)),
        "forced": bool(reasons),
        **beware,
        "superseded": backfilled,  # of an earlier period: never current
        "gates": [asdict(check) for check in checks],
        "compared_with": None if base is None else base.name,
    }
    claim(store.place, config, "publish.dir")
    version, comparison = _add(config, store, files, about, fingerprint, before, progress)
    store.commit(None if backfilled else version)
    dropped: tuple[str, ...] = ()
    with suppress(MovedError, StorageUnreachableError):  # it is published; the next one clears up
        dropped = store.remove_old(config.publish.keep)
    done = Publication("published", version.name, version.path, (), checks, dropped, comparison)
    if current is None or not backfilled:
        return done
    because = f"{current.name} is of the later period {current.period} and stays current"
    return replace(done, status="superseded", reasons=(because,))


def _beware(config: Config, progress: Progress) -> dict[str, str]:
    """Return the cautions that ``version.json`` keeps, empty where there are none, and log them."""
    refit = read_record(config.output.dir)["fit"].get("summary", {}).get("refit") or ""
    unsure = spread_caution(config)
    if refit:
        progress.log(
            f"publish: warning: a new fit is due, for {refit}: "
            f"`disagg update {config.source or 'CONFIG'} --refit`"
        )
    if unsure:
        progress.log(f"publish: warning: {unsure}")
    # Why a new fit was due, and why intervals have no width.
    return {"refit": refit, "no_uncertainty": unsure}


def _add(
    config: Config,
    store: VersionStore,
    files: dict[str, Path],
    about: dict[str, Any],
    fingerprint: str,
    before: Path | None,
    progress: Progress | None,
) -> tuple[Version, dict[str, Any] | None]:
    """Write a version with its model and its comparison with the version before."""
    # `disagg check` asks this module whether a map can be published, and has no use for these.
    from pipeline.publishing.kept import compare_with_last, kept_model

    model, basis = kept_model(config)
    comparison: dict[str, Any] | None = None
    with temporary_directory(".compare.partial-", config.output.dir) as made:
        change: dict[str, Path] = {}
        if before is not None and config.publish.compare is not False:
            to = made / "change"
            change, comparison = compare_with_last(config, before, to, progress or Silent())
        kept = {**files, **model, **change}
        about = {
            **about,
            "basis": basis,
            "comparison": comparison,
            "files": {name: file_digest(path) for name, path in sorted(kept.items())},
        }
        return store.add(store.new_name(), kept, about, fingerprint), comparison


def _published_files(config: Config) -> dict[str, Path]:
    """Return the files to publish; raise InputError unless they are of one run.

    Each stage's inputs must be the earlier stages' outputs, by the recorded fingerprints: the
    input files themselves may be newer.
    """
    out = config.output.dir
    record = read_record(out)
    remedy = f"run `disagg run {config.source or 'CONFIG'}` first"
    absent = [name for name in _STAGES if name not in record]
    if absent:
        raise InputError(Problem(str(out), f"{absent[0]} has not finished", remedy))
    left: dict[str, str] = {}
    for name in _STAGES:
        for path, fingerprint in record[name]["inputs"].items():
            if path in left and left[path] != fingerprint:
                found = f"{name} used another version of {path}"
                raise InputError(Problem(str(out), found, remedy))
        left |= record[name]["outputs"]
    files: dict[str, Path] = {}
    for name in (*_MAP, *(["report"] if _has_report(record, left) else [])):
        for path, fingerprint in record[name]["outputs"].items():
            if path.startswith(_WORK):
                continue
            if output_fingerprint(out / path) != fingerprint:
                raise InputError(Problem(str(out / path), "missing or damaged", remedy))
            # Maps of other periods, and the cube of all, are folders.
            whole = sorted((out / path).rglob("*")) if (out / path).is_dir() else [out / path]
            files |= {p.relative_to(out).as_posix(): p for p in whole if p.is_file()}
    check_period(config, _STAGES, "publish")
    if (out / "run.json").is_file():
        _check_same_run(config, out / "run.json", remedy)
        files["run.json"] = out / "run.json"
    return files


def _has_report(record: dict[str, Any], left: dict[str, str]) -> bool:
    """Return whether there is a report, and it is of this map: one of another is left out."""
    inputs = record.get("report", {}).get("inputs", {})
    return bool(inputs) and all(left.get(path, value) == value for path, value in inputs.items())


def _check_same_run(config: Config, path: Path, remedy: str) -> None:
    """Check that the run has the configuration's name and rate_per."""
    ran = json.loads(path.read_text(encoding="utf-8")).get("config")
    if ran is None:
        return
    wanted = config.model_dump(mode="json")
    for key, of in (
        ("name", lambda c: c["name"]),
        ("output.rate_per", lambda c: c["output"]["rate_per"]),
    ):
        if of(ran) != of(wanted):
            found = f"the run in it had {key} {of(ran)}, not {of(wanted)}"
            raise InputError(Problem(str(path.parent), found, remedy))


def _fingerprint(config: Config) -> str:
    # Without run.json, which has timings, styles, which users may edit, and the report, which is
    # another view of the same map.
    record = read_record(config.output.dir)
    shown = {
        path: fingerprint
        for name in _MAP
        for path, fingerprint in record[name]["outputs"].items()
        if not path.startswith(_WORK) and not path.endswith(EDITABLE)
    }
    return text_digest(json.dumps([config.name, config.period, shown], sort_keys=True))


def _predecessor(
    period: str | None, versions: list[Version], current: Version | None
) -> Version | None:
    """Return the version to compare with: the current one, or that of the previous period."""
    if current is None or not _later(current.period, period):
        return current
    earlier = [v for v in versions if v.period is not None and not _later(v.period, period)]
    return max(earlier, key=lambda v: (natural_key(v.period or ""), v.number), default=None)


def _later(a: str | None, b: str | None) -> bool:
    return a is not None and b is not None and natural_key(a) > natural_key(b)
