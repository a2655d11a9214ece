"""Tables of counts as people send them."""

from __future__ import annotations

from tests.corpus.case import Country, Doubt, Error, Note, case

MISMATCH = "match no area"


@case("table")
def semicolons(country: Country) -> None:
    country.counts.write_text(country.counts.read_text().replace(",", ";"))


@case("table", Note("130 in all, 10.5 to 18.5"))
def semicolons_and_decimal_commas(country: Country) -> None:
    country.table([f"M{k:02d};{10 + k},5" for k in range(9)], "code;cases")


@case("table", Error("cases.csv) row 2", "not a number", "set counts.thousands: \",\" if '1,000'"))
def thousands_separated_by_commas(country: Country) -> None:
    country.table([f'M{k:02d},"1,0{k}0"' for k in range(9)])


@case("table", Error("cases.csv) row 2 (id M00: '1.000')", "point before three digits",
      'set counts.thousands: "." or counts.decimal: "."'))  # fmt: skip
def thousands_separated_by_points(country: Country) -> None:
    country.table([f"M{k:02d},1.0{k}0" for k in range(9)])
    country.change("output", exceedance=[])


for _mark, _cell in ((",", '"1,0{k}0"'), (".", "1.0{k}0"), (" ", "1\u202f0{k}0"), ("'", "1’0{k}0")):

    @case("table", Note("9,360 in all"), name=f"thousands declared {_mark}")
    def _declared(country: Country, mark: str = _mark, cell: str = _cell) -> None:
        country.table([f"M{k:02d},{cell.format(k=k)}" for k in range(9)])
        country.change("counts", thousands=mark)
        country.change("output", exceedance=[])


@case("table", Error("cases.csv) row 3 (id M01: '1.010')", "point before three digits",
      'write thousands without it, or set counts.decimal: "."'))  # fmt: skip
def thousands_and_one_decimal(country: Country) -> None:
    country.table([f"M{k:02d},{'1.010' if k == 1 else '12.5'}" for k in range(9)])


@case("table", Note("8,360 in all, 80 to 1070"))
def thousands_and_decimals_of_europe(country: Country) -> None:
    country.table([f'M{k:02d},"{"1." if k < 8 else ""}0{k}0,00"' for k in range(9)])


@case("table", Doubt("separator", "cases.csv", "row 5 (id M03: '1 013', read as 1013)"))
def one_count_with_a_blank_between_thousands(country: Country) -> None:
    country.cell("M03", "1\u202f013")


@case("table", Error("cases.csv) row 5 (id M03: '1,013')", "not a number", "if '1,013' is 1013"))
def one_count_with_a_comma_that_may_be_of_decimals(country: Country) -> None:
    country.cell("M03", '"1,013"')


@case("table", Error("cases.csv) row 5 (id M03: '1.013')", "point before three digits", ""))
def one_count_with_a_point_that_may_be_of_decimals(country: Country) -> None:
    country.cell("M03", "1.013")


@case("table", Note("9 in all, 1 to 1.08"))
def decimals_declared(country: Country) -> None:
    country.table([f"M{k:02d},1.0{k}0" for k in range(9)])
    country.change("counts", decimal=".")
    country.change("output", exceedance=[])


@case("table", Doubt("missing", "counts", "row 5 (id M03: 'n/a'), row 6 (id M04: '-')"))
def words_for_no_count(country: Country) -> None:
    rows = dict(row.split(",") for row in country.rows()) | {"M03": "n/a", "M04": "-"}
    country.table([f"{code},{cases}" for code, cases in rows.items()])


@case("table", Error("cases.csv", MISMATCH, "the areas have these ids in column 'name': set "
      "areas.id: name"))  # fmt: skip
def names_in_place_of_codes(country: Country) -> None:
    frame = country.read_areas()
    frame["name"] = [f"District {k}" for k in range(9)]
    country.write_areas(frame)
    country.table([f"District {k},{10 + k}" for k in range(9)])


@case("table", Error("cases.csv", MISMATCH, "column 'pcode' has the areas' ids: set counts.id"))
def codes_in_another_column(country: Country) -> None:
    rows = [f"District {k},M{k:02d},{10 + k}" for k in range(9)]
    country.table(rows, "code,pcode,cases")


@case("table", Error("cases.csv", "9 id(s) are repeated", "set counts.period: month"))
def rows_of_several_months(country: Country) -> None:
    rows = [f"{row},2024-0{month}" for month in (1, 2) for row in country.rows()]
    country.table(rows, "code,cases,month")


@case("table", Note('"period": "2024-12"'))
def months_before_years(country: Country) -> None:
    months = ("12/2023", "01/2024", "12/2024")
    rows = [f"{row},{month}" for month in months for row in country.rows()]
    country.table(rows, "code,cases,month")
    country.change("counts", period="month")


@case("table", Note('"period": "2024-12-31"'))
def days_before_months(country: Country) -> None:
    days = ("31/12/2024", "01/12/2024")
    country.table([f"{row},{day}" for day in days for row in country.rows()], "code,cases,day")
    country.change("counts", period="day")


@case(
    "table",
    Error("cases.csv) row 2 ('03/04/2024')", "cannot be told apart", "set counts.dayfirst: true"),
)
def days_that_may_be_months(country: Country) -> None:
    country.table([f"{row},03/04/2024" for row in country.rows()], "code,cases,day")
    country.change("counts", period="day")


@case("table", Note('"period": "2024-03-04"'))
def months_first_declared(country: Country) -> None:
    days_that_may_be_months(country)
    country.change("counts", dayfirst=False)


@case("table", Note("10 to 66; 1 of them suppressed (<5)"))
def fewer_than_five(country: Country) -> None:
    country.cell("M03", "<5")


@case("table", Note("342 in all, 10 to 66"))
def utf_16(country: Country) -> None:
    country.counts.write_text(country.counts.read_text(), encoding="utf-16")


@case("table")
def utf_16_declared(country: Country) -> None:
    utf_16(country)
    country.change("counts", encoding="utf-16")


@case("table", Error("cases.csv", "row 2 has 2 cells, but row 1 names 1 column(s)", "title above"))
def title_above_the_names(country: Country) -> None:
    country.counts.write_text(f"Cases of March\n{country.counts.read_text()}")


@case("table", Error("cases.csv", "row 2 has 3 cells, but row 1 names 2 column(s)", "put quotes"))
def thousands_without_quotes(country: Country) -> None:
    country.table([f"M{k:02d},1,49{k}" for k in range(9)])


@case("table")
def separators_at_the_end_of_lines(country: Country) -> None:
    country.table([f"{row}," for row in country.rows()])


@case("table", Doubt("encoding", "counts", "'Ihosé' in row 2"))
def latin_1(country: Country) -> None:
    country.codes({"M00": "Ihosé"})
    _spelt(country, M00="Ihosé")
    country.counts.write_text(country.counts.read_text("utf-8"), encoding="latin-1")


@case("table")
def latin_1_declared(country: Country) -> None:
    latin_1(country)
    country.change("counts", encoding="latin-1")


@case("table", Error("cases.csv", "is not UTF-8 text", "encoding: cp850"))
def text_of_another_page(country: Country) -> None:
    _spelt(country, M00="Oaxaca \x81")
    country.counts.write_text(country.counts.read_text("utf-8"), encoding="latin-1")


@case(
    "table", Error("counts.encoding", "no encoding 'latin-99'", "cp1252"), name="encoding unknown"
)
def _encoding_unknown(country: Country) -> None:
    country.change("counts", encoding="latin-99")


@case("table")
def utf_8_with_a_mark(country: Country) -> None:
    country.counts.write_text(country.counts.read_text(), encoding="utf-8-sig")


@case("table")
def lines_of_an_old_mac(country: Country) -> None:
    country.counts.write_bytes(country.counts.read_bytes().replace(b"\n", b"\r"))


@case("table")
def blank_lines_and_a_row_of_commas(country: Country) -> None:
    text = country.counts.read_text()
    country.counts.write_text(text.replace("\n", "\n\n") + ",\n,\n")


@case("table", Error("cases.csv", "Total (row 11) in column 'code': a total", "remove the row"))
def a_row_of_totals(country: Country) -> None:
    country.table([*country.rows(), "Total,342"])


def _spelt(country: Country, **names: str) -> None:
    country.table([",".join([names.get(r[:3], r[:3]), r[4:]]) for r in country.rows()])


@case("table", Error("cases.csv", MISMATCH, "capitals"), Doubt("ids", "counts", "'m03' is 'M03'"))
def small_letters(country: Country) -> None:
    _spelt(country, M03="m03")


@case("table", Error("cases.csv", MISMATCH, "correct the ids"), Doubt("ids", "counts"))
def blanks_within_ids(country: Country) -> None:
    _spelt(country, M03="M 03")


@case("table", Error("cases.csv", MISMATCH, "correct the ids"), Doubt("ids", "counts"))
def hyphens_in_ids(country: Country) -> None:
    _spelt(country, M03="M-03")


@case("table", Error("cases.csv", MISMATCH, "correct the ids"), Doubt("ids", "counts"))
def accents_lost(country: Country) -> None:
    country.codes({"M03": "Ihosy é"})
    _spelt(country, M03="Ihosy e")


@case("table")
def accents_in_two_parts(country: Country) -> None:
    country.codes({"M03": "Bé"})
    _spelt(country, M03="Be\u0301")


@case("table", Error("cases.csv", "9 count(s) match no area", "leading zeros"),
      Doubt("ids", "counts", "9 ids differ"))  # fmt: skip
def leading_zeros_lost(country: Country) -> None:
    names = {f"M{k:02d}": f"0{k + 1}" for k in range(9)}
    country.codes(names)
    country.table([f"{k + 1},{10 + k}" for k in range(9)])


@case("table", Note("126 in all"))
def leading_zeros_left_out(country: Country) -> None:
    leading_zeros_lost(country)
    country.change("counts", match="spelling")


@case("table", Error("counts", "no column 'month'", "cases"))
def period_column_missing(country: Country) -> None:
    country.change("counts", period="month")
    country.add('period: "2026-01"\n')


def _months(country: Country, second: str) -> None:
    rows = [f"{row},2026-0{m}" for m in (1, 2) for row in country.rows()]
    rows = [
        ",".join([r.split(",")[0], second, r.split(",")[2]]) if r.endswith("2") else r for r in rows
    ]
    country.table(rows, "code,cases,month")
    country.change("counts", period="month")


@case("table", Error("cases.csv", "no row is of period '2026-07'", "2026-01, 2026-02"))
def period_not_in_the_table(country: Country) -> None:
    _months(country, "5")
    country.add('period: "2026-07"\n')


@case("table", Error("cases.csv", "no count for any area in period '2026-02'", "some areas"))
def counts_of_a_period_all_empty(country: Country) -> None:
    _months(country, "")
    country.add('period: "2026-02"\n')


@case("table", Error("cases.csv", 'a quote (") opens in row 6', "close or remove it"))
def a_quote_that_never_ends(country: Country) -> None:
    country.counts.write_text(country.counts.read_text().replace("M04", '"M04'))


@case("table")
def formulas_as_ids(country: Country) -> None:
    country.rename_areas({"M03": "=1+1", "M04": "@SUM(A1)", "M05": "+33", "M06": "-2"})


@case("table", Error("cases.csv", "match no area:  [31mred  (row 11)", "correct the ids"))
def control_characters_in_ids(country: Country) -> None:
    country.table([*country.rows(), "\x1b[31mred\u202e,4"])
