"""Summary of a run for other systems: a thumbnail, Markdown tables, links."""

from __future__ import annotations

import base64
import io
import os
from urllib.parse import quote

from geo.core.text_safety import markdown_text
from pipeline.comparison.outputs import FILES as CHANGE
from pipeline.config.schema import Config
from pipeline.evaluation.report import cell, evaluation_table, markdown_table
from pipeline.products.products import PREVIEW, is_product
from pipeline.publishing.publish import Publication, publish_dir
from pipeline.storage.location import Location

WIDTH_PX = 900


def picture(config: Config, width_px: int = WIDTH_PX) -> str | None:
    """Return a thumbnail of ``preview.png`` as a ``data:`` URL, or None."""
    from PIL import Image

    path = config.output.dir / PREVIEW.file
    if not path.is_file():
        return None
    with Image.open(path) as image:
        small = image.convert("RGB")
        small.thumbnail((width_px, width_px))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def page(config: Config, publication: Publication) -> str:
    """Return a run's map, gates, scores and files as Markdown."""
    image = picture(config)
    parts = [
        "" if image is None else f"![{markdown_text(config.name)}]({image})",
        f"## Gates\n\n{gates_table(publication)}",
        change_text(publication),
        f"## Evaluation\n\n{evaluation_table(config)}",
        f"## Files\n\n{outputs_list(config, publication)}",
    ]
    return "\n\n".join(part for part in parts if part)


def gates_table(publication: Publication) -> str:
    """Return each gate's threshold, value and result as a Markdown table."""
    if not publication.checks:
        return "no gate was checked"
    rows = [
        [
            markdown_text(each.gate),
            each.asked,
            cell(each.value),
            "passed" if each.passed else "**not passed**",
        ]
        for each in publication.checks
    ]
    return markdown_table(["gate", "required", "measured", ""], rows)


def change_text(publication: Publication) -> str:
    """Return what changed from the version before as Markdown; empty without a comparison."""
    about = publication.comparison
    if about is None:
        return ""
    text = about.get("headline") or f"not compared: {about['skipped']}"
    return f"## Change from {about['with']}\n\n{markdown_text(text)}"


def outputs_list(config: Config, publication: Publication) -> str:
    """Return a Markdown list of the results; with links if ``publish.url`` is set."""
    place, url = publication.directory, config.publish.url
    lines = []
    names = place.children() if isinstance(place, Location) else os.listdir(place)
    for name in sorted(names):
        if is_product(name) or (name in CHANGE and not name.endswith(".qml")):
            if url is not None and publication.version is not None:
                lines.append(f"* [{name}]({link(config, publication)}{quote(name)})")
            else:
                lines.append(f"* `{place / name}`")
    return "\n".join(lines)


def link(config: Config, publication: Publication) -> str | None:
    """Return the web address of the version; None without ``publish.url``."""
    if config.publish.url is None or publication.version is None:
        return None
    return f"{config.publish.url.rstrip('/')}/versions/{publication.directory.name}/"


def headline(config: Config, publication: Publication) -> str:
    """Return the result of a run in one line."""
    name = config.name + (f", {config.period}" if config.period else "")
    if publication.status == "held":
        return f"{name}: finished, but did not pass its gates: {'; '.join(publication.reasons)}"
    if publication.status == "unchanged" and publication.reasons:
        return f"{name}: not published again: {publication.reasons[0]}"
    more = f" ({publication.reasons[0]})" if publication.reasons else ""
    words = {
        "published": "published as",
        "unchanged": "unchanged, the current version is",
        "superseded": "kept as",
    }
    where, change = publish_dir(config), publication.comparison or {}
    if "headline" in change:
        more += f"; from {change['with']}: {change['headline']}"
    done = f"{words[publication.status]} {publication.version} in {where}{more}"
    return f"{name}: {done}; {publication.verdict}"
