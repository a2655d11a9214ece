"""The site of the documentation: built without a warning, then read in Chromium from the disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["index", "first-map", "statistician", "choose", "glossary"]
SIZES = {"phone": (390, 844), "desktop": (1280, 800)}

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a warning, such as of a link that leads nowhere, is an error."""
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture
def visit(site: Path, browser: Any) -> Iterator[Any]:
    """Open a page; it may say nothing, and ask for nothing but files."""
    contexts, said = [], []

    def go(name: str, size: str = "desktop", scheme: str = "light") -> Any:
        width, height = SIZES[size]
        viewport = {"width": width, "height": height}
        contexts.append(browser.new_context(viewport=viewport, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on(
            "request",
            lambda r: None if r.url.startswith(("file:", "data:")) else said.append(r.url),
        )
        page.goto((site / f"{name}.html").as_uri())
        return page

    yield go
    assert said == []
    for context in contexts:
        context.close()


def test_the_navigation_leads_to_every_page(site: Path) -> None:
    links = re.findall(r'<a href="([^"#]+)"', (site / "index.html").read_text(encoding="utf-8"))
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")} - {"404.html"}
    assert len(pages) > 80
    assert pages - set(links) == set()


def test_no_page_loads_from_an_address(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        loads = re.findall(r'<(?:script|img|iframe|link)\b[^>]*?(?:src|href)="([^"]+)"', text)
        assert [each for each in loads if re.match(r"(?:https?:)?//", each)] == [], path


def test_equations_are_drawn_by_the_browser_itself(site: Path) -> None:
    text = (site / "statistician.html").read_text(encoding="utf-8")
    assert text.count("<math") > 40
    assert "arithmatex" not in text
    assert not re.search(r"\$[^<$]*\$", re.sub(r"<code.*?</code>", "", text, flags=re.DOTALL))


def test_the_search_finds_a_page(visit: Any) -> None:
    page = visit("index")
    page.locator("input.md-search__input").click()
    page.keyboard.type("relative standard deviation")
    page.wait_for_selector(".md-search-result__item", timeout=30_000)
    found = page.locator(".md-search-result__item").all_inner_texts()
    assert any("Glossary" in each for each in found)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        ("desktop", "light"),
        ("phone", "dark"),
        pytest.param("desktop", "dark", marks=pytest.mark.slow),
        pytest.param("phone", "light", marks=pytest.mark.slow),
    ],
)
def test_pages_are_readable(visit: Any, size: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    wrong = []
    for name in PAGES:
        page = visit(name, size, scheme)
        if page.evaluate("document.documentElement.scrollWidth") > SIZES[size][0]:
            wrong.append((name, "wider than the screen", []))
        found = Axe().run(page, options={"preload": False}).response["violations"]
        wrong += [(name, e["id"], [n["html"][:160] for n in e["nodes"][:3]]) for e in found]
    assert wrong == []
