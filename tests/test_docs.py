"""README.md and docs/ name only files, modules, links and commands that exist."""

from __future__ import annotations

import itertools
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOP = ("benchmarks", "docs", "examples", "flows", "geo", "infra", "models", "pipeline", "tests")
MODULES = ("benchmarks", "flows", "geo", "models", "pipeline", "tests")
FILES = r"Makefile|README\.md|CHANGELOG\.md|constraints\.txt|prefect\.yaml|pyproject\.toml|\.ci/run"
# What nobody has run yet: the pages say what it will write.
WRITTEN = {"benchmarks/results/gpu.json", "docs/figures/pictures.json"}

_PATH = re.compile(
    rf"(?<![\w/.$}}-])(?:(?:{'|'.join(TOP)})/[\w./{{}},*-]*[\w/}}*]|(?:{FILES})(?![\w-]))"
)
_MODULE = re.compile(rf"(?<![\w/.-])(?:{'|'.join(MODULES)})(?:\.(?!md\b)[A-Za-z_]\w*)+(?![\w/(])")
_IMPORT = re.compile(rf"from ((?:{'|'.join(MODULES)})(?:\.\w+)*) import ([\w, ]+)")
_IN_FILE = re.compile(r"`(\w+)` (?:in |\(in |\()`([\w/.]+\.py)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"(?<![\w\[/.'-])disagg ([a-z][a-z0-9\\|]*(?: (?:import|info|fit)\b)?)")
_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")


def _alternatives(path: str) -> list[str]:
    """Write out the braces of ``a/{b,c}.md``."""
    parts = [part.split(",") for part in re.split(r"[{}]", path)]
    return ["".join(each) for each in itertools.product(*parts)]


@cache
def _exists(path: str) -> bool:
    return path in WRITTEN or any(ROOT.glob(path.rstrip("/")))


@cache
def _module_exists(name: str) -> bool:
    """Say whether a dotted name is a module, or a name that a module's text has."""
    *parts, last = name.split(".")
    for n in range(len(parts) + 1, 0, -1):
        at = ROOT.joinpath(*[*parts, last][:n])
        if n == len(parts) + 1 and (at / "__main__.py").is_file():  # for python -m
            return True
        file = at / "__init__.py" if at.is_dir() else at.with_suffix(".py")
        if file.is_file():
            rest = name.split(".")[n:]
            text = file.read_text(encoding="utf-8")
            return all(re.search(rf"\b{word}\b", text) for word in rest)
    return False


@cache
def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _link_exists(link: str, page: Path) -> bool:
    if re.match(r"[a-z]+:", link):
        return True  # elsewhere: no test of this repository may need the network
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return False
    return not anchor or anchor in _anchors(target)


@cache
def _commands() -> set[str]:
    from typer.main import get_command

    from pipeline.cli.main import app

    found = set()
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        found |= {name, *(f"{name} {inner}" for inner in getattr(command, "commands", {}))}
    return found


def _commands_in(text: str) -> set[str]:
    code = [*_BLOCK.findall(text), *_CODE.findall(text), *re.findall(r"^ {4}\S.*$", text, re.M)]
    found = set()
    for written in itertools.chain.from_iterable(_COMMAND.findall(piece) for piece in code):
        for each in re.split(r"\\?\|", written):
            group, _, inner = each.partition(" ")
            found.add(each if group == "bags" and inner else group)
    return found


def wrong(text: str, page: Path) -> list[str]:
    """Return what a page names that does not exist."""
    found = []
    without_links = _LINK.sub("]", text)
    for named in sorted(set(_PATH.findall(without_links))):
        found += [path for path in _alternatives(named) if not _exists(path)]
    modules = set(_MODULE.findall(text))
    for module, names in _IMPORT.findall(text):
        modules |= {f"{module}.{name.strip()}" for name in names.split(",")}
    found += [name for name in sorted(modules) if not _module_exists(name)]
    found += [
        f"{name} in {path}"
        for name, path in sorted(set(_IN_FILE.findall(text)))
        if _exists(path)
        and not re.search(rf"\b{name}\b", (ROOT / path).read_text(encoding="utf-8"))
    ]
    found += [link for link in sorted(set(_LINK.findall(text))) if not _link_exists(link, page)]
    found += [f"disagg {name}" for name in sorted(_commands_in(text) - _commands())]
    return found


def test_what_a_page_names_exists() -> None:
    found = {str(page.relative_to(ROOT)): wrong(page.read_text(encoding="utf-8"), page)
             for page in PAGES}  # fmt: skip
    assert {name: each for name, each in found.items() if each} == {}


def test_pages_name_many_things() -> None:
    """A pattern that matched nothing would pass for every page."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len(set(_PATH.findall(text))) > 80
    assert len(set(_MODULE.findall(text))) > 20
    assert len(set(_LINK.findall(text))) > 30
    assert len(_commands_in(text)) > 12


@pytest.mark.ci
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("page", "last"), [("README.md", "cross_val_score("), ("docs/classification.md", "model.fit(")]
)
def test_python_of_classifiers_runs_as_printed(page: str, last: str) -> None:
    """The blocks that need no files of the reader: those of lists and rows made in the page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    start = text.index("Classifiers of bags follow" if page == "README.md" else "## From Python")
    section = text[start : text.index("\n## ", start + 1)]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert blocks
    assert last in blocks[-1].splitlines()[-1]
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("see `pipeline/config/shema.py`", "pipeline/config/shema.py"),
        ("`docs/design/{blrt,nowhere}.md`", "docs/design/nowhere.md"),
        ("the folder `models/rooms/`", "models/rooms/"),
        ("`benchmarks/results/none.json`", "benchmarks/results/none.json"),
        ("`tests/*.rs`", "tests/*.rs"),
        ("`python -m benchmarks.counties`", "benchmarks.counties"),
        ("`models.tunings`", "models.tunings"),
        ("```python\nfrom pipeline import BagStore, fitted\n```", "pipeline.fitted"),
        ("`hash_key` (`pipeline/run/record.py`)", "hash_key in pipeline/run/record.py"),
        ("`flows.update.update_maps`", "flows.update.update_maps"),
        ("[it](docs/nowhere.md)", "docs/nowhere.md"),
        ("![it](docs/figures/none.png)", "docs/figures/none.png"),
        ("[it](docs/gpu.md#no-such-heading)", "docs/gpu.md#no-such-heading"),
        ("[it](#no-such-heading)", "#no-such-heading"),
        ("run `disagg foretell CONFIG`", "disagg foretell"),
        (r"`disagg fit\|foretell CONFIG`", "disagg foretell"),
        ("```\ndisagg foretell mine.yaml\n```", "disagg foretell"),
    ],
)
def test_a_wrong_name_is_found(text: str, named: str) -> None:
    assert wrong(text, ROOT / "README.md") == [named]


@pytest.mark.parametrize(
    "text",
    [
        "`pipeline/config/schema.py` and `docs/design/{blrt,gpmil}.md`, `.ci/run`, `prefect.yaml`",
        "`python -m benchmarks.country`, `models.tuning`, `flows.update.update_map`",
        "[it](docs/gpu.md#use), [there](https://example.org/x.md), [here](#where-things-are)",
        "`disagg bags import TABLE`, `disagg publish|versions|rollback CONFIG`; disagg is fast",
        "`demo/out/`, `/maps/models/x.tif`, `s3://docs/x.csv`, `pip install 'disagg[gpu]'`",
    ],
)
def test_a_right_name_is_not(text: str) -> None:
    assert wrong(text, ROOT / "README.md") == []


def test_the_readme_says_what_every_room_is_for():
    rooms = {
        f"{package}/{path.parent.name}/"
        for package in ("geo", "models", "pipeline")
        for path in (ROOT / package).glob("*/__init__.py")
    }
    named = set(
        re.findall(
            r"^\| `((?:geo|models|pipeline)/\w+/)` \|", (ROOT / "README.md").read_text(), re.M
        )
    )
    assert named == rooms
