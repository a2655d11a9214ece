"""Time and memory of the report: figures measured in docs/design/report.md and docs/plan.md."""

from __future__ import annotations

from pipeline.plan.sizes import Sizes

START_S = 1.6  # libraries of pictures, static ones
PIXEL_S, AREA_S = 2e-7, 5e-4  # a shown pixel, an area
HASH_BYTES_S = 6e8  # the catalogue reads every map
PIXELS = 12_000_000  # that a page shows at most, of all maps together
BASE_BYTES, PIXEL_BYTES = 540e6, 200  # libraries; a shown pixel of one map


def page_seconds(sizes: Sizes) -> float:
    """Return the seconds of the report stage: one thread draws the page."""
    n_map = sizes.n_maps
    drawn = n_map * _shown(sizes) * PIXEL_S + sizes.n_areas * AREA_S
    return START_S + drawn + sizes.bytes["maps"] / HASH_BYTES_S


def page_bytes(sizes: Sizes) -> float:
    """Return the memory of the report stage, bytes."""
    return BASE_BYTES + PIXEL_BYTES * _shown(sizes)


def _shown(sizes: Sizes) -> float:
    """Return the pixels of one map that a page shows."""
    return min(float(sizes.grid.n_pix), PIXELS / max(sizes.n_maps, 1))
