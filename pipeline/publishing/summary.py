"""What a run shows of itself elsewhere: a small picture, tables in Markdown, links."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from pipeline.config.schema import Config
from pipeline.evaluation.report import cell, evaluation_table, markdown_table
from pipeline.prediction.products import PREVIEW, is_product
from pipeline.publishing.publish import Publication, publish_dir

WIDTH_PX = 900


def picture(config: Config, width_px: int = WIDTH_PX) -> str | None:
    """Return ``preview.png``, made smaller, as a ``data:`` address; None where there is none."""
    from PIL import Image

    path = config.output.dir / PREVIEW.file
    if not path.is_file():
        return None
    with Image.open(path) as image:
        small = image.convert("RGB")
        small.thumbnail((width_px, width_px))
    held = io.BytesIO()
    small.save(held, "JPEG", quality=80, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(held.getvalue()).decode()}"


def page(config: Config, publication: Publication) -> str:
    """Write what a person on duty wants to see of a run, as Markdown: map, gates, scores, files."""
    image = picture(config)
    parts = [
        "" if image is None else f"![{config.name}]({image})",
        f"## Gates\n\n{gates_table(publication)}",
        f"## Evaluation\n\n{evaluation_table(config)}",
        f"## Files\n\n{outputs_list(config, publication)}",
    ]
    return "\n\n".join(part for part in parts if part)


def gates_table(publication: Publication) -> str:
    """Write what each gate asked, measured and said, as Markdown."""
    if not publication.checks:
        return "no gates are configured, or none was asked"
    rows = [
        [each.gate, each.asked, cell(each.value), "passed" if each.passed else "**not passed**"]
        for each in publication.checks
    ]
    return markdown_table(["gate", "asked", "measured", ""], rows)


def outputs_list(config: Config, publication: Publication) -> str:
    """List where the results are, as Markdown; as links where ``publish.url`` is given."""
    place, url = publication.directory, config.publish.url
    lines = []
    for path in sorted(place.glob("*")):
        if is_product(path.name):
            if url is not None and publication.version is not None:
                lines.append(f"* [{path.name}]({_address(url, publication, path)})")
            else:
                lines.append(f"* `{path}`")
    return "\n".join(lines)


def link(config: Config, publication: Publication) -> str | None:
    """Return the address of the version, for people; None without ``publish.url``."""
    if config.publish.url is None or publication.version is None:
        return None
    return f"{config.publish.url.rstrip('/')}/versions/{publication.version}/"


def headline(config: Config, publication: Publication) -> str:
    """Say in one line what became of a run."""
    of = config.name + (f", {config.period}" if config.period else "")
    if publication.status == "held":
        return f"{of}: finished, not fit to publish: {'; '.join(publication.reasons)}"
    more = f" ({publication.reasons[0]})" if publication.reasons else ""
    words = {
        "published": "published as",
        "unchanged": "nothing new, readers have",
        "superseded": "kept as",
    }
    where = publish_dir(config)
    return f"{of}: {words[publication.status]} {publication.version} in {where}{more}"


def _address(url: str, publication: Publication, path: Path) -> str:
    return f"{url.rstrip('/')}/versions/{publication.version}/{path.name}"
