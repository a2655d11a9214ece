"""One BLAS thread for each test process, set before NumPy is imported: more of them only spin."""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module", autouse=True)
def _short_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Shorten runs of all stages, but of benchmarks, and modules about what is shortened."""
    from tests.quick import shorten

    with pytest.MonkeyPatch.context() as patch:
        whole = "benchmarks" in request.path.parts
        if not getattr(request.module, "WHOLE_RUNS", whole):
            shorten(patch)
        yield
