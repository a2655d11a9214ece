"""The command line: exit statuses, one line for each problem, and nothing slow before the help."""

import io
import json
import logging
import subprocess
import sys
import time
import types

import pytest
import typer

from geo.core.errors import Problem
from models.core.errors import NumericalError
from pipeline.cli import main as cli_main
from pipeline.cli.console import Bars, Lines
from pipeline.cli.main import main
from pipeline.run.stages import STAGES

GOOD = """\
areas:       {path: districts.gpkg, id: district_id}
counts:      {path: cases.csv, value: cases}
population:  {path: population.tif}
covariates:  {rainfall: {path: precipitation.tif}}
model:       {kind: vbagg}
"""
FILES = ("districts.gpkg", "cases.csv", "population.tif", "precipitation.tif")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Make a project of empty files, whose stages only write down that they ran."""
    for name in FILES:
        (tmp_path / name).touch()
    (tmp_path / "run.yaml").write_text(GOOD, encoding="utf-8")

    def stand_in(stage):
        def run(context):
            config, progress = context.config, context.progress
            left = {
                "ingest": ("work/bags.zarr/zarr.json", "work/grid.zarr/zarr.json"),
                "fit": ("work/model/model.json",),
                "predict": ("rate_mean.tif",),
                "evaluate": ("evaluation.json",),
                "report": ("report.html",),
            }
            for name in left[stage.name]:
                (config.output.dir / name).parent.mkdir(parents=True, exist_ok=True)
                (config.output.dir / name).write_text("{}")
            progress.log(f"{stage.name} at work")
            return {"n": 1}

        return run

    for stage in STAGES.values():
        module, _, function = stage.function.partition(":")
        fake = types.ModuleType(module)
        setattr(fake, function, stand_in(stage))
        monkeypatch.setitem(sys.modules, module, fake)
    sys.modules["pipeline.ingest.stage"].check_inputs = lambda *_: checked([])
    return tmp_path


def checked(problems):
    return types.SimpleNamespace(problems=problems, examined=None, found={}, ids=[])


def replace_stage(monkeypatch, error):
    def fail(context):
        raise error

    monkeypatch.setattr(sys.modules["pipeline.training.stage"], "fit_stage", fail)


def test_run_says_where_the_maps_are(project, capsys):
    assert main(["run", str(project / "run.yaml")]) == 0
    out, err = capsys.readouterr()
    assert str(project / "out" / "rate_mean.tif") in out
    assert "fit: done in" in err


def test_json_is_all_of_standard_output(project, capsys):
    assert main(["run", str(project / "run.yaml"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    names = ("rate_mean.tif", "report.html")
    assert result["maps"] == [str(project / "out" / name) for name in names]
    assert [stage["name"] for stage in result["stages"]] == list(STAGES)
    assert main(["run", str(project / "run.yaml"), "--json"]) == 0
    assert all(stage["skipped"] for stage in json.loads(capsys.readouterr().out)["stages"])


def test_quiet_says_nothing(project, capsys):
    assert main(["run", str(project / "run.yaml"), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_verbose_says_why_and_leaves_no_handler(project, capsys):
    before = list(logging.getLogger("pipeline").handlers)
    assert main(["ingest", str(project / "run.yaml"), "--verbose"]) == 0
    assert "pipeline.run.runner: ingest runs: first run" in capsys.readouterr().err
    (project / "run.yaml").write_text("model: {}")
    assert main(["ingest", str(project / "run.yaml"), "--verbose"]) == 2
    assert logging.getLogger("pipeline").handlers == before


def test_bad_configuration_is_a_line_each_and_status_2(project, capsys):
    path = project / "run.yaml"
    path.write_text(GOOD.replace("kind: vbagg", "knd: vbagg"))
    (project / "cases.csv").unlink()
    for command in ("run", "ingest", "check"):
        assert main([command, str(path), "--quiet"]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 2
        assert all(line.startswith("error: run.yaml line ") for line in lines)
        assert "model.knd: unknown key; did you mean model.kind?" in lines[0]
        assert "counts.path: no file" in lines[1]
    assert not (project / "out").exists()


def test_check_shows_a_table_and_every_problem_once(project, capsys, monkeypatch):
    found = [
        Problem("cases.csv row 7", "'lots' is no count", "give a number"),
        Problem("counts", "no such file", "told already"),
        Problem("counts_of_last_year", "another place", "told still"),
    ]
    stage = sys.modules["pipeline.ingest.stage"]
    monkeypatch.setattr(stage, "check_inputs", lambda *_: checked(found))
    (project / "cases.csv").unlink()
    assert main(["check", str(project / "run.yaml")]) == 2
    out, err = capsys.readouterr()
    assert "3 problems" in out
    assert "error: cases.csv row 7: 'lots' is no count; give a number" in err
    assert "told already" not in err
    assert "told still" in err
    assert main(["check", str(project / "run.yaml"), "--json"]) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert problems[1] == {
        "place": "cases.csv row 7", "found": "'lots' is no count", "remedy": "give a number",
        "transient": False,
    }  # fmt: skip


def test_an_interruption_is_130_and_says_how_to_go_on(project, capsys, monkeypatch):
    replace_stage(monkeypatch, KeyboardInterrupt())
    path = project / "run.yaml"
    assert main(["run", str(path)]) == 130
    err = capsys.readouterr().err
    assert err.endswith(
        f"interrupted during fit; finished work is kept; continue with `disagg run {path}`\n"
    )
    assert "Traceback" not in err


def test_a_defect_of_any_command_is_json_for_machines(tmp_path, capsys, monkeypatch):
    group = typer.main.get_group(cli_main.app)  # of its own
    given = tmp_path / "given.yaml"
    given.touch()

    def defect(**_):
        raise ZeroDivisionError("ours at https://user:planted@host/a\nand more")

    found = list(commands_of(group))
    assert len(found) > 15
    monkeypatch.setattr(cli_main, "app", group)
    for words, command in found:
        command.callback = defect
        for each in command.params:
            if each.param_type_name == "argument":
                words.append(str(given))
            elif each.required:
                words += [each.opts[0], "a"]
        assert main([*words, "--json"]) == 1, words
        out, err = capsys.readouterr()
        told = json.loads(out)
        assert told["ok"] is False
        assert told["error"].startswith("ours at https://")
        assert (told["type"], told["traceback"]) == ("ZeroDivisionError", "standard error")
        assert "planted" not in out
        assert "Traceback" in err


def commands_of(group, words=()):
    """Yield the words and the command of each that has --json."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, (*words, name))
        elif any("--json" in each.opts for each in command.params):
            yield [*words, name], command


@pytest.mark.parametrize(
    "error",
    [
        NumericalError("bound: not finite; lower fit.learning_rate"),
        OSError(28, "No space left"),
    ],
)
def test_what_a_user_can_mend_is_2_without_a_traceback(project, capsys, monkeypatch, error):
    replace_stage(monkeypatch, error)
    assert main(["run", str(project / "run.yaml")]) == 2
    err = capsys.readouterr().err
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert last.count("; ") >= 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run"], "missing argument"),
        (["rnu", "x.yaml"], "no such command"),
        (["run", "x.yaml", "--quite"], "no such option"),
        (["demo", "x", "--size", "huge"], "huge"),
        (["run", "nowhere.yaml"], "no such file"),
    ],
)
def test_mistakes_in_the_command_are_2(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert says in err.lower()
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_stage_on_old_inputs_says_so(project, capsys):
    path = project / "run.yaml"
    assert main(["run", str(path)]) == 0
    (project / "cases.csv").write_text("new")
    capsys.readouterr()
    assert main(["predict", str(path)]) == 0
    assert "inputs of ingest have changed" in capsys.readouterr().err


@pytest.mark.parametrize("holds", [(), (".disagg-demo", "half.tif"), ("truth_rate.tif",)])
def test_a_demo_may_be_made_where_a_demo_was(tmp_path, monkeypatch, capsys, holds):
    fake = types.ModuleType("pipeline.demo.country")
    fake.simulate_country = lambda directory, size, seed, labels: directory / "disagg.yaml"
    monkeypatch.setitem(sys.modules, "pipeline.demo.country", fake)
    for name in holds:
        (tmp_path / name).touch()
    assert main(["demo", str(tmp_path)]) == 0
    assert f"Next: disagg run {tmp_path / 'disagg.yaml'}" in capsys.readouterr().out


def test_a_demo_is_not_made_over_a_users_files(tmp_path, capsys):
    mine = tmp_path / "disagg.yaml"
    mine.write_text("mine")
    assert main(["demo", str(tmp_path)]) == 2
    assert main(["demo", str(mine)]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["disagg.yaml"]
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("command", [(), ("run",), ("demo",), ("check",), ("evaluate",)])
def test_help_is_0_and_has_an_example_or_says_what_it_does(command, capsys):
    assert main([*command, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_no_arguments_is_help(capsys):
    assert main([]) == 0
    assert "disagg demo demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "slow"),
    [
        (
            "from pipeline.cli.main import main; main(['--help'])",
            {"numpy", "pandas", "rasterio", "pydantic", "dask", "zarr"},
        ),
        (
            "import models; models.VBAgg; import pipeline.training.stage",
            {"sklearn", "scipy.stats", "matplotlib", "distributed"},
        ),
    ],
    ids=["help", "fit"],
)
def test_nothing_waits_for_libraries_that_it_does_not_use(code, slow):
    told = f"import sys; {code}; print('slow:', sorted({slow!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "slow: []"


def test_bars_come_after_a_while_and_lines_have_none(capsys):
    for wait_s, seen in ((0.01, True), (60.0, False)):
        stream = io.StringIO()
        stream.isatty = lambda: True
        bars = Bars(stream, show_after_s=wait_s)
        bars._console._force_terminal = True
        with bars.task("fold", 3) as task:
            task.advance(1, bound=-1.5)
            time.sleep(0.3)
        assert ("fold" in stream.getvalue()) is seen
    stream = io.StringIO()
    lines = Lines(stream)
    with lines.task("fold", 3) as task:
        task.advance(3)
    lines.log("done [sic]")
    assert stream.getvalue() == "done [sic]\n"


def test_a_long_task_has_a_line_now_and_then_in_a_file():
    stream = io.StringIO()
    with Lines(stream, line_after_s=0.05).task("fit", 8) as task:
        task.advance(2, now="climb", passes=40)
        while not stream.getvalue():
            time.sleep(0.01)
    assert stream.getvalue().startswith("fit: 25 %, now climb, passes 40, 0 s so far\n")
    n_line = stream.getvalue().count("\n")
    time.sleep(0.3)
    assert stream.getvalue().count("\n") == n_line  # none once it is over
    with Lines(stream, line_after_s=0.05).task("import"):
        time.sleep(0.4)  # 0.05, 0.15, 0.35 s: ever rarer
    assert 1 <= stream.getvalue().count("import: 0 s so far\n") <= 3
