"""A run that looks after itself: it retries what is transient, writes metrics, and notifies.

The command line uses it, so that a cron job or a batch system sees what a flow of Prefect sees. The
flows retry by Prefect, and share all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from geo.core.addresses import redacted
from geo.core.text_safety import one_line_text
from pipeline.config.context import Updating
from pipeline.config.schema import Config
from pipeline.core.progress import Progress
from pipeline.publishing.metrics import RunMetrics, recorded_metrics
from pipeline.publishing.notify import send_notification
from pipeline.run.fingerprints import Fingerprints
from pipeline.run.runner import StageResult, run_stages, summarise_stages
from pipeline.updates.arrivals import load_watched
from pipeline.updates.map_run import error_message, title
from pipeline.updates.retry import RetryPolicy

if TYPE_CHECKING:
    from pipeline.publishing.publish import Publication

HELD = "Finished, not fit to publish"
Result = TypeVar("Result")


def notify_end(
    config: Config, event: Literal["failure", "gate"], outcome: str, text: str
) -> list[str]:
    """Send a notification of a run that ended badly; return errors."""
    return send_notification(config, event, f"{title(config)}: {outcome}", text)


@dataclass
class Attended:
    """A run in progress.

    Attributes
    ----------
    command : str
        Name of the run in notifications.
    log : callable
        Receives a line of what the run does about its troubles.
    warn : callable
        Receives a line of an alert, or metrics, that reached nobody: never hidden.
    config : Config or None
        Of the map, as far as it could be read.
    metrics : RunMetrics
    """

    command: str
    log: Callable[[str], None]
    warn: Callable[[str], None]
    config: Config | None = None
    metrics: RunMetrics = field(default_factory=RunMetrics)

    def retried(self, function: Callable[[], Result]) -> Result:
        """Call a function, again after transient errors, as ``update`` says."""
        policy = RetryPolicy() if self.config is None else RetryPolicy.of(self.config)

        def on_retry(error: Exception, wait_s: float, number: int) -> None:
            told = error_message(error) or f"{type(error).__name__}: {error}"
            why = redacted(one_line_text(told))  # an address may hold a secret
            self.log(f"{why}: retry {number} of {policy.retries} in {wait_s:.0f} s")

        return policy.call(function, on_retry)

    def run_stages(
        self,
        config: Config,
        names: Sequence[str],
        progress: Progress,
        *,
        force: bool,
        on_start: Callable[[str], None],
        fingerprints: Fingerprints,
        update: Updating | None = None,
    ) -> list[StageResult]:
        """Run stages; after a transient error, those that have not finished."""
        done: dict[str, StageResult] = {}

        def finish(result: StageResult) -> None:
            done[result.name] = result
            self.metrics.add(summarise_stages([result])[0])

        def attempt() -> None:
            rest = [name for name in names if name not in done]
            run_stages(
                config,
                rest,
                progress,
                force=force,
                update=update,
                on_start=on_start,
                on_done=finish,
                fingerprints=fingerprints,
            )

        self.retried(attempt)
        self.metrics.end_stages()
        return [done[name] for name in names]

    def published(self, config: Config, publication: Publication) -> None:
        """Add the result of publishing; notify if a gate held the map back."""
        from pipeline.publishing.summary import headline

        self.metrics.end(publication)
        if publication.status == "held":
            self.notify(config, "gate", HELD, headline(config, publication))

    def notify(
        self, config: Config, event: Literal["failure", "gate"], outcome: str, text: str
    ) -> None:
        """Send a notification; tell, and count, what did not reach anybody."""
        for trouble in notify_end(config, event, outcome, text):
            self.metrics.alerts_failed += 1
            self.warn(trouble)


@contextmanager
def attended(
    path: Path,
    period: str | None,
    command: str,
    log: Callable[[str], None],
    warn: Callable[[str], None],
) -> Iterator[Attended]:
    """Write metrics and notify at the end of a run, also where its inputs are bad.

    Parameters
    ----------
    path : Path
        The configuration. If it cannot be read, nobody knows whom to notify.
    period : str or None
    command : str
        Name of the run in notifications.
    log, warn : callable
        See :class:`Attended`.
    """
    found = None
    with suppress(Exception):  # what is wrong with it, the run itself reports
        found = load_watched(path)
    if found is None:
        yield Attended(command, log, warn)
        return
    if period is not None:
        found = found.model_copy(update={"period": period})
    run = Attended(command, log, warn, found)
    with recorded_metrics(found, warn) as run.metrics:  # which count alerts that reach nobody
        try:
            yield run
        except Exception as error:
            told = error_message(error) or f"a defect ({type(error).__name__}): {error}"
            text = f"{command}: {redacted(told)}"
            run.notify(run.config or found, "failure", "Failed", text)
            raise
