"""Secrets in addresses are hidden wherever an address is shown."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geo.core.addresses import redacted, redacted_values
from geo.core.errors import InputError, Problem


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://maps.org/a.tif", "https://maps.org/a.tif"),
        ("https://me:s3cret@maps.org/a.tif", "https://***@maps.org/a.tif"),
        ("https://me:s3c@ret@maps.org/a.tif", "https://***@maps.org/a.tif"),
        ("https://me:s3c/ret@maps.org/a.tif", "https://***@maps.org/a.tif"),
        ("https://me:a@b/s3cret@maps.org/a.tif", "https://***@maps.org/a.tif"),
        ("http://maps.org:8080/@2x/a.tif", "http://maps.org:8080/@2x/a.tif"),
        ("https://token@maps.org", "https://***@maps.org"),
        ("/vsicurl/https://me:s3cret@maps.org/a.tif", "/vsicurl/https://***@maps.org/a.tif"),
        (
            "https://b.s3.org/a.tif?X-Amz-Credential=AKI%2F1&X-Amz-Signature=s3cret",
            "https://b.s3.org/a.tif?X-Amz-Credential=***&X-Amz-Signature=***",
        ),
        ("https://x.blob.net/a.tif?sv=1&sig=s3cret%3D", "https://x.blob.net/a.tif?sv=***&sig=***"),
        ("https://x.org/a.tif?s3cret", "https://x.org/a.tif?***"),
        ("/vsicurl?header.X=Bearer%20s3cret&url=u", "/vsicurl?header.X=***&url=***"),
        ("s3://key:s3cret@bucket/a.tif", "s3://***@bucket/a.tif"),
        ("a@b.org, 2 @ home", "a@b.org, 2 @ home"),
        ("what? a=b://c", "what? a=b://c"),
    ],
)  # fmt: skip
def test_user_info_and_queries_are_hidden(address, shown):
    assert redacted(address) == shown
    assert redacted(shown) == shown
    message = redacted(f"covariates.x ({address}): HTTP 404 at {address}: not found")
    assert "s3cret" not in message
    assert message.endswith("not found")


def test_problems_hide_them_however_they_travel():
    problem = Problem("p (https://me:s3cret@h/a)", "HTTP 403 from https://h/a?sig=s3cret", "ask")
    error = pickle.loads(pickle.dumps(InputError(problem)))
    assert "s3cret" not in f"{problem} {problem!r} {error} {error!r} {error.problems}"
    assert "https://***@h/a" in str(error)


def test_values_of_any_depth():
    value = {"a": ["https://u:s3cret@h/x", 1, None, {"b": ("https://h/?k=s3cret",)}], "c": True}
    assert redacted_values(value) == {
        "a": ["https://***@h/x", 1, None, {"b": ["https://h/?k=***"]}],
        "c": True,
    }


@settings(max_examples=25, deadline=None)
@given(
    st.text(),
    st.text(
        st.characters(exclude_characters="/?#'\"<>", exclude_categories=("Z", "Cc", "Cs")),
        min_size=1,
    ),
)
def test_no_text_fails_and_no_password_survives(around, password):
    shown = redacted(f"{around} https://me:{password}@host/a.tif")
    assert shown.endswith("https://***@host/a.tif")


def test_a_problem_is_one_line_whatever_the_ids():
    problem = Problem("areas", "2 areas have no count: a\nerror: b, c\u2028d\x1b[31m", "add them")
    assert str(problem).splitlines() == [
        "areas: 2 areas have no count: a error: b, c d [31m; add them"
    ]
