"""The reference of the configuration is that of the schema, and its examples are valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import pytest
import yaml
from pydantic import TypeAdapter

from pipeline.cli.main import main
from pipeline.config import reference
from pipeline.config.base import Section
from pipeline.config.schema import Config
from pipeline.demo.country import CountrySpec, simulate_country

ROOT = Path(__file__).parents[3]
SCHEMA = reference.schema()


def _sections(above: type[Section] = Section) -> dict[str, type[Section]]:
    found = {each.__name__: each for each in above.__subclasses__()}
    return found | {name: c for each in found.values() for name, c in _sections(each).items()}


def _wrong(data: Any) -> list[str]:
    return [each.message for each in jsonschema.Draft202012Validator(SCHEMA).iter_errors(data)]


@pytest.mark.parametrize("name", [reference.PAGE, reference.SCHEMA])
def test_the_page_and_the_schema_are_up_to_date(tmp_path: Path, name: str) -> None:
    reference.write(tmp_path)
    made = (tmp_path / name).read_text()
    assert made == (ROOT / "docs" / name).read_text(), "run `make reference`"


def test_every_key_has_a_meaning_and_an_example() -> None:
    keys = list(reference.keys())
    assert len({key.path for key in keys}) == len(keys) > 175
    assert [key.path for key in keys if not key.meaning or "\n" in key.meaning] == []
    seconds = [key for key in keys if "second" in key.meaning and not key.is_section]
    assert [key.path for key in seconds if key.unit != "s"] == []


def test_every_example_is_valid(tmp_path: Path) -> None:
    n = 0
    whole = jsonschema.Draft202012Validator(SCHEMA)
    sections = {**_sections(), "Config": Config}
    for name, section in {**SCHEMA["$defs"], "Config": SCHEMA}.items():
        for key, about in section["properties"].items():
            fields = sections[name].model_fields
            field = {each.alias or own: each for own, each in fields.items()}[key]
            adapter = TypeAdapter(Annotated[field.annotation, "", *field.metadata])
            for example in about["examples"]:
                adapter.validate_python(example, context={"base": tmp_path})
                whole.evolve(schema={**about, "$defs": SCHEMA["$defs"]}).validate(example)
                n += 1
    assert n > 150


def test_an_editor_takes_what_a_run_takes_and_finds_a_misspelt_key(tmp_path: Path) -> None:
    spec = CountrySpec(
        (36, 40), 1 / 12, 700, 16, 6, 4e5, covariates=("elevation", "temperature"), n_inducing=12
    )
    demo = yaml.safe_load(simulate_country(tmp_path, spec, seed=3).read_text())
    for path in (ROOT / "examples").rglob("disagg*.yaml"):
        assert _wrong(yaml.safe_load(path.read_text())) == [], path
    demo["output"]["exceedance"] = 50
    demo["counts"]["value"] = 2020
    demo["population"]["nodata"] = -9999
    assert _wrong(demo) == []
    assert len(_wrong({**demo, "modle": {}})) == 1
    assert len(_wrong({**demo, "fit": {"seed": -1}})) == 1


def test_the_command_says_what_a_key_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "compute.wait"]) == 0
    told = capsys.readouterr().out
    for text in ("compute.wait: seconds to wait", "above 0", "unit     s", "default  60"):
        assert text in told
    assert main(["config", "fit"]) == 0
    assert "fit.learning_rate" in capsys.readouterr().out
    assert main(["config"]) == 0
    assert "population   people" in capsys.readouterr().out
    assert main(["config", "fit.sed"]) == 2
    assert "fit.sed: no key of the configuration; did you mean fit.seed?" in capsys.readouterr().err
    assert main(["config", "--json-schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
