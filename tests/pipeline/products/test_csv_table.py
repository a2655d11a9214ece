"""A table as CSV reads back to the same numbers."""

import csv

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from pipeline.products.csv_table import read_csv, write_csv


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=1),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)
def test_every_number_reads_back(tmp_path_factory, values, single):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    table = pd.DataFrame({"a": values, "b": np.float32(single), "id": "x"})
    write_csv(table, path)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    back = [float(row["a"]) if row["a"] else np.nan for row in rows]
    np.testing.assert_array_equal(back, table["a"])
    np.testing.assert_array_equal(np.array([row["b"] for row in rows], np.float32), table["b"])


def test_numbers_are_as_short_as_they_can_be(tmp_path):
    table = pd.DataFrame(
        {
            "observed": [1037620.0, np.nan, 0.1],
            "fitted": [1037623.4567891234, 3.0, 1e-9],
            "single": np.array([0.1, 2.5, 1e6], np.float32),
            "n": [1, 2, 3],
            "name": ["a,b", "", "1.0"],
        },
        index=pd.Index(["x", "y", "z"], name="id"),
    )
    write_csv(table, tmp_path / "t.csv", index=True)
    assert (tmp_path / "t.csv").read_text().splitlines() == [
        "id,observed,fitted,single,n,name",
        'x,1037620,1037623.4567891234,0.1,1,"a,b"',
        "y,,3,2.5,2,",
        "z,0.1,1e-09,1000000,3,1.0",
    ]
    assert table["observed"].dtype == float  # the table itself stays as it was


def test_ids_and_names_read_back_as_texts(tmp_path):
    table = pd.DataFrame(
        {"id": ["007", "NA", "10"], "name": ["null", None, "01"], "rate": [0.5, np.nan, 3.0],
         "counted_in": ["0254", None, "0254"], "period": ["2024", "2024", "2025"]}
    )  # fmt: skip
    write_csv(table, tmp_path / "t.csv")
    back = read_csv(tmp_path / "t.csv")
    assert list(back["id"]) == ["007", "NA", "10"]
    assert list(back["name"].fillna("-")) == ["null", "-", "01"]
    assert list(back["counted_in"].fillna("-")) == ["0254", "-", "0254"]
    assert list(back["period"]) == ["2024", "2024", "2025"]
    np.testing.assert_array_equal(back["rate"], table["rate"])
