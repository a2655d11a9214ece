"""From the content of a page to its bytes: the template, the styles and the scripts in one file.

Names of areas come from files of others. The template escapes every text, data for the script are
JSON without ``<``, the script sets texts and no markup, and the page's own policy (Content Security
Policy) allows neither another script nor a request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from pipeline.core.json_values import jsonable
from pipeline.reporting.figures import Drawn
from pipeline.reporting.vendor import source

HERE = Path(__file__).parent
_IMAGE = re.compile(r"[^;{}]*url\([^)]*\);?")
_MAP = re.compile(r"\n?//# sourceMappingURL=\S+\s*$")


def render(content: Mapping[str, Any], drawn: Sequence[Drawn], data: Mapping[str, Any]) -> bytes:
    """Return the page.

    Parameters
    ----------
    content : mapping
        Of the template.
    drawn : sequence of Drawn
        Static pictures.
    data : mapping
        JSON-able: what the script draws maps from.

    Returns
    -------
    bytes
        UTF-8.
    """
    scripts = [_script("leaflet/leaflet.js"), _script("report.js")]
    styles = [_style("leaflet/leaflet.css"), _style("report.css")]
    page = _template("report.html.j2").render(
        **content,
        pictures={each.key: each for each in drawn},
        maps=data,
        data=Markup(script_json(data)),
        scripts=[Markup(text) for text in scripts],
        styles=[Markup(text) for text in styles],
        policy=policy(scripts),
        library=source(),
        licence=(HERE / "static" / "leaflet" / "LICENSE").read_text(encoding="utf-8"),
    )
    return page.encode()


def render_still(
    name: str, content: Mapping[str, Any], drawn: Sequence[Drawn], styles: Sequence[str]
) -> bytes:
    """Return a page without scripts and maps, UTF-8.

    Parameters
    ----------
    name : str
        Of the template.
    content : mapping
        Of the template.
    drawn : sequence of Drawn
        Pictures.
    styles : sequence of str
        Names of style sheets.
    """
    page = _template(name).render(
        **content,
        pictures={each.key: each for each in drawn},
        styles=[Markup(_style(each)) for each in styles],
        policy=policy([]),
    )
    return page.encode()


def _template(name: str) -> Template:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_unbroken,
    )
    return environment.get_template(name)


def policy(scripts: Sequence[str]) -> str:
    """Return the page's policy: these scripts and no other, pictures inside it, no request."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    own = " ".join(f"'sha256-{each}'" for each in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {own}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def script_json(value: Any) -> str:
    """Return JSON that may stand in a script element: without ``<``, ``>``, ``&``."""
    text = json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _unbroken(value: Any) -> Any:
    """Keep a per cent sign on the line of its number."""
    return value.replace(" %", "\u00a0%") if type(value) is str else value


def _script(name: str) -> str:
    return _MAP.sub("", (HERE / "static" / name).read_text(encoding="utf-8"))


def _style(name: str) -> str:
    """Return a style sheet without its pictures, which would be requests; the page uses none."""
    return _IMAGE.sub("", (HERE / "static" / name).read_text(encoding="utf-8"))
