"""A few failures of publishing on an object store, provoked for real, and their judges."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.publishing.versions import current_version
from pipeline.storage.location import Location, Storage
from tests.faults.kinds import Trial, run_trial
from tests.faults.publishing import PATH, StoreBench
from tests.faults.reader import Reader
from tests.pipeline.storage.s3_server import KEYS

pytestmark = [pytest.mark.ci, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreBench]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():  # which the bench sets for good
            patch.setenv(name, value)
        with StoreBench(tmp_path_factory.mktemp("f"), reader=False) as bench:
            yield bench


@pytest.mark.parametrize(
    "kind",
    [
        "publisher killed",
        "two publishers",
        "requests dropped",
        "store without conditions",
    ],
)
def test_provoked(bench: StoreBench, kind: str) -> None:
    trial = run_trial(bench, kind, [7])
    assert not trial.wrong, f"{trial.kind}, {trial.moment}: " + "; ".join(trial.wrong)
    assert trial.moment, "the moment never came"


def test_the_judges_see_what_is_damaged_mixed_or_lost(bench: StoreBench) -> None:
    place = Location(f"s3:/{PATH}", Storage(bench.endpoint))
    now = current_version(place).path
    reader = Reader(bench.endpoint, PATH)
    reader.read()
    assert (reader.counts["reads"], reader.wrong) == (1, [])
    for name in ("areas.csv", "version.json"):
        kept = (now / name).read()
        (now / name).write(kept.replace(b"a", b"b"))
        trial = Trial("")
        bench.check(trial)
        reader.read()
        assert any(name in line for line in trial.wrong), trial.wrong
        assert any(name in line for line in reader.wrong), reader.wrong
        (now / name).write(kept)
        reader.wrong.clear()
    assert reader.counts["not whole"] == 2
    bench.seen["v9999"] = "a fingerprint"
    trial = Trial("")
    bench.check(trial)
    assert trial.wrong == ["v9999 was published and is lost"]
    del bench.seen["v9999"]
