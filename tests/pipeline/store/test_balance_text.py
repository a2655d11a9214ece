"""Texts of users in the tables that the console shows."""

from pipeline.store.balance import render_balance


def test_a_name_with_brackets_is_shown_as_it_is():
    balance = {
        "unit": "people",
        "people": {"inside_areas": 5.0, "in_bags": 5.0},
        "cases": {"unit": "t [/x]", "given": 1.0, "in_bags": 1.0},
        "areas": {"given": 1, "left_out": []},
    }
    text = render_balance(balance, "[red]a[/b]: balance")
    assert text.splitlines()[0].startswith("[red]a[/b]: balance")
    assert "t [/x]" in text
