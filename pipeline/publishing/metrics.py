"""Metrics of runs for Prometheus: a file for the textfile collector, or a push gateway.

A run ends, so Prometheus cannot scrape it. Counters (runs by outcome) continue from the file.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geo.core.addresses import redacted
from pipeline.config.schema import Config
from pipeline.core.errors import StoreError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from pipeline.publishing.publish import Publication


@dataclass
class RunMetrics:
    """Metrics that a run collects, to be written at its end.

    Attributes
    ----------
    outcome : str
        One of `OUTCOMES`.
    stages : dict of str to (float, bool)
        Seconds of each stage, and whether it was skipped.
    gates : dict of str to float
        Measured value of each gate.
    alerts_failed : int
        Notifications that reached nobody.
    """

    outcome: str = "failed"
    stages: dict[str, tuple[float, bool]] = field(default_factory=dict)
    gates: dict[str, float] = field(default_factory=dict)
    alerts_failed: int = 0

    def add(self, result: Mapping[str, Any]) -> None:
        """Add a finished stage."""
        self.stages[result["name"]] = (result["seconds"], result["skipped"])

    def end_stages(self) -> None:
        """Add the result of a run that does not publish."""
        skipped = all(was_skipped for _, was_skipped in self.stages.values())
        self.outcome = "unchanged" if skipped else "finished"

    def end(self, publication: Publication) -> None:
        """Add the result of publishing."""
        self.outcome = publication.status
        self.gates = {
            check.gate: float(check.value)
            for check in publication.checks
            if check.value is not None
        }


@contextmanager
def recorded_metrics(config: Config, on_error: Callable[[str], None]) -> Iterator[RunMetrics]:
    """Write a run's metrics at its end, also after an error; an interruption is 'cancelled'."""
    metrics, start = RunMetrics(), time.monotonic()
    try:
        yield metrics
    except Exception:
        metrics.outcome = "failed"
        raise
    except BaseException:
        metrics.outcome = "cancelled"
        raise
    finally:
        for error in record_run(config, metrics, time.monotonic() - start, _version(config)):
            on_error(error)


def _version(config: Config) -> int | None:
    """Return the number of the current version; None if nothing is published."""
    if config.metrics.textfile is None and config.metrics.pushgateway is None:
        return None
    from pipeline.publishing.publish import publish_dir
    from pipeline.publishing.versions import current_version

    try:
        version = current_version(publish_dir(config))
    except StoreError:  # a store that is away, which the run has told already
        return None
    return None if version is None else version.number


OUTCOMES = (
    "published", "unchanged", "finished", "held", "superseded", "failed", "skipped", "cancelled"
)  # fmt: skip


def record_run(
    config: Config, run: RunMetrics, seconds: float, version: int | None = None
) -> list[str]:
    """Write or push the metrics of a finished run.

    Parameters
    ----------
    config : Config
    run : RunMetrics
    seconds : float
        Wall time of the run.
    version : int, optional
        Number of the current version.

    Returns
    -------
    list of str
        Errors, which must not stop a run.
    """
    metrics = config.metrics
    if metrics.textfile is None and metrics.pushgateway is None:
        return []
    troubles = []
    registry = _registry(config, run, seconds, version)
    if metrics.textfile is not None:
        from prometheus_client import write_to_textfile

        try:
            metrics.textfile.mkdir(parents=True, exist_ok=True)
            write_to_textfile(str(_path(config)), registry)
        except OSError as error:
            troubles.append(f"metrics.textfile ({metrics.textfile}): {error}")
    if metrics.pushgateway is not None:
        from prometheus_client import pushadd_to_gateway

        try:
            pushadd_to_gateway(
                metrics.pushgateway, "disagg", registry, grouping_key={"map": config.name}
            )
        except OSError as error:
            troubles.append(redacted(f"metrics.pushgateway ({metrics.pushgateway}): {error}"))
    return troubles


def _registry(
    config: Config, run: RunMetrics, seconds: float, version: int | None
) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry, Counter, Gauge

    registry = CollectorRegistry()
    before = _counted(config)

    def gauge(name: str, about: str, labels: tuple[str, ...] = ()) -> Any:
        return Gauge(f"disagg_{name}", about, ("map", *labels), registry=registry)

    runs = Counter("disagg_runs", "Runs by outcome", ("map", "outcome"), registry=registry)
    for each in OUTCOMES:
        runs.labels(config.name, each).inc(before.get(each, 0.0) + (each == run.outcome))
    now = time.time()
    gauge("last_run_timestamp_seconds", "When the last run ended").labels(config.name).set(now)
    good = gauge("last_good_run_timestamp_seconds", "When a run last ended well")
    if run.outcome in ("published", "unchanged", "finished", "superseded"):
        good.labels(config.name).set(now)
    elif "good" in before:
        good.labels(config.name).set(before["good"])
    gauge("last_run_seconds", "Wall time of the last run").labels(config.name).set(seconds)
    dead = gauge("alerts_failed", "Notifications of the last run that reached nobody")
    dead.labels(config.name).set(run.alerts_failed)
    took = gauge("stage_seconds", "Seconds of a stage in the last run", ("stage",))
    skipped = gauge("stage_skipped", "1 where a stage was up to date", ("stage",))
    for name, (stage_seconds, was_skipped) in run.stages.items():
        took.labels(config.name, name).set(0.0 if was_skipped else stage_seconds)
        skipped.labels(config.name, name).set(float(was_skipped))
    if version is not None:
        gauge("version", "Number of the current version").labels(config.name).set(version)
    measured = gauge("gate", "What a gate measured in the last run", ("gate",))
    for name, value in run.gates.items():
        measured.labels(config.name, name).set(value)
    return registry


def _counted(config: Config) -> dict[str, float]:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        text = _path(config).read_text(encoding="utf-8")
    except (OSError, AttributeError):
        return {}
    found = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "disagg_runs_total":
                    found[sample.labels["outcome"]] = sample.value
                elif sample.name == "disagg_last_good_run_timestamp_seconds":
                    found["good"] = sample.value
    except ValueError:
        return {}
    return found


def _path(config: Config) -> Path:
    directory = config.metrics.textfile or config.output.dir / "work"
    return directory / f"disagg_{re.sub(r'[^A-Za-z0-9_]', '_', config.name)}.prom"
