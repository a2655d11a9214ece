"""Formats on disk: what each version wrote is read, migrated or made again, and never lost."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cli.main import main
from pipeline.publishing.versions import list_versions, open_versions
from pipeline.storage.local_commit import read_marker
from pipeline.store.bag_store import BagStore
from pipeline.store.bag_writer import FORMAT, VERSION
from pipeline.store.earlier_store import lacks_areas, migrate_store
from pipeline.updates import migrate
from tests.archives import unpack


@pytest.fixture
def country(earlier: Path) -> Path:
    """Return the country that 0.1.0 mapped and published."""
    return earlier / "country"


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def unmoved(country: Path) -> dict[str, str]:
    """Return the digests of all but the bag store, which is brought to this version."""
    found = digests(country)
    return {name: d for name, d in found.items() if not name.startswith("out/work/bags.zarr/")}


def run(capsys: Any, *words: object) -> tuple[int, Any, list[str]]:
    status = main([*map(str, words), "--json"])
    out, err = capsys.readouterr()
    return status, json.loads(out), err.splitlines()


def states(found: dict[str, Any]) -> dict[str, str]:
    return {each["format"]: each["state"] for each in found["found"]}


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_all_that_0_1_0_wrote_is_read(country: Path, capsys: Any) -> None:
    work = country / "out" / "work" / "checkpoint"
    work.mkdir()
    (kept,) = (country.parent / "checkpoint").glob("epoch-*.npz")
    (work / kept.name).write_bytes(kept.read_bytes())
    before = digests(country)
    for options, state in ((("--dry-run",), "to migrate"), ((), "migrated"), ((), "current")):
        status, found, _ = run(capsys, "migrate", country / "disagg.yaml", *options)
        assert status == 0
        assert states(found) == {
            "disagg-bags": state,
            "disagg-grid": "current",
            "disagg-model": "current",
            "disagg-checkpoint": "current",
            "disagg-run": "current",
            "disagg-version": "current",
        }
    after = digests(country)
    changed = {name for name in (*before, *after) if before.get(name) != after.get(name)}
    assert all(name.startswith("out/work/bags.zarr/") for name in changed)


def test_two_stores_of_version_2_become_one(tmp_path: Path) -> None:
    """Pixels, weights and responses are those of before, the areas without a count among them."""
    unpack(Path(__file__).parent / "stores_of_version_2.tar.xz", tmp_path)
    path = tmp_path / "bags.zarr"
    before = BagStore.open(path), BagStore.open(tmp_path / "areas_without_counts.zarr")
    rows, ids = [store.read_rows(0, store.n_pix) for store in before], before[0].ids + before[1].ids
    assert before[0].in_training.all()
    assert not before[1].in_training.any()
    assert lacks_areas(before[0].pixels)
    migrate_store(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bags.zarr"]
    store = BagStore.open(path)
    assert store.ids == ids
    assert store.fingerprint == before[0].fingerprint
    np.testing.assert_array_equal(store.in_training, [True] * 7 + [False] * 2)
    np.testing.assert_array_equal(store.training.y, before[0].y)
    np.testing.assert_array_equal(store.training.block_offsets, before[0].block_offsets)
    known = np.concatenate([each.known_exposure for each in before])
    np.testing.assert_array_equal(store.known_exposure, known)
    now = store.read_rows(0, store.n_pix)
    for name in ("x", "coords", "pixel"):
        parts = np.concatenate([getattr(each, name) for each in rows])
        np.testing.assert_array_equal(getattr(now, name), parts)
    np.testing.assert_allclose(
        now.weight, np.concatenate([each.weight for each in rows]), rtol=1e-15
    )
    assert read_marker(path, FORMAT, VERSION).version == VERSION


def test_every_format_is_looked_at() -> None:
    """A format that this disagg writes, and that `migrate` does not know, would be forgotten."""
    assert {each.name for each in migrate.FORMATS} == {
        "disagg-bags", "disagg-grid", "disagg-model", "disagg-checkpoint", "disagg-run",
        "disagg-version", "disagg-versions",
    }  # fmt: skip
    assert all(each.readable == tuple(sorted(each.readable)) for each in migrate.FORMATS)


@pytest.mark.parametrize("what", ["newer", "damaged", "no file"])
def test_a_publication_never_vanishes_from_the_list(country: Path, capsys: Any, what: str) -> None:
    version = country / "published" / "versions" / "v0001"
    if what == "newer":
        change(version / "complete.json", version=99)
    elif what == "damaged":
        (version / "rate_mean.tif").write_bytes(b"short")
    else:
        (version / "version.json").unlink()
        (version / "complete.json").unlink()
    status, found, _ = run(capsys, "versions", country / "disagg.yaml")
    assert status == 2
    assert not found["ok"]
    (row,) = found["versions"]
    assert row["version"] == "v0001"
    assert row["trouble"]
    if what == "newer":
        assert "use the disagg that wrote it" in row["trouble"]
    # Nothing may be built on it, and nothing clears it away.
    published = country / "published"
    assert list_versions(published) == []
    assert open_versions(published).remove_old(1) == ()
    assert [each.name for each in open_versions(published).all()] == ["v0001"]
    assert main(["versions", str(country / "disagg.yaml")]) == 2
    assert "cannot be read: " in capsys.readouterr().err


def test_a_newer_format_is_a_line_each(country: Path, capsys: Any) -> None:
    change(country / "published/versions/v0001/complete.json", version=99)
    change(country / "out/run.json", version=99)
    before = unmoved(country)
    status, found, lines = run(capsys, "migrate", country / "disagg.yaml")
    assert status == 2
    assert states(found)["disagg-version"] == states(found)["disagg-run"] == "newer"
    assert len(lines) == 2
    assert all("version 99 of disagg-" in line for line in lines)
    assert unmoved(country) == before


def test_steps_bring_a_publication_and_a_record_to_what_is_read(
    country: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if this disagg wrote version 1, and an earlier one version -1 and 0."""
    version = country / "published/versions/v0001"
    change(version / "complete.json", version=-1)
    change(country / "out/run.json", version=0)
    done = []

    def step(number: int) -> Any:
        def change_copy(path: Path) -> None:
            done.append(number)
            file = path / "version.json" if path.is_dir() else path
            change(file, **{f"step_{number}": True})

        return change_copy

    _, found, lines = run(capsys, "migrate", country / "disagg.yaml")
    assert states(found)["disagg-version"] == "lost"  # as long as there is no step
    assert any("no step reads version -1" in line for line in lines)
    for kind, number in ((migrate.PUBLICATION, -1), (migrate.PUBLICATION, 0), (migrate.RECORD, 0)):
        monkeypatch.setitem(migrate.STEPS, (kind.name, number), step(number))
    status, found, _ = run(capsys, "migrate", country / "disagg.yaml", "--dry-run")
    assert states(found)["disagg-version"] == "to migrate"
    assert done == []
    status, found, _ = run(capsys, "migrate", country / "disagg.yaml")
    assert status == 0
    assert states(found)["disagg-version"] == states(found)["disagg-run"] == "migrated"
    assert done == [0, -1, 0]
    _, found, _ = run(capsys, "versions", country / "disagg.yaml")
    (row,) = found["versions"]
    assert (row["trouble"], row["current"]) == ("", True)
    about = json.loads((version / "version.json").read_text())
    assert about["step_-1"]
    assert about["step_0"]
    record = json.loads((country / "out/run.json").read_text())
    assert (record["version"], record["step_0"]) == (1, True)
    # A second time there is nothing to do.
    _, found, _ = run(capsys, "migrate", country / "disagg.yaml")
    assert states(found)["disagg-version"] == "current"


def test_a_step_that_fails_leaves_what_was(
    country: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(country / "published/versions/v0001/complete.json", version=0)
    before = unmoved(country)

    def fail(path: Path) -> None:
        (path / "version.json").write_text("half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setitem(migrate.STEPS, (migrate.PUBLICATION.name, 0), fail)
    assert main(["migrate", str(country / "disagg.yaml")]) == 2
    assert "no space left on device" in capsys.readouterr().err
    assert unmoved(country) == before
