"""The reference of the command line is that of the commands."""

from pathlib import Path

from pipeline.cli import reference

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    reference.write(tmp_path)
    made = (tmp_path / reference.PAGE).read_text(encoding="utf-8")
    assert made == (DOCS / reference.PAGE).read_text(encoding="utf-8"), "run `make reference`"
