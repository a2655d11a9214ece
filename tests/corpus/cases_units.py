"""Values in another unit than the run takes them for, and numbers that stand for none."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.corpus.case import Country, Doubt, Error, Note, case


def _spikes(value: float, dtype: str, scale: float = 1.0) -> Any:
    def spoil(country: Country) -> None:
        path = country.covariates[0]
        values = scale * country.values(path)
        values[5:8, 5:8] = value
        country.raster(path, values.astype(dtype), dtype=dtype, nodata=None)

    return spoil


for _value, _dtype, _scale, _said in (
    (-9999, "float64", 1, "-9999"), (-3000, "int16", 100, "-3000"), (32767, "int16", 100, "32767"),
    (255, "uint8", 20, "255"), (-32768, "int16", 100, "-32768"), (65535, "uint16", 100, "65535"),
    (-3.4028234663852886e38, "float32", 1, "-3.40282347e+38"),
    (1e20, "float32", 1, "1.00000002e+20"),
):  # fmt: skip
    case("units", Doubt("nodata", "covariates.wave", _said), name=f"spike {_value:g}")(
        _spikes(_value, _dtype, _scale)
        if _dtype not in ("uint8", "uint16")
        else lambda country, v=_value, d=_dtype, s=_scale: _unsigned(country, v, d, s)
    )


def _unsigned(country: Country, value: float, dtype: str, scale: float) -> None:
    path = country.covariates[0]
    values = scale * (2 + country.values(path))
    values[5:8, 5:8] = value
    country.raster(path, values.astype(dtype), dtype=dtype, nodata=None)


@case("units")
def spike_declared(country: Country) -> None:
    _spikes(-9999, "float64")(country)
    country.covariate(nodata=-9999)


@case("units", Doubt("scale", "covariates.ndvi"))
def vegetation_index_times_10000(country: Country) -> None:
    path = country.covariates[0]
    values = 1e4 * (0.3 + 0.2 * np.tanh(country.values(path)))
    country.raster(path, values.astype("int16"), dtype="int16", nodata=-3000)
    country.text("wave:", "ndvi:")


@case("units", Doubt("scale", "covariates.lst"))
def temperature_in_fiftieths_of_a_kelvin(country: Country) -> None:
    path = country.covariates[0]
    values = (290 + 5 * country.values(path)) / 0.02
    country.raster(path, values.astype("uint16"), dtype="uint16", nodata=0)
    country.text("wave:", "lst:")


@case("units")
def elevations_to_3000(country: Country) -> None:
    path = country.covariates[0]
    values = 1500 * (1 + country.values(path))
    country.raster(path, values.astype("int16"), dtype="int16", nodata=-32768)
    country.text("wave:", "elevation:")


@case(
    "units",
    Error("population (", "thousand", "set population.scale: 1000; if not, set population.units"),
)
def population_unit_says_thousands(country: Country) -> None:
    country.raster(country.population, country.values(country.population) / 100)
    country.change("population", units="thousands of people")
    country.change("output", exceedance=[])


@case("units", Error("counts (", "for each person", "population.scale: 1000"))
def population_in_thousands(country: Country) -> None:
    country.raster(country.population, country.values(country.population) / 1e3)


@case("units")
def more_cases_than_people_that_are_accepted(country: Country) -> None:
    country.raster(country.population, country.values(country.population) / 1e3)
    country.add("check: {accept: ['rate:counts']}\n")
    country.change("output", exceedance=[])


@case("units", Doubt("density", "population"))
def density_by_its_name(country: Country) -> None:
    path = country.population.rename(country.directory / "popdensity_per_km2.tif")
    country.text("population.tif", path.name)


@case("units", Doubt("density", "population"))
def counts_called_density(country: Country) -> None:
    country.change("population", density=True, units="people per pixel")


@case("units", Doubt("density", "population"))
def more_than_a_million_people_per_km2(country: Country) -> None:
    values = country.values(country.population)
    country.raster(country.population, 1e4 * values)
    country.change("output", exceedance=[])


@case("units", Doubt("shares", "counts", "fractions of 1 only"))
def shares_as_counts(country: Country) -> None:
    country.table(
        [f"M{k:02d},{0.05 + 0.03 * (k * 5 % 7):.2f}" for k in range(9)], "code,prevalence"
    )
    country.change("counts", value="prevalence")
    country.change("output", exceedance=[])


@case("units", Doubt("shares", "counts", "%"))
def percentages_as_counts(country: Country) -> None:
    country.table(
        [f"M{k:02d},{4.5 + 3.1 * (k * 5 % 7):.1f}" for k in range(9)], "code,positive (%)"
    )
    country.change("counts", value="positive (%)")


@case("units", Doubt("fraction", "cases.csv) row 5 (id M03)", "not whole (12.5)"))
def one_count_that_is_not_whole(country: Country) -> None:
    country.cell("M03", "12.5")


@case("units")
def decimal_counts_are_no_shares(country: Country) -> None:
    country.table([f"M{k:02d},{10.5 + 7 * k}" for k in range(9)])


@case("units", Doubt("threshold", "output.exceedance", "500"))
def threshold_above_all_rates(country: Country) -> None:
    country.change("output", exceedance=[1, 500])


@case("units", Doubt("threshold", "output.exceedance", "0.001"))
def threshold_below_all_rates(country: Country) -> None:
    country.change("output", exceedance=[0.001])


def _survey(country: Country, tested: list[Any], positives: list[Any] | None = None) -> None:
    found = positives or [3 + k for k in range(9)]
    rows = [f"M{k:02d},{found[k]},{tested[k]}" for k in range(9)]
    country.table(rows, "code,cases,tested")
    country.change("counts", tested="tested")
    country.change("model", likelihood="binomial")
    country.change("output", exceedance=[], rate_per=100)


@case(
    "units",
    Error(
        "cases.csv) row 5 (id M03)",
        "column 'cases' has more positives than column 'tested' has tested people (6 of 5)",
        "correct",
    ),
)
def prevalence_over_100_percent(country: Country) -> None:
    _survey(country, [50, 50, 50, 5, 50, 50, 50, 50, 50])


@case(
    "units", Error("cases.csv) row 2 (id M00: '1.400')", "column 'tested' has a point before", "")
)
def tested_with_thousands(country: Country) -> None:
    _survey(country, ["1.400"] * 9, [450] * 9)


@case(
    "units",
    Error("cases.csv) row 5 (id M03)", "column 'tested' has a number that is not whole", ""),
)
def tested_that_are_no_people(country: Country) -> None:
    _survey(country, [50, 50, 50, 50.5, 50, 50, 50, 50, 50])


@case("units", Doubt("threshold", "output.exceedance", "100"))
def a_threshold_of_all_tested(country: Country) -> None:
    _survey(country, [50] * 9)
    country.change("output", exceedance=[100])


@case("units", Error("cases.csv) row 2 (id M00)", "more tested people than live", "scale: 1000"))
def more_tested_than_people(country: Country) -> None:
    _survey(country, [10**6, *[50] * 8])


@case("units", Doubt("cells", "cases.csv", "none in row 5 (id M03)"))
def tested_missing_where_positives_are_given(country: Country) -> None:
    _survey(country, [50, 50, 50, "", 50, 50, 50, 50, 50])


@case("units", Note("1 of 9 areas"))
def nobody_tested(country: Country) -> None:
    _survey(country, [50, 50, 50, 0, 50, 50, 50, 50, 50], [3, 3, 3, 0, 3, 3, 3, 3, 3])


@case(
    "units",
    Error(
        "cases.csv) row 5 (id M03)", "column 'cases' has a value, but column 'hectares' is 0",
        "correct",
    ),
)  # fmt: skip
def weight_of_zero(country: Country) -> None:
    rows = [f"{row},{0 if row.startswith('M03') else 20}" for row in country.rows()]
    country.table(rows, "code,cases,hectares")
    country.change("counts", weight="hectares")
    country.change("output", exceedance=[])


@case("units", Note("warning: 7 of 9 areas"))
def most_counts_are_missing(country: Country) -> None:
    country.table(country.rows()[:2])
    country.change("output", exceedance=[])


@case("units", Error("cases.csv", "column 'cases' has no count for any area", "some areas"))
def no_count_at_all(country: Country) -> None:
    country.table([f"M{k:02d}," for k in range(9)])


@case("units")
def one_area_without_cases(country: Country) -> None:
    country.cell("M03", "0")


def _labels(country: Country, texts: list[str]) -> None:
    country.table([f"M{k:02d},{text}" for k, text in enumerate(texts)], "code,positive")
    data = country.read_config()
    del data["counts"]
    data["labels"] = {"path": "cases.csv", "value": "positive"}
    data["model"] = {"kind": "vwsgp"}
    data["output"] |= {"exceedance": []}
    data["fit"] = {"seed": 4}
    country.write_config(data)


@case("units")
def labels_as_words(country: Country) -> None:
    _labels(country, ["yes", "No", "TRUE", "0", "1.0", "absent", "present", "n", "y"])


@case("units", Error("labels", "column 'positive' is not a label", "write 1 or 0"))
def counts_as_labels(country: Country) -> None:
    _labels(country, ["0", "1", "2", "0", "1", "1", "0", "1", "0"])


@case("units", Error("labels", "column 'positive' is 1 for every area", "give both labels"))
def labels_all_alike(country: Country) -> None:
    _labels(country, ["1"] * 9)
