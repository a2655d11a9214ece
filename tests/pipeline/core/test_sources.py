"""What a stage reaches by imports is hashed, without what changes no result."""

from __future__ import annotations

import os
import shutil

import pytest

from pipeline.core import sources
from pipeline.core.sources import PACKAGES, SourceTree, code_hashes, own_sources
from pipeline.run.stages import STAGES


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Write two packages; return what hashes them anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    texts = {
        "pipeline/__init__.py": "from pipeline.room.unused import C\n",
        "pipeline/room/__init__.py": "",
        "pipeline/room/stage.py": "from typing import TYPE_CHECKING\nimport pipeline\n"
        "if TYPE_CHECKING:\n    from pipeline.room import typed\n"
        "def f():\n    from models.lazy import A\n    return A\n",
        "pipeline/room/typed.py": "T = int\n",
        "pipeline/room/unused.py": "C = 1\n",
        "pipeline/config/schema.py": "def check():\n    from models import kinds\n",
        "pipeline/room/page.j2": "<p>",
        "pipeline/room/table.json": "[1]",
        "models/lazy.py": "from models import kinds\nA = kinds.K\n",
        "models/kinds.py": "K = 1\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def hashed(root="pipeline.room.stage", below=tmp_path):
        return SourceTree({name: below / name for name in ("models", "pipeline")}).hashes([root])

    return hashed


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("pipeline/room/stage.py", "# why\n", set()),
        ("pipeline/room/unused.py", "C = 2\n", set()),
        ("pipeline/room/typed.py", "T = float\n", set()),
        ("models/kinds.py", '"""Say."""\n\nK = (\n    1  # one\n)\n', set()),
        ("models/kinds.py", "K = 2\n", {"models.kinds"}),
        ("pipeline/room/page.j2", "<b>", {"pipeline.room"}),
        ("pipeline/room/table.json", "[2]", {"pipeline.room"}),
        ("pipeline/__init__.py", "D = 1\n", {"pipeline"}),
    ],
)
def test_code_counts_where_it_is_reached(tree, tmp_path, name, text, changed):
    before = tree()
    path = tmp_path / name
    path.write_text(path.read_text() + text if text.startswith("#") else text)
    after = tree()
    assert {room for room in before | after if before.get(room) != after.get(room)} == changed


def test_a_checkout_a_copy_and_a_touch_are_equal_whatever_the_cache(tree, tmp_path):
    # What the configuration asks the models is a value.
    assert set(tree("pipeline.config.schema")) == {"pipeline.config"}
    before = tree()
    copy = tmp_path / "elsewhere"
    for name in ("models", "pipeline"):
        shutil.copytree(tmp_path / name, copy / name)
    os.utime(copy / "models" / "kinds.py", (1, 1))
    (copy / "models" / "__pycache__").mkdir()
    (copy / "models" / "__pycache__" / "kinds.cpython-311.pyc").write_bytes(b"compiled")
    (copy / "models" / "kinds.py~").write_text("an editor's")
    assert tree(below=copy) == before
    (copy / "models" / "kinds.py").rename(copy / "models" / "other.py")
    assert tree(below=copy) != before
    # A damaged or forbidden cache is no matter.
    (cache,) = (tmp_path / "cache" / "disagg").iterdir()
    cache.write_text('{"')
    assert tree() == before
    shutil.rmtree(cache.parent)
    cache.parent.write_text("a file where the directory belongs")
    assert tree() == before


def test_stages_reach_their_own_rooms_and_not_those_of_others():
    reached = {name: own_sources().reached([stage.module]) for name, stage in STAGES.items()}
    rooms = {name: {m.rpartition(".")[0] for m in found} for name, found in reached.items()}
    assert not rooms["ingest"] & {"models.likelihoods", "models.gp", "models.aggregate"}
    others = {f"pipeline.{room}" for room in ("ingest", "prediction", "evaluation", "reporting")}
    assert not rooms["fit"] & others
    assert all("pipeline.reporting" not in rooms[name] for name in STAGES if name != "report")
    assert set(code_hashes()) == set(PACKAGES)


def test_what_one_process_has_parsed_the_next_reads(monkeypatch):
    """To parse all modules takes seconds, and each command would."""
    own_sources.__wrapped__()  # parses what no process before it has
    monkeypatch.setattr(sources, "_read", lambda text: pytest.fail("parsed again"))
    again = own_sources.__wrapped__()
    assert again.hashes([stage.module for stage in STAGES.values()])
