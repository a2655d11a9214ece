"""One output directory, one map: a second configuration is refused wherever it would write."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.config.schema import Config
from pipeline.run.ownership import OWNER, claim, owner_problem
from pipeline.updates.map_run import check_maps
from tests.pipeline.conftest import Files


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two configurations of one output directory; the first has run."""
    files = Files(tmp_path_factory.mktemp("made"))
    mapping = files.mapping() | {"output": {"dir": "shared"}}
    for name in ("north", "south"):
        path = files.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(mapping | {"name": name}))
    assert main(["ingest", str(files.directory / "north.yaml"), "--quiet"]) == 0
    return files.directory


@pytest.fixture
def pair(made, tmp_path):
    """A copy of them: a project that is copied goes on by itself."""
    directory = shutil.copytree(made, tmp_path / "pair")
    return directory / "north.yaml", directory / "south.yaml"


def test_a_second_configuration_is_refused_with_the_remedy(pair, capsys):
    first, second = pair
    claim(first.parent / "shared", load_config(first), "output.dir")
    written = {p: p.stat().st_mtime_ns for p in (first.parent / "shared").rglob("*")}
    for command in ("check", "ingest", "run", "publish"):
        capsys.readouterr()
        assert main([command, str(second)]) == 2
        err = capsys.readouterr().err
        assert f"is of another configuration, {first} ('north')" in err
        assert "give one of the two output.dir of its own" in err
    left = {p: p.stat().st_mtime_ns for p in (first.parent / "shared").rglob("*")}
    assert left == written
    assert main(["ingest", str(first), "--quiet"]) == 0


def test_publications_of_two_maps_do_not_share_a_directory(pair, tmp_path):
    first, second = map(load_config, pair)
    claim(tmp_path / "published", first, "publish.dir")
    with pytest.raises(InputError, match=r"publish\.dir of its own"):
        claim(tmp_path / "published", second, "publish.dir")


def test_a_configuration_may_move_or_be_renamed(pair, tmp_path):
    first, second = pair
    moved = first.with_name("moved.yaml")
    shutil.move(first, moved)
    assert owner_problem(first.parent / "shared", load_config(moved), "output.dir") is None
    other = owner_problem(first.parent / "shared", load_config(second), "output.dir")
    assert other is not None
    assert f"or remove {first.parent / 'shared' / OWNER}" in str(other)
    copied = shutil.copytree(first.parent, tmp_path / "elsewhere")
    loaded = load_config(copied / "moved.yaml")
    assert owner_problem(loaded.output.dir, loaded, "output.dir") is None
    # A project that is copied goes on by itself, while the first is still there.
    assert owner_problem(first.parent / "shared", load_config(moved), "output.dir") is None
    claim(loaded.output.dir, loaded, "output.dir")
    owner = json.loads((loaded.output.dir / OWNER).read_text())
    assert owner == {"name": "north", "configuration": "../moved.yaml"}


def test_maps_that_are_served_have_directories_of_their_own(pair):
    first, second = pair
    (first.parent / "shared" / OWNER).unlink()
    with pytest.raises(InputError, match=r"output\.dir .*shared is that of .*north\.yaml too"):
        check_maps([str(first), str(second)])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [({"name": "Malaria, 2024: north"}, "out/malaria-2024-north"), ({}, "out"),
     ({"name": "a", "output": {"dir": "mine"}}, "mine")],
)  # fmt: skip
def test_the_default_directory_has_the_name_of_the_map(files, given, wanted):
    mapping = files.mapping()
    mapping.pop("name", None)
    mapping.pop("output", None)
    config = Config.model_validate(mapping | given, context={"base": files.directory})
    assert config.output.dir == Path(files.directory) / wanted
    # A map of before stays where it is.
    (files.directory / "out").mkdir(exist_ok=True)
    (files.directory / "out/run.json").write_text("{}")
    again = Config.model_validate(mapping | given, context={"base": files.directory})
    assert again.output.dir == Path(files.directory) / (wanted if "output" in given else "out")
