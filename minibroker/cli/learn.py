"""``minibroker learn``: chapters to go through in a terminal, from a frame to transactions.

Owns the command, the broker of a chapter, and how its commands are run and its texts shown. It must
never know what a chapter teaches. Invariant: the broker's clock is frozen unless a step moves
it, so that a step gives the same result on each machine; broker, processes and files of a chapter
end with it. Kafka has quickstart pages.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import click

from minibroker.cli.chapters import (
    Chapter,
    ChapterStep,
    InvalidChapter,
    chapter_files,
    is_right,
    read_chapter,
    right_answer,
)
from minibroker.cli.commands import Argument, Command, examples
from minibroker.cli.output import CliError, InvalidUsage

STEP_TIMEOUT_S: Final = 120.0

EXAMPLES = examples(
    "minibroker learn",
    "minibroker learn 3",
    "minibroker learn 3 --no-questions",
    after="""Without a number, the chapters are listed. A chapter starts a broker of its own whose
clock is frozen, asks you what a command will do, runs it, and says whether you were right. An
empty line shows the answer. Ctrl-C ends the chapter.""",
)


class StepResult(NamedTuple):
    """What a step's command printed, and the question's right answer."""

    output: str
    right: str | None


class Lesson:
    """The broker and the folder of one chapter, in which its commands run."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.console = f"{environment['MINIBROKER_CONTROL']}/console"
        self._folder = folder
        self._environment = environment
        self._sessions: list[int] = []

    def run(self, step: ChapterStep) -> StepResult:
        """Run a step's command. Raises `CliError` if it does not end."""
        program = ["sh", "-c"] if step.language == "sh" else [sys.executable, "-c"]
        process = subprocess.Popen(  # noqa: S603 - a command of the chapter
            [*program, step.code],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # What it leaves in the background ends with the chapter.
        )
        self._sessions.append(process.pid)
        try:
            written, _ = process.communicate(timeout=STEP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.stop()
            process.communicate()
            raise CliError(
                f"{step.title}: the command did not end in {STEP_TIMEOUT_S:.0f} s"
            ) from None
        output = written.decode(errors="replace").rstrip()
        return StepResult(output, right_answer(step, output))

    def stop(self) -> None:
        """Stop what the commands left running."""
        for session in self._sessions:
            with suppress(ProcessLookupError):
                os.killpg(session, signal.SIGTERM)


@contextmanager
def lesson(chapter: Chapter) -> Iterator[Lesson]:
    """Start a chapter's broker with a frozen clock, and stop it at the end."""
    from minibroker.testing import MiniBroker

    with (
        tempfile.TemporaryDirectory(prefix="minibroker-learn-") as folder,
        MiniBroker(settings={"log.dirs": f"{folder}/data", **chapter.settings}) as broker,
    ):
        broker.freeze()
        programs = Path(folder) / "bin"
        programs.mkdir()
        # The same minibroker and Python as this one, whether installed, in a checkout or one file.
        for name, arguments in (("minibroker", "-m minibroker "), ("python", "")):
            path = programs / name
            path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}"$@"\n')
            path.chmod(0o755)
        work = Path(folder) / "work"
        work.mkdir()
        environment = os.environ | {
            "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}",
            "MINIBROKER_BOOTSTRAP_SERVER": broker.bootstrap_servers,
            "MINIBROKER_CONTROL": broker.control_url,
            "DATA": f"{folder}/data",
        }
        taught = Lesson(work, environment)
        try:
            yield taught
        finally:
            taught.stop()


@click.command("learn", cls=Command, epilog=EXAMPLES)
@click.argument("number", cls=Argument, type=int, required=False, about="The chapter.")
@click.option("--no-questions", is_flag=True, help="Show the answers instead of asking.")
def learn(number: int | None, no_questions: bool) -> None:
    """Learn how a broker works: predict what it will do, and see what it does."""
    try:
        files = chapter_files()
        if number is None:
            _list([read_chapter(path) for path in files.values()])
            return
        if number not in files:
            raise InvalidUsage(f"there is no chapter {number}: `minibroker learn` lists them")
        chapter = read_chapter(files[number])
    except InvalidChapter as error:
        raise CliError(str(error)) from None
    with lesson(chapter) as taught:
        teach(chapter, taught, asks=not no_questions)


def _list(chapters: list[Chapter]) -> None:
    for chapter in chapters:
        questions = sum(bool(step.question) for step in chapter.steps)
        click.echo(f"{chapter.number}  {chapter.title:<28}  {questions} predictions")
    click.echo("\n`minibroker learn 1` starts the first.")


def teach(chapter: Chapter, taught: Lesson, *, asks: bool) -> None:
    """Go through a chapter in the terminal. Raises `CliError`."""
    click.echo(click.style(f"{chapter.number}. {chapter.title}", bold=True))
    click.echo(f"\n{chapter.introduction}")
    click.echo(f"\nThe broker in a browser, while this chapter runs: {taught.console}")
    right = asked = 0
    for step in chapter.steps:
        click.echo("\n" + click.style(step.title, bold=True))
        if step.text:
            click.echo(f"\n{step.text}")
        if not step.code:
            continue
        given = _prediction(step, asks=asks)
        click.echo("\n" + click.style(_shown(step), fg="cyan"))
        result = taught.run(step)
        click.echo(result.output)
        if step.question:
            if result.right is None:
                raise CliError(f"{step.title}: the output has no answer to the question")
            asked += bool(given)
            right += _judge(given, result.right)
        if step.explanation:
            click.echo(f"\n{step.explanation}")
    if asks:
        click.echo(f"\n{right} of {asked} predictions were right.")


def _prediction(step: ChapterStep, *, asks: bool) -> str:
    """Ask the step's question; "" if there is none, or it was not answered."""
    if not step.question:
        return ""
    click.echo("\n" + click.style("Predict: ", bold=True) + step.question)
    if not asks:
        return ""
    answer: str = click.prompt("Your prediction", default="", show_default=False)
    return answer.strip()


def _judge(given: str, right: str) -> bool:
    """Say whether a prediction is right."""
    if not given:
        click.echo("\n" + click.style(f"The answer: {right}", fg="yellow"))
        return False
    if is_right(given, right):
        click.echo("\n" + click.style(f"Right: {right}", fg="green"))
        return True
    click.echo("\n" + click.style(f"Not so: you said {given}, the broker says {right}", fg="red"))
    return False


def _shown(step: ChapterStep) -> str:
    if step.language == "python":
        return step.code
    return "\n".join(f"$ {line}" for line in step.code.splitlines())
