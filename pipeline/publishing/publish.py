"""Publishing: what a run left becomes a version, if it is fit to be seen."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from geo.errors import InputError, Problem
from pipeline.config.periods import natural
from pipeline.config.schema import Config
from pipeline.publishing.gates import Check, check_gates
from pipeline.publishing.versions import (
    Version,
    add_version,
    current_version,
    drop_old,
    list_versions,
    make_current,
    read_withdrawn,
    versions_locked,
)
from pipeline.run.record import is_undamaged, read_record
from pipeline.storage.files import file_digest, text_digest
from pipeline.storage.lock import exclusive

_STAGES = ("ingest", "fit", "predict", "evaluate")
_SHOWN = ("predict", "evaluate")  # stages whose files readers get


@dataclass(frozen=True)
class Publication:
    """What became of a finished run.

    Attributes
    ----------
    status : str
        ``published``; ``unchanged`` where a version already holds exactly this; ``held`` where a
        gate failed; ``superseded`` for a version of a period before the current one's, which is
        kept but not made current.
    version : str or None
        Name of the version.
    directory : Path
        Where it is; for one that is held, ``output.dir``.
    reasons : tuple of str
        Why it is held, or why nothing was done.
    checks : tuple of Check
        Every gate that was asked.
    dropped : tuple of str
        Versions that were removed to make room.
    """

    status: Literal["published", "unchanged", "held", "superseded"]
    version: str | None
    directory: Path
    reasons: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    dropped: tuple[str, ...] = ()

    def summary(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "directory": str(self.directory)}


def publish_dir(config: Config) -> Path:
    """Directory of the versions of a map.

    Raises
    ------
    InputError
        If results lie on an object store, whose local copy is no place for readers.
    """
    if config.publish.dir is not None:
        return config.publish.dir
    if config.output.url is not None:
        found = f"not given, and output.dir is {config.output.url}"
        raise InputError(Problem("publish.dir", found, "give a local directory for versions"))
    return config.output.dir / "published"


def publish(config: Config, *, force: bool = False) -> Publication:
    """Make a version of what ``output.dir`` holds, and give it to readers, if the gates allow.

    Parameters
    ----------
    config : Config
    force : bool, optional
        Publish whatever the gates say; what they said is written into the version.

    Raises
    ------
    InputError
        If no run has finished there, or its parts are not of one run.
    """
    out, directory = config.output.dir, publish_dir(config)
    with exclusive(out):
        files = _finished_files(config)
        fingerprint = _fingerprint(config, files)
        with versions_locked(directory):
            versions, current = list_versions(directory), current_version(directory)
            if current is None and (directory / "current").is_symlink():
                found = "the version that readers are given is damaged"
                remedy = f"disagg rollback {config.source or 'CONFIG'} --to another, then publish"
                raise InputError(Problem(str(directory / "current"), found, remedy))
            backfilled = current is not None and _later(current.period, config.period)
            withdrawn = read_withdrawn(directory)
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
                ):  # complete, but a crash came before the link
                    make_current(directory, same)
                    return Publication("published", same.name, same.path)
                if fingerprint in withdrawn and not force:
                    why = (
                        f"{same.name} holds exactly this map and was rolled back; to have it after "
                        f"all: disagg rollback {config.source or 'CONFIG'} --to {same.name}"
                    )
                    return Publication("unchanged", same.name, same.path, (why,))
            base = _predecessor(config.period, versions, current)
            checks = tuple(check_gates(config, None if base is None else base.path))
            reasons = tuple(check.reason for check in checks if not check.passed)
            if reasons and not force:
                return Publication("held", None, out, reasons, checks)
            about = {
                "name": config.name,
                "period": config.period,
                "rate_per": config.output.rate_per,
                "published": datetime.now(UTC).isoformat(timespec="seconds"),
                "forced": bool(reasons),
                "superseded": backfilled,  # of an earlier period: readers never had it
                "gates": [asdict(check) for check in checks],
                "compared_with": None if base is None else base.name,
                "files": {name: file_digest(path) for name, path in sorted(files.items())},
            }
            version = add_version(directory, files, about, fingerprint)
            if current is not None and backfilled:
                why = f"{current.name} is of the later period {current.period} and stays current"
                dropped = tuple(drop_old(directory, config.publish.keep))
                return Publication(
                    "superseded", version.name, version.path, (why,), checks, dropped
                )
            make_current(directory, version)
            dropped = tuple(drop_old(directory, config.publish.keep))
    return Publication("published", version.name, version.path, (), checks, dropped)


def _finished_files(config: Config) -> dict[str, Path]:
    """Find what readers are to get, and see that it all comes from one run.

    What each stage read must be what the one before it left: by the records' fingerprints, not by
    reading the inputs again, which may be newer by now.
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
                found = f"{name} was made from another {path} than is there now"
                raise InputError(Problem(str(out), found, remedy))
        left |= record[name]["outputs"]
    files = {}
    for name in _SHOWN:
        for path, fingerprint in record[name]["outputs"].items():
            if not is_undamaged(out / path, fingerprint):
                raise InputError(Problem(str(out / path), "missing or damaged", remedy))
            files[path] = out / path
    if (out / "run.json").is_file():
        _check_same_run(config, out / "run.json", remedy)
        files["run.json"] = out / "run.json"
    return files


def _check_same_run(config: Config, path: Path, remedy: str) -> None:
    """See that the run was of the map, the period and the unit that the configuration says."""
    ran = json.loads(path.read_text(encoding="utf-8")).get("config")
    if ran is None:
        return
    wanted = config.model_dump(mode="json")
    for key, of in (
        ("name", lambda c: c["name"]),
        ("period", lambda c: c["period"]),
        ("output.rate_per", lambda c: c["output"]["rate_per"]),
    ):
        if of(ran) != of(wanted):
            found = f"the run in it had {key} {of(ran)}, not {of(wanted)}"
            if key == "period":
                remedy += f", or give --period {of(ran)}"
            raise InputError(Problem(str(path.parent), found, remedy))


def _fingerprint(config: Config, files: dict[str, Path]) -> str:
    # run.json has the times of the run in it, a style is the user's: neither is the map.
    record = read_record(config.output.dir)
    shown = {
        path: fingerprint
        for name in _SHOWN
        for path, fingerprint in record[name]["outputs"].items()
        if path in files and not path.endswith(".qml")
    }
    return text_digest(json.dumps([config.name, config.period, shown], sort_keys=True))


def _predecessor(
    period: str | None, versions: list[Version], current: Version | None
) -> Version | None:
    """Choose what a new version is compared with: what readers see, or the period before it."""
    if current is None or not _later(current.period, period):
        return current
    earlier = [v for v in versions if v.period is not None and not _later(v.period, period)]
    return max(earlier, key=lambda v: (natural(v.period or ""), v.number), default=None)


def _later(a: str | None, b: str | None) -> bool:
    return a is not None and b is not None and natural(a) > natural(b)
