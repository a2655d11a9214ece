"""The wiring of the flows, with stages that only pretend."""

from __future__ import annotations

import importlib.metadata
import inspect
import threading
import time
from pathlib import Path

import pystac
import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_LOCAL_STORAGE_PATH,
    PREFECT_LOGGING_TO_API_ENABLED,
    temporary_settings,
)
from prefect.states import Failed

import flows.tasks
import flows.update
from flows.tasks import is_retryable
from flows.update import HELD, SKIPPED, update_map
from geo.core.errors import InputError, Problem
from pipeline.publishing.gates import Check
from pipeline.publishing.publish import Publication
from pipeline.publishing.versions import current_version, list_versions
from pipeline.run.record import read_record
from pipeline.storage.lock import hold_map
from pipeline.updates.map_run import slug
from tests.pipeline.series_inputs import write_inputs, write_months

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]
BAD = InputError(Problem("cases.csv row 7", "'lots' is no count", "give a number"))


def test_entry_points_are_modules_and_their_parameters_exist():
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    assert {each["work_pool"]["name"] for each in deployments} == {
        "maps", "maps-docker", "maps-kubernetes",
    }  # fmt: skip
    for each in deployments:
        assert ":" not in each["entrypoint"]
        flow = load_flow_from_entrypoint(each["entrypoint"])
        assert set(each["parameters"]) <= set(inspect.signature(flow.fn).parameters)


def test_no_file_is_named_after_a_package():
    packages = set(importlib.metadata.packages_distributions())
    assert not {path.stem for path in (ROOT / "flows").glob("*.py")} & (packages - {"flows"})


@pytest.mark.parametrize(("error", "again"), [(ConnectionResetError(), True), (BAD, False)])
def test_what_is_tried_again(error, again):
    assert is_retryable(None, None, Failed(data=error)) is again


@pytest.fixture
def harness(server, tmp_path):
    """Have flows of this process report to the server; Prefect's own harness is another server."""
    settings = {
        PREFECT_API_URL: server.env["PREFECT_API_URL"],
        PREFECT_HOME: tmp_path,
        PREFECT_LOCAL_STORAGE_PATH: tmp_path / "storage",
        PREFECT_LOGGING_TO_API_ENABLED: False,  # its thread would outlive the server
    }
    with temporary_settings(settings):
        yield


@pytest.fixture
def pretend(make_map, monkeypatch, harness):
    """Pretend to do stages: `ran` has each try; `fail` says with what a stage fails next."""

    class World:
        ran: list[str] = []
        fail: dict[str, list[BaseException]] = {}
        keys: dict[str, tuple[str, bool]] = {}
        slow: dict[str, int] = {}
        answer = own_key = None

    update = {"retries": 2, "retry_delay_s": 0.01, "when_busy": "skip"}
    made = make_map("pretended", update=update)
    world = World()
    world.ran, world.fail, world.keys, world.slow = [], {}, {}, {}
    world.path, world.out = made.config, made.out
    world.answer = Publication("published", "v0001", made.out)
    world.own_key = lambda name: slug(str(made.directory), name)

    def run_stages(config, names, progress, update, fingerprints):
        assert update == "first"
        (name,) = names
        world.ran.append(name)
        with progress.task(name, 10) as task:
            task.advance(5)
        for _ in range(world.slow.get(name, 0)):
            time.sleep(0.02)
        if world.fail.get(name):
            raise world.fail[name].pop(0)
        return [name]

    def summarise(results):
        return [{"name": results[0], "seconds": 1.0, "skipped": False, "summary": {}}]

    def key(name, config, fingerprints):
        return world.keys.get(name, (world.own_key(name), False))

    monkeypatch.setattr(flows.tasks, "run_stages", run_stages)
    monkeypatch.setattr(flows.tasks, "summarise_stages", summarise)
    monkeypatch.setattr(flows.tasks, "stage_key", key)
    monkeypatch.setattr(flows.tasks, "publish", lambda config, force: world.answer)
    monkeypatch.setattr(flows.update, "show_run", lambda config, publication: None)
    return world


def update(world, **parameters):
    return update_map(str(world.path), return_state=True, **parameters)


def test_a_connection_is_tried_again_and_bad_input_is_not(pretend):
    pretend.fail["fit"] = [ConnectionResetError("reset"), TimeoutError("slow")]
    assert update(pretend).type.value == "COMPLETED"
    assert pretend.ran == ["ingest", "fit", "fit", "fit", "predict", "evaluate", "report"]
    pretend.ran.clear()
    pretend.fail["ingest"] = [BAD]
    state = update(pretend)
    assert (state.type.value, state.message) == ("FAILED", str(BAD))
    assert pretend.ran == ["ingest"]
    pretend.fail["ingest"] = [ZeroDivisionError("ours")]
    state = update(pretend)
    assert state.type.value == "FAILED"
    assert "ZeroDivisionError" in state.message
    assert pretend.ran == ["ingest"] * 2


def test_a_stage_that_takes_too_long_is_stopped_and_not_tried_again(pretend):
    pretend.slow["fit"] = 500
    state = update(pretend, changes={"update": {"timeout_s": 1.0}})
    assert (state.type.value, state.name) == ("FAILED", "TimedOut")
    assert "longer than update.timeout_s" in state.message
    assert pretend.ran == ["ingest", "fit"]


def test_a_cached_result_is_used_only_while_the_files_are_there(pretend):
    assert update(pretend).type.value == "COMPLETED"
    pretend.ran.clear()
    pretend.keys["fit"] = (pretend.own_key("fit"), True)
    assert update(pretend).type.value == "COMPLETED"
    assert pretend.ran == ["ingest", "predict", "evaluate", "report"]
    pretend.ran.clear()
    pretend.keys["fit"] = ("another-key", True)
    assert update(pretend).type.value == "COMPLETED"
    assert "fit" in pretend.ran


def test_ends_have_their_names(pretend):
    check = Check("coverage", 0.5, "0.8 to 0.97", False, "coverage: 0.5 of them")
    pretend.answer = Publication("held", None, pretend.out, (check.reason,), (check,))
    state = update(pretend)
    assert (state.type.value, state.name) == ("COMPLETED", HELD)
    assert "coverage: 0.5 of them" in state.message
    held, over = threading.Event(), threading.Event()

    def by_hand():
        with hold_map(pretend.out, "disagg run by hand"):
            held.set()
            over.wait(60)

    other = threading.Thread(target=by_hand)
    other.start()
    held.wait(60)
    state = update(pretend)
    over.set()
    other.join()
    assert (state.type.value, state.name) == ("COMPLETED", SKIPPED)
    assert "disagg run by hand" in state.message
    state = update(pretend, changes={"fit": {"max_epoch": 3}})
    assert "did you mean fit.max_epochs?" in state.message


@pytest.mark.timeout(900)
def test_a_month_is_published_by_an_update(harness, tmp_path):
    more = "gates: {better_than_constant: false}\nupdate: {settle_s: 0}\n"
    config = write_inputs(tmp_path, 3, more=f"{more}evaluate: {{schemes: [], calibration: none}}\n")

    def run():
        state = update_map(str(config), return_state=True)
        assert state.name == "Completed", state.message
        return read_record(tmp_path / "out")["fit"]["summary"]

    assert "updated" not in run()
    write_months(tmp_path, 4)
    assert list(run()["updated"]) == ["2024-04"]
    versions = list_versions(tmp_path / "out/published")
    assert [each.period for each in versions] == ["2024-03", "2024-04"]
    assert current_version(tmp_path / "out/published").name == "v0002"
    # The maps of other periods are published with it: its catalogue leads to no missing file.
    collection = tmp_path / "out/published/current/stac/collection.json"
    items = list(pystac.Collection.from_file(str(collection)).get_items())
    assert len(items) == 3
    for asset in (each for item in items for each in item.assets.values()):
        assert Path(asset.get_absolute_href()).exists(), asset.href
