"""``disagg run`` with inputs, stores, checkpoints and results on S3: as on disk, through failures.

Second route: the same run on local disk, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.demo.country import CountrySpec, simulate_country
from pipeline.run.runner import stale_stages
from pipeline.storage import location as storage
from pipeline.storage import mirror as mirrors
from pipeline.storage.location import Location, Storage, StorageError
from pipeline.storage.mirror import MANIFEST, Mirror
from tests.pipeline.storage.s3_server import Weather, new_bucket, request, stormy
from tests.typed import errors

pytestmark = pytest.mark.ci

SPEC = CountrySpec((24, 26), 1 / 12, 380, 9, 4, 2e5, covariates=("elevation",), n_inducing=8)
ROOT = Path(__file__).parents[3]
MAPS = ("rate_mean", "rate_sd", "rate_lower", "rate_upper", "rate_median", "cases_mean")
SAME = (*(f"{name}.tif" for name in MAPS), "areas.csv", "evaluation.json", "exceedance_50.tif")


class Run:
    """A country on disk that has been run there, and the same on a bucket."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        config = simulate_country(directory, SPEC, seed=3)
        text = config.read_text().replace("max_epochs: 200", "max_epochs: 4")
        text = text.replace("folds: 5", "folds: 2").replace("[area, block]", "[area]")
        text = text.replace("link: exp", "link: exp, integrate: none")
        config.write_text(text.replace("draws: 500", "draws: 30"))
        self.local = config
        assert main(["run", str(config), "--quiet"]) == 0
        self.out = directory / "out"

    def upload(self, endpoint: str) -> str:
        bucket = new_bucket(endpoint)
        for path in self.directory.iterdir():
            if path.is_file():
                status, _ = request(endpoint, "PUT", f"/{bucket}/in/{path.name}", path.read_bytes())
                assert status == 200
        return bucket

    def config(
        self, home: Path, bucket: str, endpoint: str, change: Callable[[str], str] = str
    ) -> Path:
        """Write the configuration with every path on the bucket; ``home`` is the machine."""
        text = re.sub(r"(path|like): ([\w.]+)", rf"\1: s3://{bucket}/in/\2", self.local.read_text())
        text = text.replace("dir: out", f"dir: s3://{bucket}/map")
        text += (
            f"\nstorage: {{endpoint: '{endpoint}', retries: 4, timeout: 10, "
            f"scratch: {home / 'scratch'}}}\nupdate: {{retries: 0}}\n"
        )
        assert text.count(f"s3://{bucket}") >= 6
        home.mkdir(exist_ok=True)
        path = home / "disagg.yaml"
        path.write_text(change(text))
        return path


@pytest.fixture(scope="module")
def country(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("country"))


@pytest.fixture
def there(country, s3):
    """Upload the country's inputs to a new bucket; give its name."""
    return country.upload(s3)


@pytest.fixture(scope="module")
def finished(country, s3, tmp_path_factory):
    """Run the country on a bucket of its own, not to be changed; give its name and the home."""
    bucket, home = country.upload(s3), tmp_path_factory.mktemp("first")
    assert main(["run", str(country.config(home, bucket, s3)), "-q"]) == 0
    return bucket, home


def copy_bucket(endpoint: str, source: str, target: str) -> None:
    """Copy a bucket: addresses inside a run are relative, so that the copy is a run too."""
    _, text = request(endpoint, "GET", f"/{source}?list-type=2")
    assert b"<IsTruncated>false" in text
    for key in re.findall(r"<Key>([^<]*)</Key>", text.decode()):
        request(
            endpoint, "PUT", f"/{target}/{key}", request(endpoint, "GET", f"/{source}/{key}")[1]
        )


def get(endpoint: str, bucket: str, name: str) -> bytes:
    status, data = request(endpoint, "GET", f"/{bucket}/map/{name}")
    assert status == 200, name
    return data


def assert_same(country: Run, endpoint: str, bucket: str) -> None:
    """Both by their plain names and through the manifest, results are those of the local run."""
    manifest = json.loads(get(endpoint, bucket, MANIFEST))
    for name in SAME:
        local = (country.out / name).read_bytes()
        assert get(endpoint, bucket, name) == local, name
        assert get(endpoint, bucket, manifest["files"][name]["object"]) == local, name


def test_a_run_on_s3_is_the_run_on_disk(country, finished, s3, capsys):
    there, home = finished
    assert_same(country, s3, there)
    # The chunks of the stores too.
    for store in ("bags.zarr", "grid.zarr"):
        version = json.loads(get(s3, there, f"work/{store}/complete.json"))["data"]
        files = [p for p in (country.out / "work" / store).rglob("*") if "c" in p.parts]
        for path in filter(Path.is_file, files):
            name = path.relative_to(country.out).as_posix().replace(store, f"{store}/{version}")
            assert get(s3, there, name) == path.read_bytes(), name
        assert len(files) > 3
    # Inputs have the fingerprints of their contents, wherever they lie.
    said = json.loads(get(s3, there, "run.json"))
    said_here = json.loads((country.out / "run.json").read_text())
    assert said["fingerprints"] == said_here["fingerprints"]
    assert said["config"]["areas"]["path"] == f"s3://{there}/in/areas.gpkg"
    assert main(["check", str(country.config(home, there, s3)), "--quiet"]) == 0


def test_what_has_not_changed_is_skipped_on_any_machine(
    country, finished, there, s3, tmp_path, capsys
):
    copy_bucket(s3, finished[0], there)
    config = country.config(tmp_path, there, s3)
    assert main(["run", str(config), "--json", "-q"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [stage["skipped"] for stage in told["stages"]] == [True] * 5
    assert told["output"] == f"s3://{there}/map"
    assert f"s3://{there}/map/rate_mean.tif" in told["maps"]
    # A changed input is found by its content; one written again is the same.
    loaded, data = load_config(config), (country.directory / "cases.csv").read_bytes()
    request(s3, "PUT", f"/{there}/in/cases.csv", data)
    assert stale_stages(loaded, "evaluate") == []
    request(s3, "PUT", f"/{there}/in/cases.csv", data + b"\n")
    assert stale_stages(loaded, "evaluate") == ["ingest"]


def test_a_store_with_a_flipped_bit_is_made_again_where_it_was(
    country, finished, there, s3, tmp_path, capsys
):
    copy_bucket(s3, finished[0], there)
    config = country.config(tmp_path, there, s3)
    loaded = load_config(config)
    chunks = Location(f"s3://{there}/map/work/bags.zarr", loaded.storage.open())
    (name,) = [name for name in chunks.list() if name.endswith("/x/c/0/0")]
    whole = (chunks / name).read()
    (chunks / name).write(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    assert main(["run", str(config), "-q"]) == 0
    assert (loaded.output.dir / "work/bags.zarr" / "at.json").is_file()
    capsys.readouterr()
    assert main(["run", str(config), "--json", "-q"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [stage["skipped"] for stage in told["stages"]] == [True] * 5
    assert_same(country, s3, there)


@pytest.mark.slow
def test_a_run_goes_on_through_a_storm(country, there, s3, tmp_path):
    sky = Weather(
        seed=8, error=0.04, reset=0.03, late_reset=0.03, short=0.03, slow=0.02, slow_seconds=0.1
    )
    with stormy(s3, sky) as through:
        assert main(["run", str(country.config(tmp_path, there, through)), "-q"]) == 0
    assert sum(map(sky.count, ("error", "reset", "late_reset", "short", "slow"))) > 20
    assert_same(country, s3, there)


def test_a_store_that_fails_in_the_middle_of_a_fit_costs_no_checkpoint(
    country, there, s3, tmp_path, capsys
):
    """From the third checkpoint on nothing goes through; another machine takes up the second."""
    seen: list[str] = []

    def after_two(method: str, path: str) -> bool:
        if method == "PUT" and "/work/checkpoint/epoch-" in path and path not in seen:
            seen.append(path)
        return len(seen) > 2

    with stormy(s3, Weather(error=1.0, only=after_two)) as through:
        assert main(["run", str(country.config(tmp_path / "one", there, through))]) == 75
    (line,) = errors(capsys)
    assert re.match(rf"error: s3://{there}/map/work/checkpoint/epoch-000003", line)
    assert "after 5 attempts" in line
    assert "repeat the command" in line
    assert main(["fit", str(country.config(tmp_path / "two", there, s3))]) == 0
    assert "fit: resumes from the checkpoint of epoch 2" in capsys.readouterr().err
    model = json.loads(get(s3, there, MANIFEST))["files"]["work/model/arrays.npz"]["object"]
    assert get(s3, there, model) == (country.out / "work/model/arrays.npz").read_bytes()
    # What was finished is not kept twice.
    left = Location(f"s3://{there}/map/work/checkpoint", Storage(s3)).list()
    assert left == {}


@pytest.mark.slow
def test_a_run_that_fails_before_the_manifest_leaves_the_last_one(
    country, finished, there, s3, tmp_path, capsys
):
    def change(text: str) -> str:
        return text.replace("rate_per: 1000", "rate_per: 10")

    copy_bucket(s3, finished[0], there)
    before = get(s3, there, MANIFEST)
    committing = lambda method, path: method == "PUT" and path.endswith(MANIFEST)  # noqa: E731
    with stormy(s3, Weather(error=1.0, only=committing)) as through:
        config = country.config(tmp_path / "one", there, through, change)
        assert main(["predict", str(config)]) == 75
    (line,) = errors(capsys)
    assert line.startswith(f"error: s3://{there}/map/manifest.json: cannot be written")
    assert get(s3, there, MANIFEST) == before
    assert_same(country, s3, there)  # the old maps, one and all
    # The machine is gone; on another the change is made, and seen.
    assert main(["predict", str(country.config(tmp_path / "two", there, s3, change)), "-q"]) == 0
    assert get(s3, there, "rate_mean.tif") != (country.out / "rate_mean.tif").read_bytes()
    new = json.loads(get(s3, there, MANIFEST))["files"]["rate_mean.tif"]["object"]
    assert get(s3, there, new) == get(s3, there, "rate_mean.tif")


def test_objects_that_are_not_there_are_told_at_once(country, there, s3, tmp_path, capsys):
    def change(text: str) -> str:
        return text.replace("in/cases.csv", "in/none.csv").replace("in/elevation", "in/elevatoin")

    config = country.config(tmp_path, there, s3, change)
    for command in ("check", "run"):
        assert main([command, str(config), "-q"]) == 2
        lines = errors(capsys)
        assert len(lines) == 2
        assert f"error: counts.path (s3://{there}/in/none.csv): no such object" in lines[0]
        assert f"covariates.elevation.path (s3://{there}/in/elevatoin.tif)" in lines[1]
    text = config.read_text().replace("none.csv", "cases.csv").replace("elevatoin", "elevation")
    config.write_text(text.replace(f"dir: s3://{there}", "dir: s3://nobody-made-this"))
    assert main(["run", str(config), "-q"]) == 2
    (line,) = errors(capsys)
    assert "no such bucket; create it" in line


def test_what_is_wrong_inside_an_object_names_its_address(country, there, s3, tmp_path, capsys):
    name = f"/{there}/in/cases.csv"
    data = request(s3, "GET", name)[1].decode().splitlines()
    data[4] = data[4].split(",")[0] + ",-7"
    request(s3, "PUT", name, "\n".join(data).encode())
    assert main(["run", str(country.config(tmp_path, there, s3)), "-q"]) == 2
    (line,) = errors(capsys)
    assert f"s3://{there}/in/cases.csv" in line
    assert "row 5" in line
    assert "scratch" not in line
    assert request(s3, "GET", f"/{there}/map/{MANIFEST}")[0] == 404


class Folder:
    """A mirror whose files a test writes."""

    def __init__(self, local: Path, bucket: str, through: str | None = None) -> None:
        self.local = local
        self.mirror = Mirror(local, Location(f"s3://{bucket}/map", Storage(through, 1, 10.0)))
        self.mirror.pull()

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.local / name.replace("__", "/").replace("_txt", ".txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def read(self) -> dict[str, str]:
        names = self.mirror._names()
        return {name: (self.local / name).read_text() for name in names}


def test_two_machines_see_each_others_runs_and_do_not_overwrite_them(bucket, tmp_path):
    one = Folder(tmp_path / "one", bucket)
    one.write(a_txt="a", work__b_txt="b")
    one.mirror.push()
    two = Folder(tmp_path / "two", bucket)
    assert two.read() == {"a.txt": "a", "work/b.txt": "b"}
    one.write(a_txt="newer", c_txt="c")
    two.write(a_txt="other")
    one.mirror.push()
    with pytest.raises(StorageError, match="another run has written here meanwhile"):
        two.mirror.push()
    again = Folder(tmp_path / "two", bucket)
    assert again.read() == {"a.txt": "newer", "work/b.txt": "b", "c.txt": "c"}
    (again.local / "a.txt").unlink()
    again.mirror.push()
    assert "a.txt" not in Folder(tmp_path / "three", bucket).read()
    assert Location(f"s3://{bucket}/map/a.txt").info() is None
    assert Location(f"s3://{bucket}/map/c.txt").read() == b"c"


@pytest.mark.parametrize("at", ["object", "manifest"])
def test_what_fails_before_the_manifest_leaves_the_last_run(bucket, s3, tmp_path, at):
    one = Folder(tmp_path / "one", bucket)
    one.write(a_txt="a", b_txt="b")
    one.mirror.push()
    end = MANIFEST if at == "manifest" else "/b.txt"
    failing = lambda method, path: method == "PUT" and path.endswith(end)  # noqa: E731
    with stormy(s3, Weather(error=1.0, only=failing)) as through:
        one = Folder(tmp_path / "one", bucket, through)
        one.write(a_txt="A", b_txt="B")
        with pytest.raises(StorageError, match="cannot be written after 2 attempts"):
            one.mirror.push()
    place = Location(f"s3://{bucket}/map")
    assert (place / "a.txt").read() + (place / "b.txt").read() == b"ab"
    two = Folder(tmp_path / "two", bucket)
    assert two.read() == {"a.txt": "a", "b.txt": "b"}
    two.write(a_txt="A", b_txt="B")
    two.mirror.push()
    assert (place / "a.txt").read() + (place / "b.txt").read() == b"AB"
    assert Folder(tmp_path / "three", bucket).read() == {"a.txt": "A", "b.txt": "B"}


def test_checkpoints_go_up_come_down_and_are_mended(bucket, s3, tmp_path):
    one = Folder(tmp_path / "one", bucket)
    one.write(work__checkpoint__1="aa", work__checkpoint__2="bb", work__evaluate__area__f="f")
    mirrors._open[one.local] = one.mirror
    try:
        mirrors.keep(one.local / "work" / "checkpoint")
        mirrors.keep(tmp_path / "elsewhere")  # of a local run: nothing to do
    finally:
        del mirrors._open[one.local]
    kept = Location(f"s3://{bucket}/map/work")
    assert sorted(kept.list()) == ["checkpoint/1", "checkpoint/2"]
    request(s3, "PUT", f"/{bucket}/map/work/checkpoint/2", b"b?")  # damaged there
    two = Folder(tmp_path / "two", bucket)
    assert (two.local / "work/checkpoint/2").read_text() == "b?"
    two.write(work__checkpoint__2="bb")  # made again, as long as before
    (two.local / "work/checkpoint/1").unlink()
    two.mirror.keep(two.local / "work" / "checkpoint")
    assert sorted(kept.list()) == ["checkpoint/2"]
    assert (kept / "checkpoint/2").read() == b"bb"


def test_a_folder_with_other_files_is_left_alone(bucket, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("ten years")
    with pytest.raises(StorageError, match=r"not of .*; set another storage\.scratch"):
        Folder(tmp_path / "mine", bucket)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "ten years"
    Folder(tmp_path / "one", bucket)
    with pytest.raises(StorageError, match="belongs to another run"):
        Mirror(tmp_path / "one", Location(f"s3://{bucket}/other")).pull()


def test_a_lost_answer_to_the_manifest_is_no_conflict(bucket, s3, tmp_path):
    lost: list[str] = []

    def once(method: str, path: str) -> bool:
        found = method == "PUT" and path.endswith(MANIFEST) and not lost
        lost.extend([path] * found)
        return found

    with stormy(s3, Weather(late_reset=1.0, only=once)) as through:
        one = Folder(tmp_path / "one", bucket, through)
        one.write(a_txt="a")
        one.mirror.push()
    assert lost
    assert Folder(tmp_path / "two", bucket).read() == {"a.txt": "a"}


def test_damaged_results_are_told_and_never_used(bucket, s3, tmp_path):
    one = Folder(tmp_path / "one", bucket)
    one.write(a_txt="good")
    one.mirror.push()
    key = one.mirror._manifest["files"]["a.txt"]["object"]
    request(s3, "PUT", f"/{bucket}/map/{key}", b"gold")
    with pytest.raises(StorageError, match="damaged"):
        Folder(tmp_path / "two", bucket)
    assert not (tmp_path / "two" / "a.txt").exists()
    request(s3, "PUT", f"/{bucket}/map/{MANIFEST}", b"{}")
    with pytest.raises(StorageError, match=r"remove manifest\.json there"):
        Folder(tmp_path / "three", bucket)


def test_neither_a_manifest_nor_a_checkpoint_is_outside_of_the_run(bucket, s3, tmp_path):
    body = {"object": "evil", "size": 4, "sha256": hashlib.sha256(b"evil").hexdigest()}
    request(s3, "PUT", f"/{bucket}/map/evil", b"evil")
    manifest = {"format": "disagg-output", "version": 1, "id": "1", "dropped": []}
    for name in ("../../escaped", "/tmp/escaped", "work/bags.zarr/at.json"):
        text = json.dumps({**manifest, "files": {name: body}})
        request(s3, "PUT", f"/{bucket}/map/{MANIFEST}", text.encode())
        with pytest.raises(StorageError, match="which is no file of a run; remove manifest"):
            Folder(tmp_path / "here" / "run", bucket)
    request(s3, "DELETE", f"/{bucket}/map/{MANIFEST}")
    request(s3, "PUT", f"/{bucket}/map/work/checkpoint/../../../../escaped", b"evil")
    assert len(Location(f"s3://{bucket}/map/work/checkpoint").list()) == 1
    with pytest.raises(StorageError, match=r"has an object \.\./.*; remove it there"):
        Folder(tmp_path / "here" / "run", bucket)
    assert not list(tmp_path.rglob("escaped"))


def test_plain_names_are_mended_after_a_crash_between_manifest_and_copies(
    bucket, s3, tmp_path, monkeypatch
):
    one = Folder(tmp_path / "one", bucket)
    one.write(a_txt="old")
    one.mirror.push()
    one.write(a_txt="new")
    with monkeypatch.context() as patch:
        patch.setattr(Mirror, "_publish", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            one.mirror.push()
    assert Location(f"s3://{bucket}/map/a.txt").read() == b"old"
    assert Folder(tmp_path / "two", bucket).read() == {"a.txt": "new"}
    assert Location(f"s3://{bucket}/map/a.txt").read() == b"new"


def test_large_files_go_up_by_another_way(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_BYTES_AT_ONCE", 3)
    one = Folder(tmp_path / "one", bucket)
    one.write(a_txt="abc", b_txt="abcdef")
    one.mirror.push()
    assert Folder(tmp_path / "two", bucket).read() == {"a.txt": "abc", "b.txt": "abcdef"}


@pytest.mark.slow
def test_worker_processes_read_the_store_by_its_address(country, there, s3, tmp_path):
    def change(text: str) -> str:
        return text.replace("scheduler: local, workers: auto", "scheduler: processes, workers: 2")

    assert main(["run", str(country.config(tmp_path, there, s3, change)), "-q"]) == 0
    assert_same(country, s3, there)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(6))
def test_runs_begun_again_and_again_end_with_the_right_maps(
    country, there, s3, tmp_path, capsys, seed
):
    """Few attempts in a heavy storm: runs stop with one line, on machine after machine."""
    share = dict.fromkeys(("error", "reset", "late_reset", "short"), 0.08)
    stopped = 0
    with stormy(s3, Weather(seed=seed, **share)) as through:
        for k in range(60):
            config = country.config(
                tmp_path / str(k % 3),
                there,
                through,
                lambda text: text.replace("retries: 4", "retries: 2"),
            )
            if main(["run", str(config), "-q"]) == 0:
                break
            assert len(errors(capsys)) == 1
            stopped += 1
        else:
            raise AssertionError("never finished")
    assert stopped >= 1
    assert_same(country, s3, there)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_drivers_killed_at_any_moment_cost_nothing(country, there, s3, tmp_path, seed):
    """SIGKILL, again and again, each time on another machine; what is put stays right."""
    rng = random.Random(seed)
    with stormy(s3, sky := Weather()) as through:
        for k in range(40):
            config = country.config(tmp_path / str(k), there, through)
            command = [sys.executable, "-m", "pipeline.cli", "run", str(config), "-q"]
            driver = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
            # By the requests that it has made, not by the clock: the same on any machine.
            limit = len(sky.log) + rng.randint(10, 250)
            while driver.poll() is None and len(sky.log) < limit:
                time.sleep(0.005)
            driver.kill()
            err = driver.communicate()[1]
            if driver.returncode == 0:
                break
            assert driver.returncode == -9, err
        else:
            raise AssertionError("never finished")
    assert k >= 1
    assert main(["run", str(country.config(tmp_path / "last", there, s3)), "-q"]) == 0
    assert_same(country, s3, there)
