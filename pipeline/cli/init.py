"""The command ``disagg init``: a commented configuration from what lies in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geo.core.errors import InputError, Problem, name_first
from pipeline.cli.console import Output, reported_errors, with_output_options

if TYPE_CHECKING:
    from pipeline.inspection.guess import Ask

NAME = "disagg.yaml"
QUESTIONS = (
    *("areas", "areas.id", "counts", "counts.id", "counts.value"),
    *("counts.tested", "counts.weight", "counts.of", "population"),
)


@with_output_options
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the files are; here by default.")
    ] = Path(),
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing; end where several files fit.")
    ] = False,
    answer: Annotated[
        list[str] | None,
        typer.Option("--answer", metavar="KEY=VALUE", help="Answer a question beforehand."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help=f"Replace a {NAME} that is there.")
    ] = False,
    *,
    output: Output,
) -> None:
    """Write a commented configuration from the files of a folder, and check it.

    \b
    Boundaries are the vector file whose ids a table has; counts are the
    whole numbers of that table, or values what its names say (yield,
    mean_..., with hectares as their weight); people are the raster that
    says so; all other rasters are covariates. {period} stands for the
    dates of files. Where several fit, it asks.

    \b
    Examples:
      disagg init
      disagg init data --yes
      disagg init data --yes --answer population=pop_2020.tif
    """  # noqa: D301
    from pipeline.inspection.first import configuration
    from pipeline.inspection.folder import Folder
    from pipeline.inspection.guess import guess
    from pipeline.storage.files import write_text

    with reported_errors(output, f"disagg init {folder}", resumable=False):
        target = folder / NAME
        if not folder.is_dir():
            raise InputError(Problem(str(folder), "no such folder", "give one with the files"))
        if target.exists() and not force:
            remedy = "--force replaces it; nothing was written"
            raise InputError(Problem(str(target), "is there already", remedy))
        answers, asked = _answers(answer or []), set[str]()
        found = guess(Folder.read(folder), _asking(answers, folder, asked, yes=yes))
        _check_asked(answers, asked)
        text = configuration(found, folder, found.left)
        write_text(target, text)
        output.print(f"Written: {target}\n\n{text}")
        for each in found.left:
            output.print(f"not used: {each}")
        problems, mendable = _checked(target, output)
        output.print_json(
            {"ok": not problems, "path": str(target), "left": found.left,
             "problems": [str(each) for each in problems]}
        )  # fmt: skip
        for problem in problems:
            output.error(f"error: {problem}")
        if problems:
            fix = f", or disagg check {target} --fix" if mendable else ""
            output.print(f"Next: correct what is named{fix}")
            raise typer.Exit(2)
        output.print(f"Next: disagg check {target} --html")


def _checked(target: Path, output: Output) -> tuple[list[Problem], bool]:
    """Return the problems of a configuration, and whether ``check --fix`` proposes anything."""
    from pipeline.cli.check import LINE_AFTER_S, all_problems
    from pipeline.config.document import Document
    from pipeline.inspection.mends import Findings, changes_of

    problems, config, examined, _ = all_problems(target, None, output.progress(LINE_AFTER_S))
    document = Document.read(target, [])
    if not problems or document is None:
        return problems, False
    suspicions = () if examined is None else examined.suspicions
    named = any("--fix" in each.remedy for each in problems)  # a crosswalk of names
    return problems, named or bool(changes_of(Findings(document, config, problems, suspicions)))


def _answers(given: Sequence[str]) -> dict[str, str]:
    wrong = [each for each in given if "=" not in each]
    if wrong:
        remedy = "write it as KEY=VALUE, such as population=pop.tif"
        raise InputError(Problem(f"--answer {wrong[0]}", "has no =", remedy))
    unknown = [each for each in given if each.partition("=")[0].strip() not in QUESTIONS]
    if unknown:
        remedy = f"the questions are {', '.join(QUESTIONS)}"
        raise InputError(Problem(f"--answer {unknown[0]}", "answers no question", remedy))
    return {key.strip(): value.strip() for key, _, value in (each.partition("=") for each in given)}


def _check_asked(known: dict[str, str], asked: set[str]) -> None:
    """Raise an InputError if an answer was to no question: it would do nothing."""
    idle = [key for key in known if key not in asked]
    if idle:
        what = f"these files leave no choice of it: {known[idle[0]]!r} would change nothing"
        raise InputError(Problem(f"--answer {idle[0]}", what, "leave it out"))


def _asking(known: dict[str, str], folder: Path, asked: set[str], *, yes: bool) -> Ask:
    """Return what answers questions: by the options, noted in ``asked``, or on the terminal."""

    def ask(key: str, text: str, answers: Sequence[str], default: str | None = None) -> str:
        if key in known:
            if known[key] not in answers:
                what = f"{text} {known[key]!r} is none of {name_first(list(answers), 12)}"
                raise InputError(Problem(f"--answer {key}", what, "give one of these"))
            asked.add(key)
            return known[key]
        if len(answers) == 1 or default is not None:
            return default or answers[0]
        remedy = f"answer it: --answer {key}={answers[0]}, say; nothing was written"
        what = f"{text} {name_first(list(answers), 12)}"
        if yes:
            raise InputError(Problem(f"{folder}: {key}", what, remedy))
        typer.echo(f"\n{text}")
        for number, each in enumerate(answers, 1):
            typer.echo(f"  {number}  {each}")
        while True:
            try:
                chosen = typer.prompt("Number", type=int)
            except typer.Abort:  # there is no terminal, or nobody answers
                raise InputError(Problem(f"{folder}: {key}", what, remedy)) from None
            if 1 <= chosen <= len(answers):
                return answers[chosen - 1]

    return ask
