"""Versions of a map: whole or invisible, swapped at once, held back by gates, rolled back."""

import base64
import hashlib
import io
import json
import os
import shutil
import threading
import time

import numpy as np
import pytest
import rasterio
import yaml
from PIL import Image

from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.core.json_values import jsonable
from pipeline.core.progress import Silent
from pipeline.evaluation.verdict import paired_gain, verdict
from pipeline.publishing.gates import check_gates, map_change
from pipeline.publishing.publish import publish, publish_dir
from pipeline.publishing.summary import headline, page
from pipeline.publishing.versions import current_version, list_versions, open_versions
from pipeline.run.fingerprints import output_fingerprint
from pipeline.storage.fingerprint import fingerprint_value
from pipeline.storage.place import read_place
from tests.command import Command
from tests.pipeline.publishing.finished import MINIMAL, build, leave_run, report


def leave_report(config, of):
    """Leave the page of a map, as the report stage records it."""
    out = config.output.dir
    (out / "report.html").write_text(f"page of {of}")
    path = out / "work" / "stages.json"
    record = json.loads(path.read_text())
    record["report"] = {
        "seconds": 1.0,
        "inputs": {"rate_mean.tif": of},
        "outputs": {"report.html": output_fingerprint(out / "report.html")},
        "summary": {},
    }
    path.write_text(json.dumps(record))


@pytest.fixture(params=["disk", "bucket"])
def where(request):
    """Section ``publish``: versions are the same on a disk and on an object store."""
    if request.param == "disk":
        return {}
    return {"dir": f"s3://{request.getfixturevalue('bucket')}/my/published"}


def test_a_run_becomes_the_current_version_once(tmp_path, where):
    config = build(tmp_path, publish=where)
    leave_run(config, 0.05)
    first = publish(config)
    assert (first.status, first.version) == ("published", "v0001")
    current = current_version(publish_dir(config))
    for name in ("rate_mean.tif", "areas.csv", "evaluation.json", "run.json"):
        data = read_place(current.path / name)
        assert data == (config.output.dir / name).read_bytes()
        assert current.about["files"][name] == hashlib.sha256(data).hexdigest()
    with (config.output.dir / "areas.csv").open("a") as file:
        file.write("written on in place\n")
    assert b"written on" not in read_place(current.path / "areas.csv")  # it is a copy
    leave_run(config, 0.05)  # another run.json, the same map
    assert publish(config).status == "unchanged"
    assert len(list_versions(publish_dir(config))) == 1


def test_a_report_is_published_with_its_map_and_makes_no_version_of_its_own(tmp_path):
    config = build(tmp_path)
    out = config.output.dir
    leave_run(config, 0.05)
    leave_report(config, output_fingerprint(out / "rate_mean.tif"))
    assert publish(config).status == "published"
    assert (current_version(publish_dir(config)).path / "report.html").is_file()
    (out / "report.html").unlink()
    leave_run(config, 0.05)
    assert publish(config).status == "unchanged"
    leave_run(config, 0.06)
    leave_report(config, "another map")
    assert publish(config).version == "v0002"
    assert not (current_version(publish_dir(config)).path / "report.html").exists()


def test_the_page_of_a_run(tmp_path):
    from matplotlib import pyplot

    config = build(
        tmp_path, gates={"min_gain": 0.5}, publish={"url": "https://maps.example.org/m/"}
    )
    leave_run(config, 0.05)
    pyplot.imsave(config.output.dir / "preview.png", np.zeros((600, 2000, 3)))
    done = publish(config)
    text = page(config, done)
    image = Image.open(io.BytesIO(base64.b64decode(text.split("base64,")[1].split(")")[0])))
    assert image.size == (900, 270)
    lines = text.splitlines()
    assert "| held-out gain | at least 0.5 nats an area | 1 | passed |" in lines
    assert "| 90 % intervals hold | - | 0.9 | - |" in lines
    url = "https://maps.example.org/m/versions/v0001/rate_mean.tif"
    assert f"* [rate_mean.tif]({url})" in lines
    assert headline(config, done).startswith("disagg: published as v0001 in ")
    leave_run(config, 0.06, evaluation=report(gain=0.1))
    held = publish(config)
    assert "**not passed**" in page(config, held)
    message = "disagg: finished, but did not pass its gates: held-out gain"
    assert headline(config, held).startswith(message)


def test_counts_that_are_taken_back_bring_the_old_map_back(tmp_path):
    config = build(tmp_path)
    for rate, version in ((0.05, "v0001"), (0.06, "v0002"), (0.05, "v0003")):
        leave_run(config, rate)
        done = publish(config)
        assert (done.status, done.version) == ("published", version)
    directory = publish_dir(config)
    first, second, third = (v.fingerprint for v in list_versions(directory))
    assert first == third != second
    # v0003 is the same map: it is not withdrawn, nothing is new.
    open_versions(directory).roll_back("v0001")
    assert publish(config).version == "v0001"


@pytest.mark.parametrize(
    ("gates", "left", "reason"),
    [
        ({"converged": True}, {"converged": False}, "converged: the fit has not converged"),
        ({"converged": True}, {"converged": None}, "converged: was not measured"),
        ({"min_gain": 0.5}, {"evaluation": report(gain=0.4)}, "held-out gain: "),
        ({"min_correlation": 0.6}, {"evaluation": report(correlation=0.59)}, "held-out corr"),
        ({"coverage": [0.8, 0.97]}, {"evaluation": report(coverage=0.5)}, "coverage: intervals"),
        ({"coverage": [0.8, 0.97]}, {"evaluation": report(coverage=1.0)}, "coverage: intervals"),
        (
            {"min_gain": 0.5, "better_than_constant": False},
            {"evaluation": {"held_out": {}}},
            "held-out gain: was not measured",
        ),
        ({"min_gain": 0.5, "scheme": "block"}, {}, "held-out gain: was not measured"),
    ],
)
def test_a_gate_holds_a_map_back(tmp_path, gates, left, reason):
    config = build(tmp_path, gates=gates)
    leave_run(config, 0.05)
    if gates.get("scheme") != "block":
        assert publish(config).status == "published"
    leave_run(config, 0.06, **left)
    held = publish(config)
    assert held.status == "held"
    assert held.reasons[0].startswith(reason)
    assert len(held.reasons) == 1
    versions = list_versions(publish_dir(config))
    assert len(versions) == (gates.get("scheme") != "block")
    forced = publish(config, force=True)
    assert forced.status == "published"
    about = current_version(publish_dir(config)).about
    assert about["forced"]
    assert not about["gates"][0]["passed"]


@pytest.mark.parametrize(
    ("log_loss", "error", "failed"),
    [
        (0.39, 0.08, []),
        (0.41, 0.08, ["held-out log loss: log loss of held-out areas (area) is 0.41"]),
        (0.4, 0.11, ["held-out calibration error: calibration error of held-out areas"]),
        (None, 0.1, ["held-out log loss: was not measured; see evaluate.schemes"]),
    ],
)
def test_probabilities_of_labels_have_gates(tmp_path, log_loss, error, failed):
    gates = {"max_log_loss": 0.4, "max_calibration_error": 0.1, "better_than_constant": False}
    labels = {"path": "labels.csv", "value": "outbreak"}
    config = build(tmp_path, counts=None, labels=labels, model={"kind": "blrt"}, gates=gates)
    model = {"log_loss": log_loss, "calibration": {"error": error}}
    leave_run(config, 0.05, evaluation={"held_out": {"area": {"model": model}}})
    found = [each.reason for each in check_gates(config, None) if not each.passed]
    assert len(found) == len(failed)
    assert all(one.startswith(start) for one, start in zip(found, failed, strict=True))
    counts = build(tmp_path / "counts", gates=gates)
    leave_run(counts, 0.05)
    refused = [each.reason for each in check_gates(counts, None)]
    assert refused[0] == "held-out log loss: the map is of counts; remove gates.max_log_loss"


def test_the_change_is_measured_against_what_readers_see(tmp_path):
    config = build(tmp_path, gates={"max_change": 0.3})
    leave_run(config, 0.05)
    assert publish(config).status == "published"  # nothing to compare with
    leave_run(config, 0.05 * np.exp(0.2))
    assert publish(config).checks[0].value == pytest.approx(0.2, rel=1e-4)
    other_unit = build(tmp_path, gates={"max_change": 0.3}, output={"rate_per": 100})
    leave_run(other_unit, 0.005 * np.exp(0.4))
    assert publish(other_unit).checks[0].value == pytest.approx(0.2, rel=1e-4)
    open_versions(publish_dir(config)).roll_back("v0001")
    leave_run(config, 0.05 * np.exp(0.5))
    held = publish(config)
    assert held.status == "held"
    assert "changed by 0.5 from v0001, at most 0.3 allowed" in held.reasons[0]


def test_change_skips_what_only_one_map_has_and_refuses_another_grid(tmp_path):
    a, b = build(tmp_path / "a"), build(tmp_path / "b")
    rate = np.full((4, 5), 0.05)
    leave_run(a, rate)
    rate = rate * 2
    rate[0, 0] = np.nan
    leave_run(b, rate)
    assert map_change(a.output.dir, b.output.dir) == pytest.approx(np.log(2), rel=1e-6)
    with rasterio.open(b.output.dir / "rate_mean.tif", "r+") as file:
        file.transform = rasterio.Affine(500, 0, 0, 0, -500, 0)
    assert map_change(a.output.dir, b.output.dir) is None
    gated = build(tmp_path / "b", gates={"max_change": 1})
    assert check_gates(gated, a.output.dir)[0].reason
    lost = np.full((4, 5), np.nan)  # no pixel but one: not taken for unchanged
    lost[0, 0] = 0.05
    leave_run(gated, lost)
    check = check_gates(gated, a.output.dir)[0]
    assert (check.gate, check.passed) == ("change", False)


def test_a_crash_before_the_link_is_mended_by_the_next_publish(tmp_path, monkeypatch):
    config = build(tmp_path)
    leave_run(config, 0.05)
    publish(config)
    leave_run(config, 0.06)

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pipeline.publishing.local_versions.LocalVersions.commit", crash)
        with pytest.raises(KeyboardInterrupt):
            publish(config)
    assert current_version(publish_dir(config)).name == "v0001"
    assert publish(config).status == "published"
    assert current_version(publish_dir(config)).name == "v0002"


def test_rolling_back_skips_what_readers_never_had_and_lasts(tmp_path):
    for month, rate in (("2026-11", 0.05), ("2026-12", 0.06), ("2024-01", 0.07)):
        config = build(tmp_path, month)
        leave_run(config, rate)
        publish(config)
    directory = publish_dir(config)
    assert current_version(directory).period == "2026-12"
    assert open_versions(directory).roll_back()[1].period == "2026-11"
    config = build(tmp_path, "2026-11")  # a correction comes as the next version
    leave_run(config, 0.051)
    assert publish(config).status == "published"
    config = build(tmp_path, "2026-12")
    leave_run(config, 0.06)
    again = publish(config)
    assert again.status == "unchanged"
    assert "rolled back" in again.reasons[0]


def test_what_lies_there_must_be_of_the_period_that_is_published(tmp_path):
    config = build(tmp_path, "2026-02")
    leave_run(config, 0.05)
    run, path = config.output.dir / "run.json", config.output.dir / "work" / "stages.json"
    record = json.loads(path.read_text())
    for name in ("ingest", "predict"):
        record[name]["inputs"]["period"] = fingerprint_value("2026-01")
    path.write_text(json.dumps(record))
    for period, there in (("2026-01", "period 2026-01"), ("2026-02", "another period")):
        ran = build(tmp_path, period).model_dump(mode="json")
        run.write_text(json.dumps({"config": ran}))  # the last one may have been of a stage alone
        with pytest.raises(InputError, match=f"predict ran there for {there}, not 2026-02"):
            publish(config)


@pytest.mark.parametrize("name", ["rate_mean.qml", "rate_mean.sld", "disagg.qgz"])
def test_a_style_may_be_edited_in_the_version_that_readers_have(tmp_path, name):
    source = tmp_path / "a"
    source.write_text("<qgis/>")
    versions = open_versions(tmp_path / "maps")
    version = versions.add("v0001", {name: source}, {}, "f")
    versions.commit(version)
    (tmp_path / "maps" / "current" / name).write_text("<qgis>my colours</qgis>")
    assert current_version(tmp_path / "maps") == version
    (tmp_path / "maps" / "current" / name).unlink()
    assert current_version(tmp_path / "maps") is None


def test_a_damaged_current_version_is_not_passed_over(tmp_path):
    config = build(tmp_path, gates={"max_change": 0.1})
    leave_run(config, 0.05)
    publish(config)
    (publish_dir(config) / "current" / "areas.csv").write_text("")
    leave_run(config, 0.5)
    with pytest.raises(InputError, match="damaged"):
        publish(config)


@pytest.mark.ci
def test_rollback_and_what_was_rolled_back_is_not_published_again(tmp_path, where):
    config = build(tmp_path, publish=where)
    for rate in (0.05, 0.06, 0.07):
        leave_run(config, rate)
        publish(config)
    was, now = open_versions(publish_dir(config)).roll_back()
    assert (was.name, now.name) == ("v0003", "v0002")
    again = publish(config)  # the next scheduled run, with the same data
    assert again.status == "unchanged"
    assert "v0003 is this map and was rolled back" in again.reasons[0]
    assert current_version(publish_dir(config)).name == "v0002"
    leave_run(config, 0.08)
    assert publish(config).version == "v0004"
    open_versions(publish_dir(config)).roll_back("v0001")
    with pytest.raises(InputError, match="no version before the current one"):
        open_versions(publish_dir(config)).roll_back()
    with pytest.raises(InputError, match="no version v0009; one of: v0001"):
        open_versions(publish_dir(config)).roll_back("v0009")


def test_old_versions_go_but_never_the_current_one_nor_the_one_before(tmp_path):
    config = build(tmp_path, publish={"keep": 2})
    for k in range(4):
        leave_run(config, 0.05 + k / 100)
        done = publish(config)
    assert done.dropped == ("v0002",)
    assert [v.name for v in list_versions(publish_dir(config))] == ["v0003", "v0004"]
    directory = tmp_path / "kept"
    source = {"a.txt": tmp_path / "out" / "areas.csv"}
    versions = open_versions(directory)
    made = [versions.add(versions.new_name(), source, {}, str(k)) for k in range(5)]
    versions.commit(made[1])
    assert versions.remove_old(2) == ("v0003",)
    assert [v.name for v in list_versions(directory)] == ["v0001", "v0002", "v0004", "v0005"]


def test_a_backfilled_period_does_not_replace_a_later_one(tmp_path):
    gates = {"max_change": 0.5}
    for month, rate in (("2026-01", 0.05), ("2026-03", 0.5 * np.exp(-1.9))):
        config = build(tmp_path, month, gates=gates)
        leave_run(config, rate)
        assert publish(config).status == "published"
    config = build(tmp_path, "2026-02", gates=gates)
    leave_run(config, 0.051)
    done = publish(config)
    assert done.status == "superseded"
    assert publish(config).status == "unchanged"
    assert current_version(publish_dir(config)).period == "2026-03"
    assert list_versions(publish_dir(config))[-1].about["compared_with"] == "v0001"


def test_parts_of_different_runs_are_not_published(tmp_path):
    config = build(tmp_path)
    leave_run(config, 0.05)
    path = config.output.dir / "work" / "stages.json"
    good = path.read_text()
    record = json.loads(good)
    record["fit"]["outputs"]["work/model"] = "fitted anew"
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match="predict used another version of work/model"):
        publish(config)
    path.write_text(good)
    (config.output.dir / "areas.csv").write_text("cut sho")
    with pytest.raises(InputError, match="missing or damaged"):
        publish(config)
    path.unlink()
    with pytest.raises(InputError, match="ingest has not finished"):
        publish(config)
    assert list_versions(publish_dir(config)) == []


def test_a_publication_cut_short_is_never_seen(tmp_path, monkeypatch):
    config = build(tmp_path)
    leave_run(config, 0.05)
    publish(config)
    leave_run(config, 0.06)
    copy = shutil.copyfile

    def power_cut(source, target):
        if str(target).endswith("evaluation.json"):
            raise KeyboardInterrupt
        return copy(source, target)

    monkeypatch.setattr("pipeline.publishing.local_versions.shutil.copyfile", power_cut)
    with pytest.raises(KeyboardInterrupt):
        publish(config)
    monkeypatch.undo()
    assert current_version(publish_dir(config)).name == "v0001"
    assert [v.name for v in list_versions(publish_dir(config))] == ["v0001"]
    assert publish(config).version == "v0002"


def test_readers_never_see_a_mixture(tmp_path):
    config = build(tmp_path, publish={"keep": 50})
    leave_run(config, 0.05)
    publish(config)
    directory, over, seen, bad = publish_dir(config), threading.Event(), set(), []

    def read():
        while not over.is_set():
            version = current_version(directory)
            if version is None:
                bad.append("no version")
                continue
            for name, digest in version.about["files"].items():
                if hashlib.sha256((version.path / name).read_bytes()).hexdigest() != digest:
                    bad.append(f"{version.name}/{name}")
            seen.add(version.name)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for k in range(8):
        leave_run(config, 0.051 + k / 1000)
        publish(config)
    time.sleep(0.05)
    over.set()
    for reader in readers:
        reader.join()
    assert bad == []
    assert len(seen) > 2


def test_two_publishers_at_once_make_one_version(tmp_path):
    config = build(tmp_path)
    leave_run(config, 0.05)
    code = (
        "import sys, time; from pipeline.config.schema import Config\n"
        "from pipeline.publishing.publish import publish\n"
        "from geo.core.errors import InputError\n"
        "c = Config.model_validate_json(sys.argv[1], context={'base': '.'})\n"
        "while True:\n"
        "    try: print(publish(c).status); break\n"
        "    except InputError: time.sleep(0.01)\n"
    )
    text = json.dumps(config.model_dump(mode="json"))
    both = [Command(text, code=code) for _ in range(2)]
    said = sorted(each.wait().stdout.strip() for each in both)
    assert said == ["published", "unchanged"]


def test_the_commands(tmp_path, capsys):
    path = tmp_path / "map.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, "gates": {"min_gain": 0.5}}))
    for name in ("areas.gpkg", "cases.csv", "population.tif", "rain.tif"):
        (tmp_path / name).touch()
    config = load_config(path)
    assert main(["publish", str(path)]) == 2
    assert "ingest has not finished" in capsys.readouterr().err
    for rate in (0.05, 0.06):
        leave_run(config, rate)
        assert main(["publish", str(path)]) == 0
    leave_run(config, 0.07, evaluation=report(gain=0.0))
    assert main(["publish", str(path)]) == 3
    out, err = capsys.readouterr()
    assert err.startswith("held back: held-out gain")
    assert "published as v0002" in out
    assert main(["versions", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:7] for line in lines] == ["  v0001", "* v0002"]
    assert lines[0].endswith("  not evaluated")
    leave_run(config, 0.06)
    assert main(["publish", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["verdict"]) == ("unchanged", "not evaluated")
    assert main(["rollback", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "v0001"
    assert os.readlink(tmp_path / "out/published/current") == "versions/v0001"
    assert main(["rollback", str(path)]) == 2
    assert "no version before" in capsys.readouterr().err


def test_versions_are_read_against_their_checksums(tmp_path, capsys):
    path = tmp_path / "map.yaml"
    path.write_text(yaml.safe_dump({"name": "m", **MINIMAL, "gates": {"min_gain": 0.5}}))
    for name in ("areas.gpkg", "cases.csv", "population.tif", "rain.tif"):
        (tmp_path / name).touch()
    config = load_config(path)
    leave_run(config, 0.05)
    assert main(["publish", str(path)]) == 0
    assert main(["versions", "--verify", str(path)]) == 0
    assert "every file of 1 versions is as it was published" in capsys.readouterr().out
    file = config.output.dir / "published/versions/v0001/rate_mean.tif"
    whole = file.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for data in (None, whole[:-1], flipped):
        file.unlink() if data is None else file.write_bytes(data)
        if data is flipped:  # reading every file takes long: without being asked nobody does
            assert main(["versions", str(path)]) == 0
            capsys.readouterr()
        assert main(["versions", "--verify", str(path), "--json"]) == 2
        out, err = capsys.readouterr()
        found = json.loads(out)
        assert not found["ok"]
        assert len(found["faults"]) == (1 if data is flipped else 2)  # and no current version
        assert err.count("rate_mean.tif") == 1
        assert err.count("restore it") == (1 if data is flipped else 2)
    table = file.with_name("areas.csv")
    table.write_bytes(table.read_bytes().swapcase())
    assert main(["versions", "--verify", str(path)]) == 2  # one fault does not hide another
    err = capsys.readouterr().err
    assert "rate_mean.tif" in err
    assert "areas.csv: its content is not what was published" in err


def test_what_a_version_says_of_itself_has_a_checksum(tmp_path):
    config = build(tmp_path)
    leave_run(config, 0.05)
    about = publish(config).directory / "version.json"
    about.write_text(about.read_text().replace('"forced": false', '"forced": true '))
    (version,) = open_versions(publish_dir(config)).all()
    assert "version.json is damaged; restore it" in version.trouble
    # There is no other version to go back to.
    leave_run(config, 0.06)
    with pytest.raises(InputError, match=r"restore it .* or `disagg publish \S+ --force"):
        publish(config)
    assert publish(config, force=True).version == "v0002"
    assert current_version(publish_dir(config)).name == "v0002"


# -- better than one rate, which is asked without being configured


def against_one_rate(**gains):
    held_out = {
        scheme: {"gain": paired_gain(np.asarray(gain, float), np.zeros(len(gain)))}
        for scheme, gain in gains.items()
    }
    own = verdict(held_out, ("area", "block"), "one rate")
    return jsonable({**report(), "better_than_constant": own})


WON, LOST, UNCLEAR = [0.4, 0.5, 0.6], [-0.4, -0.5, -0.6], [1.5, -1.0, 0.1]


@pytest.mark.parametrize(
    ("evaluation", "sections", "reasons"),
    [
        (against_one_rate(area=WON, block=WON), {}, []),
        (against_one_rate(area=WON, block=UNCLEAR), {}, []),
        (
            against_one_rate(area=WON, block=LOST),
            {},
            [
                "by region: no, the gain on held-out areas is -0.5 nats an area (90 % interval "
                "-0.67 to -0.33); yes or unclear is required. More or smaller areas with counts "
                "and covariates that explain more raise it; to publish the map all the same, where "
                "the map is read only where counts are, set gates.better_than_constant: [area]"
            ],
        ),
        (against_one_rate(area=LOST, block=LOST), {}, ["by area: no, the", "by region: no, the"]),
        # A gain above 0 alone may be noise.
        (
            against_one_rate(area=UNCLEAR, block=WON),
            {},
            [
                "by area: unclear, the gain on held-out areas is +0.2 nats an area (90 % interval "
                "-1.9 to +2.3); yes is required. More or smaller areas with counts and covariates "
                "that explain more raise it; to publish the map all the same, set "
                "gates.better_than_constant: false"
            ],
        ),
        (against_one_rate(area=WON, block=[0.1, -np.inf]), {}, ["by region: no, the gain on held"]),
        # Regions alone were asked about: they have to prove it.
        (
            against_one_rate(block=UNCLEAR),
            {"evaluate": {"schemes": ["block"]}},
            ["by region: unclear, the gain"],
        ),
        (against_one_rate(area=WON), {"evaluate": {"schemes": ["area"]}}, []),
        (against_one_rate(area=WON), {}, ["by region: was not measured; block was not held out; "]),
        (against_one_rate(block=LOST), {"gates": {"better_than_constant": False}}, []),
        (against_one_rate(area=WON, block=LOST), {"gates": {"better_than_constant": ["area"]}}, []),
        (
            {"held_out": {}},
            {"evaluate": {"schemes": []}},
            ["better_than_constant: was not measured; set evaluate.schemes: [area, block], or set"],
        ),
        (
            report() | {"better_than_constant": None},  # of an earlier version
            {"evaluate": {"schemes": ["area"]}},
            ["by area: was not measured; run `disagg evaluate` again, or set gates.better_than_c"],
        ),
    ],
)
def test_without_gates_a_map_must_beat_one_rate(tmp_path, evaluation, sections, reasons):
    config = build(tmp_path, **sections)
    leave_run(config, 0.05, evaluation=evaluation)
    done = publish(config)
    assert done.status == ("held" if reasons else "published")
    assert len(done.reasons) == len(reasons)
    for found, wanted in zip(done.reasons, reasons, strict=True):
        assert wanted in found
        assert "\n" not in found


def test_a_count_far_from_foreseen_comes_first_and_a_fit_that_is_due_is_told(tmp_path):
    config = build(tmp_path)
    leave_run(config, 0.05, evaluation=against_one_rate(area=LOST, block=WON))
    path = config.output.dir / "work/stages.json"
    stages = json.loads(path.read_text())
    far = ["A05 has 2,430, where 98 to 529 were foreseen"]
    stages["fit"]["summary"] |= {"far": {"2024-06": far}, "refit": "few draws suit the counts"}
    path.write_text(json.dumps(stages))
    (reason,) = publish(config).reasons
    assert "required. Look at 2024-06: A05 has 2,430, where 98 to 529 were foreseen. More" in reason
    said, progress = list[str](), Silent()
    progress.log = said.append
    done = publish(config, force=True, progress=progress)
    assert "publish: warning: a new fit is due, for few draws suit the counts: `disagg" in said[0]
    about = json.loads((done.directory / "version.json").read_text())
    assert (about["refit"], about["no_uncertainty"]) == ("few draws suit the counts", "")


def test_a_map_without_uncertainty_is_published_with_a_warning(tmp_path):
    config = build(tmp_path, model={"kind": "constant"})
    leave_run(config, 0.05, evaluation=against_one_rate(area=WON, block=WON))
    said, progress = list[str](), Silent()
    progress.log = said.append
    done = publish(config, progress=progress)
    assert done.status == "published"
    assert "publish: warning: constant has no uncertainty: the lower and the upper end" in said[0]
    about = json.loads((done.directory / "version.json").read_text())
    assert about["no_uncertainty"].startswith("constant has no uncertainty")


@pytest.mark.parametrize(("gains", "status"), [(UNCLEAR, "held"), (WON, "published")])
def test_where_most_areas_have_no_count_regions_must_say_yes(tmp_path, gains, status):
    config = build(tmp_path, gates={"min_counted": 0.1})
    leave_run(config, 0.05, evaluation=against_one_rate(area=WON, block=gains))
    path = config.output.dir / "work/stages.json"
    record = json.loads(path.read_text())
    record["ingest"]["summary"]["areas_without_counts"] = {"share": 0.6}
    path.write_text(json.dumps(record))
    done = publish(config)
    assert done.status == status
    if status == "held":
        assert "yes is required where most areas have no count" in done.reasons[0]


def test_a_publication_says_what_the_verdict_is(tmp_path):
    config = build(tmp_path)
    leave_run(config, 0.05, evaluation=against_one_rate(area=WON, block=UNCLEAR))
    done = publish(config)
    words = "better than one rate for the whole country: by area yes, by region unclear"
    assert headline(config, done).endswith(f"; {words}")
    assert json.loads((done.directory / "version.json").read_text())["verdict"] == words
    by_area, by_region = done.checks
    assert by_area.asked == "yes"
    assert by_region.asked == "yes or unclear (unclear: the 90 % interval has 0)"
    assert by_region.value == pytest.approx(0.2)
    sentence = "better than one rate for the whole country: by area yes (+0.5 +- 0.058 nats an area"
    assert sentence in page(config, done)
