"""``disagg dhis2 pull`` from a server and from files, against what the server has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import geopandas as gpd
import pandas as pd
import pytest
from shapely.geometry import shape

from pipeline.cli.main import main
from pipeline.config.dhis2_schema import PASSWORD, TOKEN, USER
from pipeline.dhis2.server import Server
from pipeline.updates.arrivals import load_watched
from tests.pipeline.dhis2 import fake_server as fake
from tests.pipeline.dhis2.conftest import PULL

Write = Callable[..., Path]


def _pulled(tmp_path: Path) -> dict[tuple[str, str], float]:
    table = pd.read_csv(tmp_path / "cases.csv")
    return {(row.month, row.uid): float(row.cases) for row in table.itertuples()}


def _wanted(dhis2: fake.Dhis2, combo: str | None = None) -> dict[tuple[str, str], float | None]:
    return {
        (f"2024-0{n}", unit): dhis2.total(fake.CASES, f"20240{n}", unit, combo)
        for n in (1, 2)
        for unit in dhis2.at_level(2)
    }


def _with(**pull: Any) -> dict[str, Any]:
    return {key: value for key, value in {**PULL, **pull}.items() if value is not None}


@pytest.mark.parametrize("api", ["analytics", "analytics/dataValueSet"])
def test_counts_and_boundaries_of_a_server(
    write: Write, dhis2: fake.Dhis2, url: str, tmp_path: Path, api: str
) -> None:
    assert main(["dhis2", "pull", str(write(dhis2={"url": url, "pull": _with(api=api)}))]) == 0
    assert _pulled(tmp_path) == _wanted(dhis2)
    areas = gpd.read_file(tmp_path / "areas.geojson").set_index("uid")
    assert sorted(areas.index) == sorted(dhis2.at_level(2))
    assert {uid: dhis2.units[uid]["name"] for uid in areas.index} == areas["name"].to_dict()
    assert all(areas.geometry[u].equals(shape(dhis2.units[u]["geometry"])) for u in areas.index)
    pages = [query["page"] for _, name, query in dhis2.asked if name == "organisationUnits.json"]
    assert pages == [["1"], ["2"]]


def test_a_second_pull_writes_nothing(write: Write, dhis2: fake.Dhis2, tmp_path: Path) -> None:
    """Nor does one that fails; one of other values replaces them, and tells so."""
    config = str(write())
    assert main(["dhis2", "pull", config]) == 0
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()}
    assert len(before) == 4
    assert main(["dhis2", "pull", config]) == 0
    dhis2.failures = [None, None, None, 403]
    assert main(["dhis2", "pull", config]) == 2
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()} == before
    key = next(key for key in dhis2.stored if key[0] == fake.CASES)
    dhis2.stored[key] = "500"  # a late correction
    assert main(["dhis2", "pull", config]) == 0
    changed = {p.name for p, (text, _) in before.items() if p.read_bytes() != text}
    assert changed == {"cases.csv", "cases.dhis2.json"}
    assert _pulled(tmp_path) == _wanted(dhis2)


def test_the_manifest_says_where_the_files_are_from(write: Write, url: str, tmp_path: Path) -> None:
    assert main(["dhis2", "pull", str(write())]) == 0
    text = (tmp_path / "cases.dhis2.json").read_text()
    about = json.loads(text)
    assert (about["url"], about["server_version"], about["rows"]) == (url, "2.41.3", 12)
    assert set(about["sha256"]) == {"areas.geojson", "cases.csv"}
    assert fake.TOKEN not in text


@pytest.mark.parametrize(
    "failures",
    [[429], [503, None, 500], ["break", None, "cut"], [None, None, None, 429, 429, "break"]],
)
def test_what_passes_is_tried_again(
    write: Write, dhis2: fake.Dhis2, tmp_path: Path, failures: list[Any]
) -> None:
    dhis2.failures = list(failures)
    assert main(["dhis2", "pull", str(write())]) == 0
    assert dhis2.failures == []
    told = [7.0 if failure == 429 else None for failure in failures if failure is not None]
    assert [7.0 if wait == 7 else None for wait in dhis2.waits] == told
    assert max(dhis2.waits) <= 7
    assert _pulled(tmp_path) == _wanted(dhis2)


@pytest.mark.parametrize(
    ("environ", "failures", "status", "said"),
    [
        ({}, [503] * 4, 75, "cannot be reached after 4 attempts (HTTP 503)"),
        ({}, ["break"] * 4, 75, "cannot be reached after 4 attempts"),
        ({}, [302], 2, "leads to elsewhere (HTTP 302); give the address of the server itself"),
        ({}, ["page"], 2, "answered without JSON; check dhis2.url"),
        ({}, [403], 2, "access denied (HTTP 403: for a while); give the user the authority"),
        ({TOKEN: "d2pat_wrong_4712"}, [], 2, "the login is refused (HTTP 401 E1006"),
        ({TOKEN: ""}, [], 2, "no login in the environment"),
        ({TOKEN: "", USER: fake.LOGIN[0], PASSWORD: fake.LOGIN[1]}, [], 0, ""),
    ],
)
def test_logins_and_servers_that_are_away(
    write: Write, dhis2: fake.Dhis2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], environ: dict[str, str], failures: list[Any], status: int,
    said: str,
) -> None:  # fmt: skip
    """One line each, and nothing half-written; no login is in any file or line."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    dhis2.failures = failures
    assert main(["dhis2", "pull", str(write()), "-v"]) == status
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == (status != 0)
    assert said in err
    files = [p for p in tmp_path.iterdir() if p.name != "malaria.yaml"]
    assert len(files) == (3 if status == 0 else 0)
    everything = out + err + "".join(p.read_text() for p in files)
    assert not [s for s in (fake.TOKEN, "wrong_4712", fake.LOGIN[1]) if s in everything]


CSV_HEAD = "dataelement,period,orgunit,categoryoptioncombo,attributeoptioncombo,value,storedby"


def _as_csv(dhis2: fake.Dhis2, head: str = CSV_HEAD) -> str:
    rows = [
        f'{fake.CASES},{month},{unit},{combo},{fake.DEFAULT},{total},"a, b\nc"'
        for month in ("202401", "202402")
        for unit in dhis2.at_level(2)
        for combo in (fake.UNDER, fake.OVER)
        for total in [dhis2.total(fake.CASES, month, unit, combo)]
    ]
    return "\n".join([head, *rows, ""])


def _as_set(dhis2: fake.Dhis2) -> str:
    query = {"dimension": [f"dx:{fake.CASES}", "pe:202401;202402", "ou:LEVEL-2"]}
    _, document = dhis2._get_analytics_dataValueSet_json(query)
    gone = {**document["dataValues"][0], "value": "9999", "deleted": True}
    return json.dumps({"dataValues": [*document["dataValues"], gone]})


def _as_analytics(dhis2: fake.Dhis2) -> str:
    query = {"dimension": [f"dx:{fake.CASES}", "pe:202401;202402", "ou:LEVEL-2"]}
    return json.dumps(dhis2._get_analytics_json(query)[1])


@pytest.mark.parametrize(
    "text", [_as_csv, lambda d: _as_csv(d, CSV_HEAD.upper().replace("EGORYOPTION", "OPT")),
             lambda d: _as_csv(d).replace(",", ";"), _as_set, _as_analytics],
)  # fmt: skip
def test_files_in_place_of_a_server(
    write: Write, dhis2: fake.Dhis2, tmp_path: Path, text: Callable[[fake.Dhis2], str]
) -> None:
    """Of each form, with the same counts; no request is made, and no server is named."""
    (tmp_path / "values.txt").write_text(text(dhis2))
    boundaries = dhis2._get_organisationUnits_geojson({"level": ["2"]})[1]
    (tmp_path / "units.geojson").write_text(json.dumps(boundaries))
    pull = {"values": "values.txt", "boundaries": "units.geojson", "sum": True}
    assert main(["dhis2", "pull", str(write(dhis2={"pull": pull}))]) == 0
    assert _pulled(tmp_path) == _wanted(dhis2)
    assert dhis2.asked == []


def test_what_was_entered_for_the_units_themselves(
    write: Write, dhis2: fake.Dhis2, url: str, tmp_path: Path
) -> None:
    units = dhis2.at_level(2)
    for n, unit in enumerate(units):
        dhis2.stored[fake.CASES, "202402", unit, fake.DEFAULT] = str(n + 1)
    pull = _with(api="dataValueSets")
    assert main(["dhis2", "pull", str(write(dhis2={"url": url, "pull": pull}))]) == 0
    assert _pulled(tmp_path) == {("2024-02", unit): n + 1 for n, unit in enumerate(units)}


def test_several_values_are_added_up_only_where_that_is_asked(
    write: Write, dhis2: fake.Dhis2, url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    both = [f"{fake.CASES}.{fake.UNDER}", f"{fake.CASES}.{fake.OVER}"]
    for pull, status, combo in (
        (_with(data=both), 2, None),
        (_with(data=both, sum=True), 0, None),
        (_with(data=both[:1]), 0, fake.UNDER),
    ):
        assert main(["dhis2", "pull", str(write(dhis2={"url": url, "pull": pull}))]) == status
        if status == 0:
            assert _pulled(tmp_path) == _wanted(dhis2, combo)
    said = capfd.readouterr().err
    assert "12 of 12 units and periods have several values, District" in said
    assert f"{both[0]} (Malaria cases)" in said
    assert "dhis2.pull.sum: true" in said


def test_positives_and_people_tested(
    write: Write, dhis2: fake.Dhis2, url: str, tmp_path: Path
) -> None:
    counts = {"path": "cases.csv", "value": "cases", "tested": "examined", "period": "month"}
    pull = _with(tested=fake.TESTED)
    model = {"likelihood": "beta_binomial"}
    path = write(counts=counts, model=model, dhis2={"url": url, "pull": pull})
    assert main(["dhis2", "pull", str(path)]) == 0
    table = pd.read_csv(tmp_path / "cases.csv").set_index(["month", "uid"])
    assert {k: float(v) for k, v in table["cases"].items()} == _wanted(dhis2)
    one = dhis2.at_level(2)[3]
    assert table.loc[("2024-01", one), "examined"] == dhis2.total(fake.TESTED, "202401", one)


def test_units_without_a_boundary_are_told(
    write: Write, dhis2: fake.Dhis2, url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second, *_ = dhis2.at_level(2)
    dhis2.units[first]["geometry"] = None
    dhis2.units[second]["geometry"] = {"type": "Point", "coordinates": [45, -20]}
    assert main(["dhis2", "pull", str(write())]) == 0
    assert not {first, second} & {unit for _, unit in _pulled(tmp_path)}
    said = capfd.readouterr().err
    assert "warning: organisation units without a boundary: District 0, District 1" in said
    assert "4 values of units without a boundary: District 0, District 1" in said


def test_below_some_units_alone(write: Write, dhis2: fake.Dhis2, url: str, tmp_path: Path) -> None:
    parent = dhis2.at_level(2)[2]
    pull = _with(level=3, parents=parent, boundaries="own")
    (tmp_path / "areas.geojson").write_text("mine")
    assert main(["dhis2", "pull", str(write(dhis2={"url": url, "pull": pull}))]) == 0
    below = [u for u in dhis2.at_level(3) if parent in dhis2.units[u]["path"]]
    assert {unit for _, unit in _pulled(tmp_path)} == set(below)
    assert (tmp_path / "areas.geojson").read_text() == "mine"


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"periods": ["202413"]}, "dhis2.pull.periods: '202413' is no period of DHIS2"),
        ({"periods": ["202402..202401"]}, "dhis2.pull.periods: 202402..202401 has no period"),
        ({"level": 0}, "dhis2.pull.level: 0; give a number of at least 1"),
    ],
)
def test_what_is_written_wrong_is_told_before_the_server_is_asked(
    write: Write, own: dict[str, Any], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    away = {"url": "http://127.0.0.1:9", "pull": _with(**own)}
    assert main(["dhis2", "pull", str(write(dhis2=away))]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert said in line
    assert " line " in line


@pytest.mark.parametrize(
    ("sections", "pull", "said"),
    [
        ({}, _with(periods=["2024S1"]), "dhis2.pull.periods: '2024S1' is six months"),
        ({"time": {"step": "week"}}, _with(), "time: {step: week, week: monday}, and DHIS2's"),
        ({}, _with(level=None), "dhis2.pull.level: is not given"),
        ({}, _with(data=["NoSuchThing"]), "no value of the data elements was found"),
        ({"areas": {"path": "a.gpkg", "id": "uid"}}, _with(), "a.gpkg cannot be written by a pull"),
        ({}, _with(values="bad.csv"), "has no column orgunit"),
        ({}, _with(values="words.csv"), "'many' is no number"),
        ({}, _with(values="twice.csv"), "has 1 and 2"),
        ({}, _with(values="comma.csv"), "comma.csv line 3: has 5 cells, and the head 4; write"),
        ({}, _with(values="login.html"), "is a page of HTML or XML, such as that of a login"),
        ({}, _with(values="kinds.csv"), "periods of several kinds: 202401, 2024Q1"),
        ({}, _with(values="clinic.csv"), "all 1 values are of units without a boundary"),
        ({}, _with(values="other.json"), "is neither a data value set"),
        ({}, _with(values="odd.json"), "analytics without the column pe, ou, value"),
        ({}, _with(values="rows.json"), "rows[0]: has not the 3 columns of the headers"),
        ({}, _with(values="set.json"), "dataValues[0]: has no dataElement, period or orgUnit"),
        ({}, _with(boundaries="login.html"), "is a page of HTML or XML, such as that of a login"),
        ({}, _with(boundaries="units.json"), "has no organisation unit with a boundary"),
        ({}, _with(boundaries="other.json"), "is no GeoJSON with features"),
        ({}, None, "dhis2.pull: is not given"),
    ],
)
def test_one_line_says_what_is_wrong(
    write: Write, dhis2: fake.Dhis2, url: str, tmp_path: Path, sections: dict[str, Any],
    pull: dict[str, Any] | None, said: str, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    unit = dhis2.at_level(2)[0]
    head, row = "dataelement,period,orgunit,value", f"{fake.CASES},202401,{unit}"
    for name, text in {
        "bad.csv": "dataelement,period,value",
        "words.csv": f"{head}\n{row},many",
        "comma.csv": f"{head}\n{row},1\n{row},1,234",
        "login.html": "<!DOCTYPE html><html>login</html>",
        "twice.csv": f"{head}\n{row},1\n{row},2",
        "kinds.csv": f"{head}\n{row},1\n{fake.CASES},2024Q1,{unit},2",
        "clinic.csv": f"{head}\n{fake.CASES},202401,{dhis2.at_level(3)[0]},1",
        "odd.json": '{"headers": [null, 1], "rows": []}',
        "rows.json": json.dumps(
            {"headers": [{"name": n} for n in ("pe", "ou", "value")], "rows": [1]}
        ),
        "set.json": '{"dataValues": [7]}',
        "units.json": '{"features": [1, {"id": "x", "properties": [], "geometry": "none"}]}',
        "other.json": '{"type": "FeatureCollection"}',
    }.items():
        (tmp_path / name).write_text(text)
    given = {"url": url} | ({} if pull is None else {"pull": pull})
    assert main(["dhis2", "pull", str(write(**sections, dhis2=given))]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert not (tmp_path / "cases.csv").exists()
    assert not list(tmp_path.glob(".*"))


def test_the_address_of_a_server(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_watched(write(dhis2={"url": "https://dhis2.example.org/hmis/api/"}))
    assert loaded.dhis2.url == "https://dhis2.example.org/hmis"
    monkeypatch.setenv("DISAGG_LOGIN", "admin:district")
    for url, said in (
        ("dhis2.example.org", "give the server's address, such as https://dhis2.example.org"),
        ("https://${DISAGG_LOGIN}@dhis2.example.org", f"a login in the address; .* set {TOKEN}"),
    ):
        with pytest.raises(ValueError, match=said):
            load_watched(write(dhis2={"url": url}))


def test_a_login_that_others_can_read_is_warned_of() -> None:
    urls = ("http://dhis2.example.org", "https://dhis2.example.org", "http://localhost:8080")
    assert [Server(url).open_login for url in urls] == [True, False, False]
