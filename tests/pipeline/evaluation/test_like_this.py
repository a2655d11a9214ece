import pytest

from pipeline.evaluation.like_this import like_this, read_simulated


@pytest.mark.parametrize(
    ("axis", "value", "words"),
    [
        ("areas", 3, "with 10 areas"),
        ("areas", 29, "with 20 areas"),
        ("areas", 9000, "with 200 areas"),
        ("cases", 0.0, "with 3 cases an area"),
        ("cases", 40, "with 10 cases an area"),
        ("noise", 0.0, "with noise of 0:"),
        ("noise", 0.5, "with noise of 0.8"),
        ("noise", 5.0, "with noise of 0.8"),
    ],
)
def test_countries_that_are_alike_or_harder_are_cited(axis, value, words):
    said = like_this(axis, value)
    assert words in said
    assert said.endswith("docs/calibration.md")


def test_the_figures_said_are_those_of_the_level():
    few = read_simulated()["areas"][0]
    said = like_this("areas", few.level)
    assert f"{few.countries} simulated" in said
    assert f"{100 * few.pixels:.0f} % of the pixels" in said
    assert f"by {few.correlation:.2f} with the true ones" in said
    assert f"area rates by {few.crude:.2f}" in said
