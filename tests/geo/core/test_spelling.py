"""Numbers and dates as the world writes them: read where it is declared, asked about else."""

import pytest

from geo.core.spelling import Spelling


@pytest.mark.parametrize(
    ("thousands", "decimal", "text", "number"),
    [
        (",", None, "1,490", 1490), (",", None, "-1,234,567.5", -1234567.5),
        (",", None, "1,49,000", 149000), (".", None, "1.490", 1490), (".", ",", "1.490,5", 1490.5),
        (".", None, "12,5", 12.5), (" ", None, "1\u00a0490", 1490), ("'", None, "1’490", 1490),
        (None, ",", "1,490", 1.49), (None, ".", "1.490", 1.49), (None, None, "1e3", 1000),
        (",", None, "12", 12), (None, None, 7, 7),
    ],
)  # fmt: skip
def test_numbers(thousands, decimal, text, number):
    assert Spelling(thousands=thousands, decimal=decimal).number(text) == number


@pytest.mark.parametrize(
    ("thousands", "decimal", "text"),
    [(",", None, "1,49"), (",", None, ",490"), (".", None, "1.49"), (None, ",", "1.490"),
     (None, None, "1,490"), (None, None, "1_000"), (",", None, "0,490"), (None, ",", "1,2,3")],
)  # fmt: skip
def test_no_numbers(thousands, decimal, text):
    with pytest.raises(ValueError, match=r".*"):
        Spelling(thousands=thousands, decimal=decimal).number(text)


def test_what_may_be_thousands():
    plain = Spelling()
    assert plain.may_be_thousands(["1.490", "312", "2.001"], whole=False) == ["1.490", "2.001"]
    for decimals in (["1.490", "0.125"], ["1.490", "2.5"], ["1234.500"], ["12", "13"]):
        assert plain.may_be_thousands(decimals, whole=False) == []
    assert Spelling(decimal=".").may_be_thousands(["1.490"], whole=True) == []


@pytest.mark.parametrize(
    ("thousands", "texts", "remedy"),
    [
        (None, ["1.490", "12.5"], 'write thousands without it, or set k.decimal: "."'),
        (None, ["1.490", "0.500"], 'write thousands without it, or set k.decimal: "."'),
        (None, ["1.490", "12"], 'set k.thousands: "." or k.decimal: "."'),
        (" ", ["1.490", "1 490"], 'write thousands without it, or set k.decimal: "."'),
        (",", ["1.490", "312"], 'write thousands without it, or set k.decimal: "."'),
        (".", ["1,490", "1.490"], 'write thousands without it, or set k.decimal: ","'),
    ],
)
def test_among_counts_no_other_number_tells(thousands, texts, remedy):
    spelling = Spelling(thousands=thousands)
    assert spelling.may_be_thousands(texts, whole=True) == [texts[0]]
    assert spelling.ask_of_thousands(texts, "k") == remedy


@pytest.mark.parametrize(
    ("texts", "remedy"),
    [
        (
            ["1,490"],
            "set k.thousands: \",\" if '1,490' is 1490, or k.decimal: \",\" if '1,490' is 1.49",
        ),
        (["1.234.567"], "set k.thousands: \".\" if '1.234.567' is 1234567"),
        (["1 490"], "set k.thousands: \" \" if '1 490' is 1490"),
        (["1.490,5"], 'set k.thousands: "." and k.decimal: "," if \'1.490,5\' is 1490.5'),
        (["312,00", "1.490,00"], 'set k.thousands: "." and k.decimal: "," if \'312,00\' is 312'),
        (["1 490,5", "12,5"], 'set k.thousands: " " and k.decimal: "," if \'1 490,5\' is 1490.5'),
        (["1,490", "12.5"], "set k.thousands: \",\" if '1,490' is 1490"),
        (["10,5", "3,25"], "set k.decimal: \",\" if '10,5' is 10.5"),
        (["<5", "1,490"], ""),
        ([], ""),
    ],
)
def test_the_remedy_that_is_proposed_reads_the_numbers(texts, remedy):
    assert Spelling().ask(texts, "k") == remedy
    if remedy:
        keys = (each.split(": ") for each in remedy.split(" if ")[0][4:].split(" and "))
        declared = Spelling(**{key.removeprefix("k."): value.strip('"') for key, value in keys})
        assert all(declared.number(text) > 1 for text in texts)
