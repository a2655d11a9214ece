"""The page in a browser, on a desktop and a phone: it fits, and axe finds nothing grave."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.cli.main import main
from tests.pipeline.series_inputs import write_inputs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; .ci/run installs it")
def test_the_page_fits_and_is_accessible(tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    config, html = write_inputs(tmp_path), tmp_path / "page.html"
    config.write_text(config.read_text().replace("people.tif", "people.tif, density: true"))
    assert main(["check", str(config), "--html", str(html), "--quiet"]) in (0, 2)
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in (1280, 390):
            page = chromium.new_page(viewport={"width": width, "height": 844})
            asked: list[str] = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.on("console", lambda message, asked=asked: asked.append(message.text))
            page.goto(html.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert [each for each in asked if not each.startswith(("file:", "data:"))] == []
            found = Axe().run(page).response["violations"]
            assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == []
        chromium.close()
