"""The page in headless Chromium: widths, controls, requests, accessibility, places, print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import rasterio
import shapely
from PIL import Image
from shapely.geometry import Point

from tests.pipeline.reporting.conftest import change_raster

WHOLE_RUNS = True

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore::ResourceWarning")]
SIZES = {"phone": (390, 844), "desktop": (1280, 800)}


@pytest.fixture
def visit(browser) -> Iterator[Any]:
    """Open a page and keep what it says and asks for; both must be nothing."""
    contexts, said = [], []

    def go(path: Path, width: int = 1280, height: int = 800, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        address = path.as_uri()
        page.on(
            "request",
            lambda r: None if r.url == address or r.url.startswith("data:") else said.append(r.url),
        )
        page.goto(address)
        page.wait_for_selector("html[data-ready=yes]", timeout=20_000)
        return page

    yield go
    assert said == []
    for context in contexts:
        context.close()


@pytest.mark.parametrize("size", SIZES)
def test_every_control_works_at_both_widths(finished, visit, size):
    page = visit(finished.out / "report.html", *SIZES[size])
    # Nothing is wider than the screen.
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    first = page.locator("#first")
    assert first.locator(".answers strong").count() == 1
    top = page.locator("#map-first .plane").bounding_box()
    assert top["y"] + 0.7 * top["height"] < SIZES[size][1]  # the map is on the first screen

    for figure in ("map-first", "map-left", "map-right"):
        choice = page.locator(f"#{figure}-layer")
        names = choice.locator("option").evaluate_all("all => all.map(each => each.value)")
        assert len(names) >= 9
        legends = set()
        for name in names:
            choice.select_option(name)
            legends.add(page.locator(f"#{figure} .legend").inner_text())
        assert len(legends) >= 5
        choice.select_option(names[0])
        before = page.locator(f"#{figure} img.raster").bounding_box()["width"]
        page.locator(f"#{figure} .leaflet-control-zoom-in").click()
        page.wait_for_timeout(400)
        after = page.locator(f"#{figure} img.raster").bounding_box()["width"]
        assert after == pytest.approx(2 * before, rel=0.01)
        page.locator(f"#{figure} .leaflet-control-zoom-out").click()
        page.wait_for_timeout(400)

    for side in ("left", "right"):
        slider = page.locator(f"#map-{side}-opacity")
        slider.focus()
        for _ in range(10):
            page.keyboard.press("ArrowLeft")
        opacity = page.locator(f"#map-{side} img.raster").evaluate("e => e.style.opacity")
        assert float(opacity) == pytest.approx(0.5)
        page.locator(f"#map-{side}-borders").uncheck()
    views = page.evaluate("disaggMaps.slice(1).map(m => [m.getZoom(), m.getCenter().lat])")
    assert views[0] == pytest.approx(views[1])

    rows = page.locator("#table-areas tbody tr")
    page.locator("#search-areas").fill("hacked")
    assert rows.locator("visible=true").count() == 1
    assert page.locator("#shown-areas").inner_text() == "1 of 24 rows"
    rows.locator("visible=true").locator("button").click()
    assert "window.hacked=1" in page.locator("#facts h3").inner_text()
    page.locator("#search-areas").fill("")
    for head in page.locator("#table-areas thead button").all():
        for order in ("ascending", "descending"):
            head.click()
            assert head.locator("..").get_attribute("aria-sort") == order
    last = page.locator("#table-areas tbody tr td:last-child")
    values = [float(v) for v in last.evaluate_all("all => all.map(e => e.dataset.v)") if v]
    assert values == sorted(values, reverse=True)

    page.locator("#area").select_option(index=3)
    assert page.locator("#facts dd").count() >= 5
    page.locator("#area").select_option("")
    assert page.locator("#facts dd").count() == 0
    for summary in page.locator("summary").all():
        summary.click()
    assert page.locator("details[open]").count() == page.locator("details").count() == 3
    for link in page.locator("nav a, #first a").all():
        link.click()
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_serious(finished, visit, size):
    from axe_playwright_python.sync_playwright import Axe

    page = visit(finished.out / "report.html", *SIZES[size])
    page.locator("#area").select_option(index=1)
    found = Axe().run(page).response["violations"]
    grave = [
        (each["id"], [node["html"][:120] for node in each["nodes"][:3]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert grave == []


@pytest.mark.parametrize("size", SIZES)
def test_a_slider_runs_through_the_periods(quarters, visit, size):
    from axe_playwright_python.sync_playwright import Axe

    page = visit(quarters / "report.html", *SIZES[size])
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    slider = page.locator("#map-times").get_by_role("slider", name="Period")
    told = page.locator("#map-times-told")
    assert slider.bounding_box()["width"] > 100
    assert told.inner_text() == "2023-Q2"  # the latest, and no forecast
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert told.inner_text() == "2023-Q3 (forecast)"
    assert slider.get_attribute("aria-valuetext") == "2023-Q3 (forecast)"
    page.keyboard.press("Home")
    assert told.inner_text() == "2022-Q1"
    choice = page.locator("#map-times").get_by_role("combobox")
    choice.select_option(label="Pixels: mean rate")
    assert told.inner_text() == "2022-Q1"  # the period stays
    image = page.locator("#map-times img.raster")
    first = image.get_attribute("src")
    slider.focus()
    page.keyboard.press("End")
    assert told.inner_text() == "2023-Q3 (forecast)"
    assert image.get_attribute("src") != first
    assert "cases per 1,000 people" in page.locator("#map-times .legend").inner_text()
    plane = page.locator("#map-times .plane").bounding_box()
    page.mouse.move(plane["x"] + plane["width"] / 2, plane["y"] + plane["height"] / 2)
    assert page.locator("#map-times .here").inner_text().startswith("Pixel: ")
    page.locator("#table-areas").get_by_role("button", name="over time").click()
    grave = [
        each["id"]
        for each in Axe().run(page).response["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert grave == []


def test_a_pixel_is_at_its_place_and_in_its_area(finished, copied, visit, tmp_path):
    from playwright.sync_api import expect

    areas = gpd.read_file(copied / "areas.gpkg", layer="areas").set_index("area_id")
    shapes = areas.geometry.to_numpy()
    with rasterio.open(copied / "rate_mean.tif") as source:
        values = source.read(1)
        rows, columns = np.nonzero(np.isfinite(values))
        centres = np.transpose(source.xy(rows, columns))
    # A pixel well inside an area, far from the middle of the map.
    depth = [shapely.distance(shapely.boundary(shapes), Point(xy)).min() for xy in centres]
    inside = [n for n in np.argsort(depth)[::-1] if areas.contains(Point(centres[n])).any()]
    far = max(inside[:40], key=lambda n: np.hypot(*(np.subtract(centres[n], centres[inside[0]]))))
    row, column, (lon, lat) = int(rows[far]), int(columns[far]), centres[far]
    change_raster(copied / "rate_mean.tif", row, column, 1000.0)
    finished.report(copied)
    page = visit(copied / "report.html")
    page.locator("#map-left").scroll_into_view_if_needed()
    page.locator("#map-left-borders").uncheck()
    box = page.locator("#map-left .plane").bounding_box()
    shot = tmp_path / "map.png"
    page.mouse.move(0, 0)
    page.locator("#map-left .plane").screenshot(path=shot)
    seen = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    # One pixel is black-violet (the last colour), everything else the first colour or empty.
    dark = np.argwhere((seen.sum(axis=2) < 120) & (np.abs(np.diff(seen, axis=2)).max(axis=2) > 12))
    y, x = dark.mean(axis=0)

    # The picture shows the pixel in its row and column; the borders, which went another way (from
    # polygons in degrees), have it in the area that geopandas says.
    picture = page.locator("#map-left img.raster").bounding_box()
    height, width = values.shape
    found_column = (box["x"] + x + 0.5 - picture["x"]) / picture["width"] * width
    found_row = (box["y"] + y + 0.5 - picture["y"]) / picture["height"] * height
    assert (found_row, found_column) == pytest.approx((row + 0.5, column + 0.5), abs=0.5)
    page.mouse.move(box["x"] + x, box["y"] + y)
    wanted = areas[areas.contains(Point(lon, lat))]["name"].item()
    expect(page.locator("#facts h3")).to_have_text(wanted)
    expect(page.locator("#map-left .leaflet-tooltip b")).to_have_text(wanted)
    # The value of the pixel under the pointer, of another one an instant later, and of none.
    said = page.locator("#map-left .here")
    expect(said).to_have_text(re.compile("^Pixel: \u2265 "))
    page.mouse.move(box["x"] + x + 3 * picture["width"] / width, box["y"] + y)
    other = values[row, column + 3]
    expect(said).to_have_text(re.compile("^Pixel: 0 [(]" if np.isfinite(other) else "no value$"))
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] - 5)
    expect(said).to_have_text("")


def test_the_page_prints_with_static_maps(finished, visit, tmp_path):
    page = visit(finished.out / "report.html")
    page.emulate_media(media="print")
    assert not page.locator("#map-left").is_visible()
    assert page.locator(".static img").first.is_visible()
    printed = page.pdf(format="A4", print_background=True)
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Type /Page\n") >= 3
    assert len(printed) > 50_000


def test_without_scripts_the_static_maps_are_there(finished, quarters, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    for path in (finished.out, quarters):
        page.goto((path / "report.html").as_uri())
        assert page.locator(".static img").first.is_visible()
        assert not page.locator("#map-first").is_visible()
    assert not page.locator("#map-times").is_visible()
    assert page.get_by_text("The latest map is at the top of the page").is_visible()
    assert page.locator("#table-areas svg").first.is_visible()
    context.close()


def test_the_policy_stops_a_script_that_a_mistake_would_let_in(finished, browser, tmp_path):
    page = finished.page().replace("<footer>", "<script>window.hacked=3</script><footer>")
    page = page.replace("<footer>", "<img src='http://127.0.0.1:9/x' alt=''><footer>")
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    context = browser.new_context()
    opened = context.new_page()
    refused: list[str] = []
    opened.on("console", lambda message: refused.append(message.text))
    opened.goto((tmp_path / "page.html").as_uri())
    opened.wait_for_selector("html[data-ready=yes]")
    assert opened.evaluate("window.hacked") is None
    assert len([each for each in refused if "Content Security Policy" in each]) == 2
    context.close()
