"""Output of a run in the Prefect UI: log lines, progress, a picture, tables, links."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.logging import get_run_logger

from pipeline.config.schema import Config
from pipeline.evaluation.report import evaluation_table
from pipeline.publishing import summary
from pipeline.publishing.publish import Publication
from pipeline.updates.map_run import PercentProgress, slug, title


def progress_of(config: Config) -> PercentProgress:
    """Return a stage's progress: log lines, and an artifact for each long task."""
    logger = get_run_logger()
    name = title(config)

    def start(what: str) -> Any:
        return create_progress_artifact(
            0.0, key=slug(config.name, what), description=f"{name}: {what}"
        )

    def update(handle: Any, percent: float, note: str) -> None:
        update_progress_artifact(handle, percent, description=f"{name}: {note}")

    return PercentProgress(name, logger.info, warn_on_error(start), warn_on_error(update))


def show_run(config: Config, publication: Publication) -> None:
    """Create the artifacts of a finished run."""
    key = functools.partial(slug, config.name)
    headline = summary.headline(config, publication)
    markdown = warn_on_error(create_markdown_artifact)
    # An image artifact would print the whole data: URL below the picture; Markdown does not.
    page = summary.page(config, publication)
    markdown(markdown=page, key=key("map"), description=headline)
    table = evaluation_table(config)
    markdown(markdown=table, key=key("evaluation"), description=headline)
    address = summary.link(config, publication)
    if address is not None:
        warn_on_error(create_link_artifact)(link=address, key=key("link"), description=headline)


def warn_on_error(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call to the server: an error becomes a warning, so that the run continues."""

    @functools.wraps(call)
    def guarded(*args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except Exception as error:
            get_run_logger().warning("cannot show this in the Prefect UI: %s", error)
            return None

    return guarded
