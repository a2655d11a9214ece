"""What a run shows in the Prefect UI: log lines, progress, a picture, tables, links."""

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
from pipeline.publishing import summary as cards
from pipeline.publishing.publish import Publication
from pipeline.updates.map_run import Percent, slug, title


def progress_of(config: Config) -> Percent:
    """Return the progress that a stage reports to: log lines, an artifact for each long loop."""
    logger = get_run_logger()
    name = title(config)

    def start(what: str) -> Any:
        return create_progress_artifact(
            0.0, key=slug(config.name, what), description=f"{name}: {what}"
        )

    def update(handle: Any, percent: float, note: str) -> None:
        update_progress_artifact(handle, percent, description=f"{name}: {note}")

    return Percent(name, logger.info, harmless(start), harmless(update))


def show_run(config: Config, publication: Publication) -> None:
    """Make the artifacts of a finished run."""
    key = functools.partial(slug, config.name)
    say = cards.headline(config, publication)
    markdown = harmless(create_markdown_artifact)
    # The picture in Markdown: an image artifact would print its whole data: address below it.
    page = cards.page(config, publication)
    markdown(markdown=page, key=key("map"), description=say)
    table = evaluation_table(config)
    markdown(markdown=table, key=key("evaluation"), description=say)
    address = cards.link(config, publication)
    if address is not None:
        harmless(create_link_artifact)(link=address, key=key("link"), description=say)


def harmless(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let a call to the server fail with a warning: what is shown must not stop what is done."""

    @functools.wraps(call)
    def guarded(*args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except Exception as error:
            get_run_logger().warning("not shown: %s", error)
            return None

    return guarded
