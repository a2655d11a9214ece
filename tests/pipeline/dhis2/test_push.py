"""``disagg dhis2 push``: tables of a run against what the server has afterwards."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import main
from pipeline.dhis2.push import compare
from pipeline.dhis2.statistics import rounded
from pipeline.dhis2.values import Value
from tests.pipeline.dhis2 import fake_server as fake

Write = Callable[..., Path]
PUSH = {"elements": {"rate": fake.SENT, "p_above_50": {"element": fake.HIGH, "decimals": 3}}}
PERIODS = ("2024-01", "2024-02", "2024-03")  # the last is a forecast


def _rate(unit: str, period: str) -> float:
    return (hash_of(unit) % 9000 + 1) / 700 + int(period[-2:])


def hash_of(text: str) -> int:
    return sum(ord(letter) * 31**n for n, letter in enumerate(text))


def _run(directory: Path, units: list[str], *, series: bool = True) -> None:
    """Write the tables that a run of these units leaves, as far as they are read."""
    out = directory / "out"
    (out / "periods/2024-03").mkdir(parents=True, exist_ok=True)
    with (directory / "cases.csv").open("w") as file:
        file.write("uid,month,cases\n")
        file.writelines(f"{unit},{p},3\n" for p in PERIODS[:2] for unit in units)
    with (out / "periods.csv").open("w") as file:
        file.write("id,period,rate,rate_upper,forecast\n")
        for period in PERIODS:
            ahead = period == PERIODS[2]
            file.writelines(
                f"{u},{period},{_rate(u, period)!r},{9 + n},{ahead}\n" for n, u in enumerate(units)
            )
    for folder, period in ((out, PERIODS[1]), (out / "periods/2024-03", PERIODS[2])):
        (folder / "areas.csv").write_text("uid,fitted\n" + "".join(f"{u},5.5\n" for u in units))
        lines = [f"{u},{_rate(u, period):.4f},{n / 7!r}\n" for n, u in enumerate(units)]
        (folder / "levels_training.csv").write_text("id,rate,p_above_50\n" + "".join(lines))
    if not series:
        (out / "periods.csv").unlink()
    (out / "run.json").write_text("{}")


@pytest.fixture
def config(write: Write, dhis2: fake.Dhis2, url: str, tmp_path: Path) -> Callable[..., str]:
    """A configuration with a finished run; some keys of ``dhis2.push`` changed."""
    _run(tmp_path, dhis2.at_level(2))

    def made(push: dict[str, Any] | None = None, **sections: Any) -> str:
        to = {"url": url, "push": {**PUSH, **(push or {})}}
        given: dict[str, Any] = {"output": {"dir": "out", "forecast": 1}, "dhis2": to}
        return str(write(**{**given, **sections}))

    return made


def _sent(dhis2: fake.Dhis2) -> dict[tuple[str, str, str], str]:
    return {(e, p, u): v for (e, p, u, _), v in dhis2.stored.items() if e in (fake.SENT, fake.HIGH)}


def _posts(dhis2: fake.Dhis2) -> list[str]:
    return [query["dryRun"][0] for method, _, query in dhis2.asked if method == "POST"]


def test_a_round_of_pushes(
    config: Callable[..., str], dhis2: fake.Dhis2, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A dry run changes nothing; a push sends all, a second nothing, a new map its changes."""
    path, units, before = config(), dhis2.at_level(2), dict(dhis2.stored)
    assert main(["dhis2", "push", path]) == 0
    assert dhis2.stored == before
    out = capfd.readouterr().out
    assert "24 values: 24 new, 0 changed, 0 unchanged" in out
    assert "Not sent (dry run; --send sends): 24 would be imported, 0 updated, 0 refused" in out
    assert main(["dhis2", "push", path, "--send"]) == 0
    sent = _sent(dhis2)
    assert len(sent) == 2 * 2 * len(units)
    for unit in units:
        for period in PERIODS[1:]:
            own = Decimal(sent[fake.SENT, period.replace("-", ""), unit])
            assert abs(float(own) - _rate(unit, period)) <= 0.005 + 1e-12
            assert own == own.quantize(Decimal("0.01"))
    assert sent[fake.HIGH, "202403", units[5]] == "0.714"  # 5 / 7
    assert _posts(dhis2) == ["true", "false"]
    capfd.readouterr()
    assert main(["dhis2", "push", path, "--send"]) == 0
    assert "0 new, 0 changed, 24 unchanged\nNothing to send" in capfd.readouterr().out
    assert _posts(dhis2) == ["true", "false"]
    table = tmp_path / "out/periods.csv"
    old = f"{_rate(units[0], PERIODS[1])!r}"
    table.write_text(table.read_text().replace(old, "777.125"))
    assert main(["dhis2", "push", path, "--send"]) == 0
    out = capfd.readouterr().out
    assert "0 new, 1 changed, 23 unchanged" in out
    assert "-> 777.13\nSent: 0 imported, 1 updated, 0 refused" in out
    assert _sent(dhis2) == {**sent, (fake.SENT, "202402", units[0]): "777.13"}


def test_the_files_are_what_is_sent(
    config: Callable[..., str], dhis2: fake.Dhis2, tmp_path: Path
) -> None:
    """As JSON and as CSV, without a server too."""
    combos = {"rate": {"element": fake.SENT, "combo": fake.DEFAULT}}
    to = {"push": {"elements": combos, "periods": "all", "attribute_combo": fake.DEFAULT}}
    assert main(["dhis2", "push", config(dhis2=to)]) == 0
    assert dhis2.asked == []
    folder = tmp_path / "out/dhis2"
    values = json.loads((folder / "dataValueSet.json").read_text())["dataValues"]
    with (folder / "dataValueSet.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["dataelement", "period", "orgunit", "catoptcombo", "attroptcombo", "value"]
    keys = (
        "dataElement",
        "period",
        "orgUnit",
        "categoryOptionCombo",
        "attributeOptionCombo",
        "value",
    )
    assert rows[1:] == [[value[key] for key in keys] for value in values]
    assert len(rows) == 1 + 3 * 6
    assert main(["dhis2", "push", config(dhis2=to), "--send"]) == 2  # to whom?


@pytest.mark.parametrize(
    ("push", "periods"),
    [
        ({}, {"202402", "202403"}),
        ({"forecast": False}, {"202402"}),
        ({"periods": "all"}, {"202401", "202402", "202403"}),
        ({"periods": ["202401"], "forecast": False}, {"202401"}),
    ],
)
def test_periods(
    config: Callable[..., str], dhis2: fake.Dhis2, push: dict[str, Any], periods: set[str]
) -> None:
    given = {"elements": {"rate": fake.SENT}, **push}
    assert main(["dhis2", "push", config(given), "--send"]) == 0
    assert {period for _, period, _ in _sent(dhis2)} == periods


def test_a_map_of_one_period(write: Write, dhis2: fake.Dhis2, url: str, tmp_path: Path) -> None:
    _run(tmp_path, dhis2.at_level(2), series=False)
    counts = {"path": "cases.csv", "value": "cases", "period": "month"}
    push = {"elements": {"fitted": fake.SENT, "p_above_50": fake.HIGH}}
    to = {"url": url, "push": push}
    path = str(write(time=None, counts=counts, dhis2=to))
    assert main(["dhis2", "push", path, "--send"]) == 0
    assert {value for (e, p, _), value in _sent(dhis2).items() if e == fake.SENT} == {"5.5"}
    assert {period for _, period, _ in _sent(dhis2)} == {"202402"}
    counts = {"path": "cases.csv", "value": "cases"}
    dhis2.stored.clear()
    assert main(["dhis2", "push", str(write(time=None, counts=counts, dhis2=to))]) == 2
    push["period"] = "2024"
    assert main(["dhis2", "push", str(write(time=None, counts=counts, dhis2=to)), "--send"]) == 0
    assert {period for _, period, _ in _sent(dhis2)} == {"2024"}


@pytest.mark.parametrize("send", [[], ["--send"]])
def test_what_the_server_refuses_is_told(
    config: Callable[..., str],
    dhis2: fake.Dhis2,
    capfd: pytest.CaptureFixture[str],
    send: list[str],
) -> None:
    """A partial import: a line for each reason, the rest is kept, the status is not 0."""
    full = dhis2.at_level(2)[1]
    dhis2.full_units = {full}
    assert main(["dhis2", "push", config(), *send]) == 2
    out, err = capfd.readouterr()
    first = f"(4 values, the first {fake.HIGH} of {full} in 202402)"
    expected = f"error: refused: E8022: Data set not usable with org unit(s): `{full}` {first}\n"
    assert err == expected
    imported = "imported" if send else "would be imported"
    assert f"20 {imported}, 0 updated, 4 refused" in out
    assert len(_sent(dhis2)) == (20 if send else 0)
    dhis2.full_units = set()
    assert main(["dhis2", "push", config(), "--send"]) == 0
    assert len(_sent(dhis2)) == 24


def test_a_conflict_of_all_values_is_told(
    config: Callable[..., str], dhis2: fake.Dhis2, capfd: pytest.CaptureFixture[str]
) -> None:
    """The server answers 409, with or without a summary."""
    elements = {"rate": "NoSuchElemt"}
    assert main(["dhis2", "push", config({"elements": elements}), "--send", "--json"]) == 2
    out, err = capfd.readouterr()
    assert err.startswith("error: refused: E8103: data element not found: `NoSuchElemt` (12 values")
    found = json.loads(out)
    assert (found["ok"], found["refused"], found["imported"]) == (False, 12, 0)
    dhis2.failures = [None, 409]
    assert main(["dhis2", "push", config(), "--send"]) == 2
    assert "for a while; correct what it says" in capfd.readouterr().err
    assert not _sent(dhis2)


def test_an_older_server(
    config: Callable[..., str], dhis2: fake.Dhis2, capfd: pytest.CaptureFixture[str]
) -> None:
    """It asks for a data set to read values, and answers with the bare summary."""
    dhis2.old = True
    assert main(["dhis2", "push", config(), "--send"]) == 2
    assert "At least one data set must be specified; give the elements' data_set" in (
        capfd.readouterr().err
    )
    dhis2.full_units = {dhis2.at_level(2)[0]}
    assert main(["dhis2", "push", config({"data_set": "pBOMPrpg1QX"}), "--send"]) == 2
    assert "error: refused: E8022" in capfd.readouterr().err
    assert len(_sent(dhis2)) == 20


def test_a_send_that_breaks_off_goes_on(
    config: Callable[..., str], dhis2: fake.Dhis2, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server kept the values, and its answer was lost: they are sent again, and equal."""
    monkeypatch.setattr("pipeline.dhis2.push.SENT_AT_ONCE", 10)
    dhis2.failures = [503, None, "cut", 429]
    assert main(["dhis2", "push", config(), "--send"]) == 0
    assert _posts(dhis2) == ["false"] * 4
    assert len(_sent(dhis2)) == 24


@pytest.mark.parametrize(
    ("push", "sections", "said"),
    [
        ({"elements": {"rates": fake.SENT}}, {}, "no table of 2024-02 has such a column; did you "
         "mean rate?"),
        ({"periods": "all"}, {}, "periods.csv has no such column, and 2024-01 has no maps; add it"),
        ({"periods": ["2023-01"]}, {}, "periods.csv has no 2023-01"),
        ({"elements": {"rate": fake.SENT, "rate_upper": fake.SENT}}, {}, "rate and rate_upper go "),
        ({}, {"output": {"dir": "elsewhere"}}, "there is no finished run"),
    ],
)  # fmt: skip
def test_one_line_says_what_is_wrong(
    config: Callable[..., str], push: dict[str, Any], sections: dict[str, Any], said: str,
    capfd: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "areas.geojson").touch()
    (tmp_path / "people.tif").touch()
    assert main(["dhis2", "push", config(push, **sections)]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert not (tmp_path / "out/dhis2").exists()


@pytest.mark.parametrize(
    ("text", "decimals", "value"),
    [
        ("0.125", 2, "0.13"), ("-0.125", 2, "-0.13"), ("2.5", 0, "3"), ("1e-09", 2, "0"),
        ("-0.001", 2, "0"), ("1200", 0, "1200"), ("1.5e3", 1, "1500"), ("12.50", 2, "12.5"),
        ("", 2, None), ("nan", 2, None), ("inf", 2, None),
    ],
)  # fmt: skip
def test_rounding(text: str, decimals: int, value: str | None) -> None:
    assert rounded(text, decimals) == value


def test_values_are_compared_as_numbers_of_one_combo() -> None:
    own = [Value("e", "2024", "u", "1.5"), Value("e", "2024", "v", "2", "a")]
    stored = [
        Value("e", "2024", "u", "1.50", "default", "default"),
        Value("e", "2024", "v", "2", "b"),
        Value("e", "2024", "v", "3", "a"),
    ]
    assert [(c.kind, c.before) for c in compare(own, stored)] == [
        ("unchanged", "1.50"),
        ("changed", "3"),
    ]
    with pytest.raises(ValueError, match=r"e of v in 2024: has e.b, e.a; give the combo"):
        compare([Value("e", "2024", "v", "2")], stored)
