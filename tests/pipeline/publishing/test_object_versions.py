"""Versions on an object store: two publishers, storms, damage, stores that cannot do it."""

from __future__ import annotations

import json

import pytest
import yaml

from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.config.schema import Config
from pipeline.publishing.object_versions import POINTER, ObjectVersions
from pipeline.publishing.publish import publish, publish_dir, publish_problems
from pipeline.publishing.versions import current_version, list_versions, open_versions
from pipeline.run.ownership import OWNER, claim
from pipeline.storage import location
from pipeline.storage.location import Location, StorageError
from pipeline.storage.lock import LockedError
from pipeline.storage.pointer import conditional_write_problem
from tests.command import Command
from tests.pipeline.publishing.finished import build, leave_run
from tests.pipeline.storage.s3_server import Weather, request, stormy
from tests.typed import errors


@pytest.fixture
def address(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"s3://{bucket}/my/published"


@pytest.fixture
def config(tmp_path, address):
    return build(tmp_path / "a", publish={"dir": address, "compare": False})


@pytest.fixture
def file(files, address):
    """A configuration in a file, and its finished run."""
    files.counts()
    path = files.directory / "north.yaml"
    mapping = files.mapping() | {"name": "north", "publish": {"dir": address}}
    path.write_text(yaml.safe_dump(mapping | {"update": {"retries": 0}}))
    leave_run(load_config(path), 0.05)
    return path


def published(config: Config, rate: float) -> str:
    leave_run(config, rate)
    done = publish(config)
    assert done.status == "published"
    return str(done.version)


def objects(config: Config) -> set[str]:
    return {name.split("/")[1] for name in (publish_dir(config) / "").list() if "/" in name}


def test_a_reader_needs_the_pointer_and_nothing_else(config, s3, address):
    published(config, 0.05)
    published(config, 0.06)
    path = "/" + address.removeprefix("s3://")
    told = json.loads(request(s3, "GET", f"{path}/{POINTER}")[1])
    assert told["current"] == "v0002"
    about = request(s3, "GET", f"{path}/{told['path']}/version.json")[1]
    assert json.loads(about)["version"] == "v0002"
    assert (
        request(s3, "GET", f"{path}/{told['path']}/areas.csv")[1]
        == (config.output.dir / "areas.csv").read_bytes()
    )


@pytest.mark.ci
def test_of_two_publishers_the_second_begins_again_from_the_first(
    config, tmp_path, address, monkeypatch
):
    """Both have read v0001; the first to finish comes while the other uploads."""
    published(config, 0.05)
    other = build(tmp_path / "b", publish={"dir": address, "compare": False})
    leave_run(other, 0.07)
    add, said = ObjectVersions.add, []

    def add_late(self, *args):
        version = add(self, *args)
        if not said:
            said.append("once")
            assert publish(other).version == "v0002"
        return version

    monkeypatch.setattr(ObjectVersions, "add", add_late)
    assert published(config, 0.06) == "v0003"
    versions = list_versions(publish_dir(config))
    assert [v.about["compared_with"] for v in versions] == [None, "v0001", "v0002"]
    assert current_version(publish_dir(config)).name == "v0003"
    assert [fault for v in versions for fault in v.faults()] == []
    assert objects(config) == {v.path.name for v in versions}  # nothing is left of the first try


@pytest.mark.ci
def test_who_never_comes_first_is_told_in_a_line(config, tmp_path, address, monkeypatch):
    other = build(tmp_path / "b", publish={"dir": address, "compare": False})
    add, rates = ObjectVersions.add, iter(range(100))

    def add_late(self, *args):
        version = add(self, *args)
        with monkeypatch.context() as patched:
            patched.setattr(ObjectVersions, "add", add)
            published(other, 0.06 + next(rates) / 1000)
        return version

    monkeypatch.setattr(ObjectVersions, "add", add_late)
    monkeypatch.setattr("pipeline.publishing.version_store._TRIES", 3)
    leave_run(config, 0.05)
    with pytest.raises(LockedError, match="other publishers, whose versions came first 3 times"):
        publish(config)
    assert [v.name for v in list_versions(publish_dir(config))] == ["v0001", "v0002", "v0003"]


@pytest.mark.ci
def test_processes_that_publish_at_once_lose_no_version(tmp_path, address):
    code = (
        "import sys; from tests.pipeline.publishing.finished import build, leave_run\n"
        "from pipeline.publishing.publish import publish\n"
        "from pathlib import Path\n"
        "c = build(Path(sys.argv[1]), publish={'dir': sys.argv[2], 'compare': False})\n"
        "for k in range(2):\n"
        "    leave_run(c, float(sys.argv[3]) + k / 100)\n"
        "    assert publish(c).status == 'published'\n"
    )
    both = [
        Command(tmp_path / name, address, rate, code=code)
        for name, rate in (("a", "0.05"), ("b", "0.055"))
    ]
    assert [each.wait().returncode for each in both] == [0, 0]
    versions = list_versions(Location(address))
    assert [v.number for v in versions] == list(range(1, 5))
    assert len({v.fingerprint for v in versions}) == 4
    assert [fault for v in versions for fault in v.faults()] == []


def assert_whole(config: Config, *names: str) -> None:
    versions = list_versions(publish_dir(config))
    assert [v.name for v in versions] == list(names)
    assert [fault for v in versions for fault in v.faults()] == []


@pytest.mark.ci
def test_versions_come_whole_and_once_through_a_storm(config, s3, monkeypatch):
    monkeypatch.setattr(location, "_LONGEST_WAIT", 0.02)
    kinds = ("error", "reset", "late_reset", "slow")
    weather = Weather(seed=4, slow_seconds=0.02, **dict.fromkeys(kinds, 0.1))
    with stormy(s3, weather) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        for k in range(3):
            assert published(config, 0.05 + k / 100) == f"v{k + 1:04d}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    assert all(weather.count(kind) > 1 for kind in kinds)
    assert_whole(config, "v0001", "v0002", "v0003")


@pytest.mark.ci
def test_a_store_that_goes_away_at_any_request_costs_no_version(config, s3, monkeypatch):
    """From one request on nothing answers; the next publication makes the same map current."""
    monkeypatch.setattr(location, "_LONGEST_WAIT", 0.01)
    names, n_request, failed = [published(config, 0.05)], 10**6, 0
    for k in range(7):
        first = n_request * (k - 1) // 6 if k else n_request
        gone = Weather(reset=1.0, only=lambda *_, first=first: len(gone.log) >= first)  # noqa: B023
        leave_run(config, 0.06 + k / 100)
        with stormy(s3, gone) as endpoint:
            storage = config.storage.model_copy(update={"endpoint": endpoint, "retries": 0})
            try:
                publish(config.model_copy(update={"storage": storage}))
            except StorageError:
                failed += 1
        n_request = n_request if k else len(gone.log)  # of a publication that nothing disturbs
        assert publish(config).status in ("published", "unchanged")
        names.append(f"v{k + 2:04d}")
        assert_whole(config, *names)
    assert failed >= 4


def test_a_lost_answer_to_the_pointers_write_makes_no_second_version(config, s3, monkeypatch):
    weather = Weather(late_reset=1.0, only=lambda method, path: method == "PUT" and POINTER in path)
    monkeypatch.setattr(location, "_LONGEST_WAIT", 0.01)
    with stormy(s3, weather) as endpoint:
        storage = {"endpoint": endpoint, "retries": 1}
        stormily = config.model_copy(update={"storage": config.storage.model_copy(update=storage)})
        leave_run(config, 0.05)
        with pytest.raises(StorageError, match="cannot be written after 2 attempts"):
            publish(stormily)
    # Nobody knows whether it came; it has, and everything that it names is there.
    assert publish(config).status == "unchanged"
    assert_whole(config, "v0001")


@pytest.mark.ci
def test_old_versions_and_what_nothing_names_go(config, monkeypatch):
    from datetime import timedelta

    few = config.publish.model_copy(update={"keep": 2})
    config = config.model_copy(update={"publish": few})
    for k in range(4):
        published(config, 0.05 + k / 100)
    assert [v.name for v in list_versions(publish_dir(config))] == ["v0003", "v0004"]
    assert len(objects(config)) == 2
    left = publish_dir(config) / "versions/v0005-00000000/areas.csv"
    left.write(b"of a publisher that was killed")
    published(config, 0.1)
    assert left.info() is not None  # it may be another's who writes it now
    monkeypatch.setattr("pipeline.storage.object_commit.GRACE", timedelta(0))
    assert published(config, 0.11) == "v0006"
    assert left.info() is None
    assert len(objects(config)) == 2


@pytest.mark.ci
def test_a_pointer_to_a_version_that_is_gone(file, capsys, address):
    config = load_config(file)
    assert main(["publish", str(file), "--quiet"]) == 0
    leave_run(config, 0.06)
    assert main(["publish", str(file), "--quiet"]) == 0
    version = current_version(publish_dir(config))
    version.path.remove(version.path.list())
    capsys.readouterr()
    assert main(["versions", str(file)]) == 2
    lines = errors(capsys)
    assert f"{address}: the current version, v0002, is damaged or gone" in lines[1]
    leave_run(config, 0.07)
    assert main(["publish", str(file)]) == 2
    (line,) = errors(capsys)
    assert "current version v0002: the current version is damaged; disagg rollback" in line
    assert main(["rollback", str(file), "--to", "v0001", "--quiet"]) == 0
    assert main(["publish", str(file), "--quiet"]) == 0
    assert current_version(publish_dir(config)).name == "v0003"


def test_what_is_not_as_it_was_published_is_told(file, capsys):
    config = load_config(file)
    assert main(["publish", str(file), "--quiet"]) == 0
    assert main(["versions", str(file), "--verify"]) == 0
    assert "every file of 1 versions" in capsys.readouterr().out
    version = current_version(publish_dir(config))
    for place, told, *more in (
        (publish_dir(config) / POINTER, f"{POINTER}: damaged"),
        (version.path / "version.json", "is not what was published"),
        (version.path / "rate_mean.tif", "is not what was published (checksum)", "--verify"),
    ):
        whole = place.read()
        data = bytearray(whole)
        data[len(data) // 2 if more else data.index(b'"')] ^= 1
        place.write(bytes(data))
        assert main(["versions", str(file), *more]) == 2
        assert told in errors(capsys)[0]
        if not more:
            place.write(whole)
    (version.path / "areas.csv").parent.remove(["areas.csv"])
    assert main(["versions", str(file), "--verify"]) == 2
    lines = errors(capsys)
    assert "cannot be read: areas.csv is missing" in lines[0]
    assert told in lines[-1]  # one fault does not hide another


def test_a_version_cannot_name_files_outside_of_its_copy(config, tmp_path):
    published(config, 0.05)
    versions = open_versions(publish_dir(config))
    version = versions.current()
    version.about["files"]["../../../outside"] = "0" * 64
    (version.path.parent / "../outside").write(b"x")
    with pytest.raises(OSError, match=r"names \.\./\.\./\.\./outside"):
        versions.copy(version)
    assert not [path for path in tmp_path.rglob("outside")]


def test_a_store_without_conditional_writes_is_refused_before_the_run(
    file, s3, capsys, monkeypatch
):
    with stormy(s3, Weather(deaf=True)) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        for command in (["check"], ["run", "--publish"]):
            assert main([*command, str(file)]) == 2
            (line,) = errors(capsys)
            assert "publish.dir" in line
            assert "the store does not honour conditional writes; give a local directory" in line
    assert publish_dir(load_config(file)).list() == {}
    (problem,) = [conditional_write_problem(Location("memory://shelf/published"), "publish.dir")]
    assert "refuses conditional writes" in str(problem)


@pytest.mark.parametrize("address", ["gs://b/published", "az://b/published", "https://b/p"])
def test_addresses_that_take_no_conditional_writes(tmp_path, address):
    with pytest.raises(ValueError, match="takes no conditional writes"):
        build(tmp_path, publish={"dir": address})


def test_a_second_map_does_not_publish_into_the_prefix(file, capsys):
    assert main(["publish", str(file), "--quiet"]) == 0
    other = file.with_name("south.yaml")
    text = file.read_text().replace("name: north", "name: south")
    other.write_text(text + "output: {dir: out-south}\n" if "output:" not in text else text)
    loaded = load_config(other)
    assert "of another configuration" in str(publish_problems(loaded)[0])
    with pytest.raises(InputError, match=r"give one of the two publish\.dir of its own"):
        claim(publish_dir(loaded), loaded, "publish.dir")
    # On another machine the first is not there: the name tells.
    file.rename(file.with_name("moved.yaml"))
    assert "or remove s3://" in str(publish_problems(loaded)[0])
    other.write_text(other.read_text().replace("name: south", "name: north"))
    assert publish_problems(load_config(other)) == []


def test_maps_on_the_store_itself_own_their_prefixes(file, s3, bucket):
    """Two configurations on the store may have one name: that the first is there tells."""
    for name in ("one", "two"):
        request(s3, "PUT", f"/{bucket}/{name}.yaml", file.read_bytes())
    one, two = (load_config(f"s3://{bucket}/{name}.yaml") for name in ("one", "two"))
    claim(publish_dir(one), one, "publish.dir")
    owner = json.loads((publish_dir(one) / OWNER).read())
    assert owner == {"name": "north", "configuration": "../../one.yaml"}
    assert publish_problems(one) == []
    assert f"is of another configuration, s3://{bucket}/one.yaml" in str(publish_problems(two)[0])


def test_a_published_version_is_compared_by_its_name(file):
    from pipeline.publishing.comparing import find_side

    assert main(["publish", str(file), "--quiet"]) == 0
    config = load_config(file)
    copy = (versions := open_versions(publish_dir(config))).copy(versions.current())
    assert copy.name == "v0001"
    assert (copy / "areas.csv").read_bytes() == (config.output.dir / "areas.csv").read_bytes()
    with pytest.raises(InputError, match=r"versions: v0001"):
        find_side(f"{file}@v0002")
