"""One BLAS thread for each test process, set before NumPy is imported: more of them only spin."""

import gc
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Leave modules and tests out of what is walked for garbage: a twentieth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _short_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Shorten runs of all stages, but of benchmarks, and modules about what is shortened."""
    from tests.quick import shorten

    with pytest.MonkeyPatch.context() as patch:
        whole = "benchmarks" in request.path.parts
        if not getattr(request.module, "WHOLE_RUNS", whole):
            shorten(patch)
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium of the system.

    Of one module: while it is open an event loop runs here, which flows would take for theirs.
    """
    if CHROMIUM is None:
        pytest.skip("no Chromium; .ci/run installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()
