"""Every page of docs/ is reached by links from its index, and every link leads to a page."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
_LINK = re.compile(r"\]\(([^)#:\s]+\.md)(?:#[^)]*)?\)")


def _links(page: Path) -> set[Path]:
    found = _LINK.findall(page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve() for link in found}


def test_every_page_is_reached_from_the_index() -> None:
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            assert page.is_file(), page
            reached.add(page)
            waiting += [each for each in _links(page) if each.is_relative_to(DOCS)]
    # News fragments go into the change log.
    pages = {page for page in DOCS.rglob("*.md") if not page.name.startswith("+")}
    assert pages - reached == set()
    assert DOCS / "index.md" in _links(DOCS.parent / "README.md")
