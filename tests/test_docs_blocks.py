"""Every block of README.md and docs/ is loaded: YAML as a configuration, Python and shell as such.

`tests/test_docs.py` runs the Python of classifiers, `tests/test_operations.py` the commands of
``docs/operations.md``.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import itertools
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from geo.core.errors import InputError
from pipeline.config.reader import load_config
from tests.pipeline.conftest import Files

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# A command line; the name of a namespace of Kubernetes is none.
_COMMAND = re.compile(r"(?:^|[\s;&|`])(?<!namespace )disagg ((?:[\w./${}@~-]|[ =\"'])+)")
MODULES = ("benchmarks", "flows", "geo", "models", "pipeline", "tests")


def blocks(*kinds: str) -> list[Any]:
    found = []
    for page in PAGES:
        for number, (kind, text) in enumerate(_BLOCK.findall(page.read_text(encoding="utf-8"))):
            if kind in kinds:
                name = f"{page.relative_to(ROOT)}:{number}"
                found.append(pytest.param(text, id=name))
    return found


def test_there_are_blocks_of_each_kind() -> None:
    assert len(blocks("yaml")) > 12
    assert len(blocks("python")) > 8
    assert len(blocks("sh", "bash")) > 6


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Give a configuration that a block is put into."""
    return Files(tmp_path)


# -- YAML ------------------------------------------------------------------------------------------


def configured(text: str, files: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put a block into a whole configuration; return what is wrong with its keys and values.

    Files that a block names need not be there: that is what the reader has.
    """
    for name in re.findall(r"\$\{(\w+)\}", text):
        monkeypatch.setenv(name, "https://example.org/x")
    given = yaml.safe_load(text)
    if "apiVersion" in given:  # of Kubernetes: tests/infra/test_deployment_page.py
        return []
    data = files.mapping() | {"name": "page"}
    if "labels" in given:
        del data["counts"]
        data["model"] = {"kind": "vwsgp"}
    if "levels" in str(given.get("output", "")):
        data.pop("output")
    data |= given
    path = files.directory / "page.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    try:
        load_config(path)
    except InputError as error:
        absent = (
            "no file ",
            "no such ",
            "cannot be read",
            "no period found",
            "has no column",
            "there is no level",
        )
        return [str(each) for each in error.problems
                if not any(text in each.found for text in absent)]  # fmt: skip
    return []


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_is_a_configuration(text: str, files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert configured(text, files, monkeypatch) == []


@pytest.mark.parametrize(
    "text", ["modell: {inducing: 3}\n", "model: {inducing: many}\n", "update: {retrys: 3}\n"]
)
def test_a_wrong_key_or_value_is_found(
    text: str, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert configured(text, files, monkeypatch)


# -- Python ----------------------------------------------------------------------------------------


# What a page may import beyond what is installed here; the page says that it must be.
ELSEWHERE = {"torch", "torchvision"}


def missing(text: str) -> list[str]:
    """Return what a block imports and is not there: names of this repository, other packages."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [
                each.name
                for each in node.names
                if each.name.split(".")[0] not in ELSEWHERE
                and importlib.util.find_spec(each.name) is None
            ]
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            module = importlib.import_module(node.module or "")
            for each in node.names:
                if hasattr(module, each.name):
                    continue
                try:
                    importlib.import_module(f"{node.module}.{each.name}")
                except ImportError:
                    found.append(f"{node.module}.{each.name}")
    return found


@pytest.mark.parametrize("text", blocks("python"))
def test_python_compiles_and_imports_what_there_is(text: str) -> None:
    assert missing(text) == []


def test_a_wrong_import_is_found() -> None:
    assert missing("from pipeline import BagStore, fitted") == ["pipeline.fitted"]
    assert missing("import numpy, numpi") == ["numpi"]


# -- shell -----------------------------------------------------------------------------------------


def test_shell_parses() -> None:
    """In functions of one script: a block that does not parse has its number in the message."""
    named = [f"block_{n}() {{\n{each.values[0]}\n}}" for n, each in enumerate(blocks("sh", "bash"))]
    text = "\n".join(named)
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def options_of(words: list[str]) -> set[str]:
    """Return the options of a command of `disagg`."""
    from typer.main import get_command

    from pipeline.cli.main import app

    command: Any = get_command(app)
    options = {"--help"}
    for word in words:
        inner = getattr(command, "commands", {})
        options |= {name for each in command.params for name in each.opts}
        if word not in inner:
            break
        command = inner[word]
    return options | {name for each in command.params for name in each.opts}


def unknown_options(text: str) -> list[str]:
    """Return the options of lines with `disagg` that no command has."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        for match in _COMMAND.finditer(line):
            try:
                words = shlex.split(match[1], comments=True)
            except ValueError:
                continue
            known = options_of(words)
            found += [
                f"disagg {words[0]} {word}"
                for word in words
                if word.startswith("--") and word.partition("=")[0] not in known
            ]
    return found


def test_commands_have_the_options_that_a_page_gives_them() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        code = [body for _, body in _BLOCK.findall(text)] + re.findall(r"`([^`\n]+)`", text)
        assert [each for piece in code for each in unknown_options(piece)] == [], page


def test_a_wrong_option_is_found() -> None:
    assert unknown_options("disagg run my.yaml --publsh") == ["disagg run --publsh"]
    assert unknown_options("disagg bags fit s --model blrt --tune") == []


def refused(text: str) -> list[str]:
    """Return the lines of a block that begin with `disagg` and that it does not understand."""
    from typer.main import get_command

    from pipeline.cli.main import app

    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if not re.match(r"\s*disagg\s", line):
            continue
        words = shlex.split(line, comments=True)[1:]
        words = list(itertools.takewhile(lambda word: word not in ("|", ">", "&&", ";"), words))
        command: Any = get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        if words and hasattr(command, "commands") and not words[0].startswith("-"):
            found.append(f"{line.strip()}: no command {words[0]}")
            continue
        try:
            command.make_context("disagg", words)
        except Exception as error:  # the usage errors of typer's own click
            found.append(f"{line.strip()}: {getattr(error, 'message', error)}")
    return found


def test_the_command_line_understands_every_command_of_a_block() -> None:
    """Patterns with brackets, such as `disagg config [KEY]`, are in blocks of the kind `text`."""
    assert [each for block in blocks("", "sh", "bash") for each in refused(block.values[0])] == []


@pytest.mark.parametrize(
    "line",
    ["disagg run a.yaml b.yaml", "disagg publish", "disagg plan a.yaml --worker 2", "disagg ran a"],
)
def test_a_command_that_is_not_understood_is_found(line: str) -> None:
    assert refused(line)


# -- the changelog ---------------------------------------------------------------------------------


def test_every_fragment_is_of_a_kind_that_the_changelog_takes() -> None:
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = {each["directory"] for each in settings["type"]}
    fragments = [
        path for path in (ROOT / settings["directory"]).iterdir() if path.name != "README.md"
    ]
    for path in fragments:
        assert re.fullmatch(rf"\+[\w-]+\.({'|'.join(kinds)})\.md", path.name), path.name
        assert path.read_text(encoding="utf-8").strip().endswith(".")
    assert (ROOT / settings["filename"]).is_file()
    assert settings["start_string"] in (ROOT / settings["filename"]).read_text(encoding="utf-8")
