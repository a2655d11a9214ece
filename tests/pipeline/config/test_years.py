"""The years that have a file of the population, and the periods between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from geo.core.calendar import Calendar
from geo.core.errors import InputError
from pipeline.config.reader import load_config
from pipeline.config.series import Series
from pipeline.config.years import told_people, years_of
from pipeline.ingest.period_files import period_states
from pipeline.inspection.page import file_lines
from pipeline.inspection.seen import Seen
from pipeline.reporting.asked import what_was_asked
from pipeline.storage.location import Storage
from tests.pipeline.series_inputs import people, write_inputs, write_raster
from tests.typed import edit


def series(years: tuple[int, ...], step: str = "month") -> Series:
    calendar = Calendar(step)
    ends = (calendar.number(text) for text in ("2019-01-01", "2024-12-31"))
    first, last = (number for number in ends if number is not None)
    return Series(calendar, first, last, years=years)


def test_a_period_lies_between_the_middles_of_two_years() -> None:
    months = series((2020, 2022))
    assert months.people_years("2020-01") == (2020, 2020, 0.0)
    assert months.people_years("2022-12") == (2022, 2022, 0.0)
    before, later, share = months.people_years("2021-07")
    # From 2 July to 2 July, 730 days; the middle of July is day 14.5 of the second half.
    assert (before, later) == (2020, 2022)
    assert share == pytest.approx((365 - 1 + 15.5) / 730)
    assert series((2020, 2022), "year").people_years("2021")[2] == pytest.approx(0.5, abs=1e-3)


def test_shares_rise_evenly_and_stay_inside() -> None:
    for step in ("day", "week", "month", "quarter"):
        found = series((2019, 2024), step)
        shares = [found.people_years(label)[2] for label in found.periods]
        inside = [each for each in shares if each > 0]
        assert inside == sorted(inside)
        assert max(inside) < 1
        assert len(set(inside)) == len(inside)


def test_beyond_the_ends_the_nearest_year_is_held() -> None:
    found = series((2020, 2022))
    assert found.people_years("2019-01") == (2020, 2020, 0.0)
    assert found.people_years("2024-12") == (2022, 2022, 0.0)
    assert told_people(found) == (
        "2019 as in 2020, the first year with a file; 2021 between the files of 2020 and 2022; "
        "2023 to 2024 as in 2022, the last year with a file"
    )
    every = series(tuple(range(2019, 2025)))
    assert told_people(every) == ""
    assert told_people(every, 2) == "2025 as in 2024, the last year with a file"


@pytest.mark.parametrize(
    ("section", "years"),
    [
        ({"path": "people_{year}.tif"}, (2020, 2023)),
        ({"path": "{year}/people_{year}.tif"}, (2021,)),
        ({"path": "none_{year}.tif"}, ()),
        ({"path": "people.tif"}, None),
        ({"path": "people_{year}_{period}.tif"}, None),
        ({"path": "people_{year}.nc", "aggregate": "mean", "time": "{period}"}, None),
        ({"path": "https://example.org/people_{year}.tif"}, None),
    ],
)
def test_which_years_have_a_file(
    tmp_path: Path, section: dict[str, str], years: tuple[int, ...] | None
) -> None:
    for name in ("people_2023.tif", "people_2020.tif", "people_old.tif", "2021/people_2021.tif"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "2022").mkdir()
    assert years_of({"population": section}, tmp_path, Storage()) == years


def test_both_files_are_inputs_and_a_path_without_files_is_one_line(tmp_path: Path) -> None:
    config = write_inputs(tmp_path, 2)
    edit(config, {"people.tif": '"people_{year}.tif"', '{path: "people': '{path: "pop/people'})
    with pytest.raises(InputError) as raised:
        load_config(config)
    (problem,) = raised.value.problems
    assert problem.place == "disagg.yaml line 4: population.path"
    assert problem.found == "no file of any year: pop/people_{year}.tif"
    assert "such as pop/people_2024.tif" in problem.remedy
    (tmp_path / "pop").mkdir()
    for year in (2022, 2026):
        write_raster(tmp_path / f"pop/people_{year}.tif", people())
    loaded = load_config(config)
    told = dict(what_was_asked(loaded, {"n_areas": 16, "n_pixels": 256}))["People"]
    between = "2024 between the files of 2022 and 2026"
    assert told == f"people_2022.tif and people_2026.tif; {between}"
    assert f"population: {between}." in file_lines(loaded, Seen(files=period_states(loaded)))
    paths = loaded.input_paths()
    ends = {key: Path(path).name for key, path in paths.items() if "population" in key}
    assert ends == {
        "population.path": "people_2022.tif",
        "population.later.path": "people_2026.tif",
        "population.2024-01.path": "people_2022.tif",
        "population.2024-01.later.path": "people_2026.tif",
    }
