"""Formats on disk: what each version wrote is read, migrated or made again, and never lost."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import main
from pipeline.publishing.versions import list_all_versions, list_versions, remove_old_versions
from pipeline.updates import migrate

ARCHIVE = Path(__file__).parent / "written_by_0.1.0.tar.xz"


@pytest.fixture
def country(tmp_path: Path) -> Path:
    """Unpack the country that 0.1.0 mapped and published."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "earlier" / "country"


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


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
    for options in (("--dry-run",), ()):
        status, found, _ = run(capsys, "migrate", country / "disagg.yaml", *options)
        assert status == 0
        assert states(found) == {
            "disagg-bags": "read",
            "disagg-grid": "current",
            "disagg-model": "current",
            "disagg-checkpoint": "current",
            "disagg-run": "current",
            "disagg-version": "current",
        }
    assert digests(country) == before  # nothing needed a change, and nothing was changed


def test_every_format_is_looked_at() -> None:
    """A format that this disagg writes, and that `migrate` does not know, would be forgotten."""
    assert {each.name for each in migrate.FORMATS} == {
        "disagg-bags", "disagg-grid", "disagg-model", "disagg-checkpoint", "disagg-run",
        "disagg-version",
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
    assert remove_old_versions(published, 1) == []
    assert [each.name for each in list_all_versions(published)] == ["v0001"]
    assert main(["versions", str(country / "disagg.yaml")]) == 2
    assert "cannot be read: " in capsys.readouterr().err


def test_a_newer_format_is_a_line_each(country: Path, capsys: Any) -> None:
    change(country / "published/versions/v0001/complete.json", version=99)
    change(country / "out/run.json", version=99)
    before = digests(country)
    status, found, lines = run(capsys, "migrate", country / "disagg.yaml")
    assert status == 2
    assert states(found)["disagg-version"] == states(found)["disagg-run"] == "newer"
    assert len(lines) == 2
    assert all("version 99 of disagg-" in line for line in lines)
    assert digests(country) == before


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
    before = digests(country)

    def fail(path: Path) -> None:
        (path / "version.json").write_text("half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setitem(migrate.STEPS, (migrate.PUBLICATION.name, 0), fail)
    assert main(["migrate", str(country / "disagg.yaml")]) == 2
    assert "no space left on device" in capsys.readouterr().err
    assert digests(country) == before
