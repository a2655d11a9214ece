"""Hooks of MkDocs: links out of docs/, lists as GitHub reads them, equations, the navigation."""

from __future__ import annotations

import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
# Pages of the repository that are none of docs/, and where the site has them.
OUTSIDE = {"README.md": "readme.md", "examples/chap/README.md": "example-chap.md"}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
_EQUATION = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/, and give every page without a place one."""
    for path in OUTSIDE:
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, OUTSIDE[path], content=_relinked(text, path)))
    named = set(_leaves(config.nav))
    left = sorted(
        file.src_uri
        for file in files.documentation_pages()
        if file.src_uri not in named and file.inclusion.is_included()
    )
    notes = [page for page in left if page.startswith("design/")]
    more = [page for page in left if page not in notes]
    config.nav += [
        {name: pages} for name, pages in (("More", more), ("Design notes", notes)) if pages
    ]
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Mend what Python-Markdown and the site read otherwise than GitHub."""
    path = page.file.src_uri
    text = markdown if path in OUTSIDE.values() else _relinked(markdown, f"docs/{path}")
    return _spaced(text)


def on_page_content(html: str, **_: Any) -> str:
    """Turn equations into MathML, which browsers draw without a script."""

    def drawn(found: re.Match[str]) -> str:
        latex = found[3].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        if found[1] == "span":
            return str(convert(latex))
        # It scrolls where it is wider than the screen: the keyboard has to reach it.
        return str(convert(latex, display="block")).replace("<math", '<math tabindex="0"', 1)

    return _EQUATION.sub(drawn, html)


def on_post_page(output: str, **_: Any) -> str:
    """Name the theme's dialog and landmarks, for those who hear the page."""
    output = output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    return output.replace(
        '<nav class="md-path" aria-label="Navigation"', '<nav class="md-path" aria-label="Path"'
    )


def _leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [leaf for each in inner for leaf in _leaves(each)]


def _relinked(text: str, path: str) -> str:
    """Lead links of a page at ``path`` of the repository to pages of the site, or drop them."""
    at = posixpath.dirname(OUTSIDE.get(path) or path.removeprefix("docs/"))

    def mended(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), found[3]))
        if target in OUTSIDE:
            inside = OUTSIDE[target]
        elif target.startswith("docs/"):
            inside = target.removeprefix("docs/")
        else:
            return found[2]  # code and data are no part of the site
        shown = _title(target) if re.fullmatch(r"[\w/.-]+\.md", found[2]) else found[2]
        return f"{found[1]}[{shown}]({posixpath.relpath(inside, at or '.')}{found[4] or ''})"

    return _LINK.sub(mended, text)


@cache
def _title(path: str) -> str:
    """Return the title of a page: it says more than the name of its file."""
    found = re.search(r"^# (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else path


def _spaced(text: str) -> str:
    """Put an empty line between a paragraph and a list or table that follows it at once."""
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        before = lines[-1] if lines else ""
        starts = re.match(r"\s*(?:[*-]|\d+\.) |\|", line)
        goes_on = not before.strip() or re.match(r"\s*(?:[*-]|\d+\.) |\||\s+\S", before)
        if starts and not fenced and not goes_on:
            lines.append("")
        fenced ^= line.lstrip().startswith("```")
        lines.append(line)
    return "\n".join(lines) + "\n"
