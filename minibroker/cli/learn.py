"""``minibroker learn``: chapters to go through in a terminal, from a frame to transactions.

Owns the command, the broker of a chapter, and how its commands are run and its texts shown. It must
never know what a chapter teaches. Invariant: the broker's clock is frozen unless a step moves
it, so that a step gives the same result on each machine; broker, processes and files of a chapter
end with it. Kafka has quickstart pages.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

import click

from minibroker.cli.commands import Argument, Command, examples
from minibroker.cli.output import CliError, InvalidUsage

# ------- Chapters for learners: pages with steps, each a prediction, a command, and what decides it
# Theory of operation. A chapter is a page of ``docs/learn``. Each ``##`` section is a step: a text,
# a question after ``**Predict:**``, one fenced command in ``sh`` or ``python``, a fenced ``text``
# with its output, comments with the answer, and an explanation. ``<!-- answer: size {answer} bytes
# -->`` takes the answer from the real output: the first word there with this text around it. ``<!--
# answer WORD if: TEXT -->`` says which word is right if a line has the text; the first such comment
# that applies decides. In these texts and in the output of a page, ``…`` is any text. ``<!--
# settings: NAME=VALUE ... -->`` in the introduction are those of the chapter's broker.
#
# This module must never run a command or read a terminal. Invariant: the right answer always comes
# from what the broker did, never from the page.


ANY: Final = "…"
ANSWER: Final = "{answer}"
PREDICT: Final = "**Predict:** "
FOLDERS: Final = (
    Path(__file__).parents[2] / "docs" / "learn",  # A checkout.
    Path(__file__).parent / "learn_pages",  # An installed package.
)

_COMMENT: Final = re.compile(r"<!-- (answer|settings)(?: (.+?) if)?: (.*) -->")
_NAME: Final = re.compile(r"(\d+)-[a-z-]+\.md")
_WORD: Final = re.compile(r"[\w-]+")
_PICTURE: Final = "mermaid"


class InvalidChapter(ValueError):
    """A page that is no chapter; the text says what is wrong where."""


class AnswerRule(NamedTuple):
    """How an output decides a question: by a word in it, or by a text that it has."""

    word: str | None
    """The right answer if a line has the text; None if the answer is a word of the output."""
    text: str


class ChapterStep(NamedTuple):
    """One section of a chapter. Sections without a command have only a title and a text."""

    title: str
    text: str
    question: str
    language: str
    """``sh`` or ``python``; "" without a command."""
    code: str
    output: str
    """What the command printed when the page was written; ``…`` is any text."""
    answers: tuple[AnswerRule, ...]
    explanation: str


class Chapter(NamedTuple):
    """A page."""

    number: int
    title: str
    introduction: str
    settings: dict[str, str]
    steps: tuple[ChapterStep, ...]


def chapter_files() -> dict[int, Path]:
    """Return the pages by number. Raises `InvalidChapter` if there are none."""
    for folder in FOLDERS:
        found = {
            int(name[1]): path
            for path in sorted(folder.glob("*.md"))
            if (name := _NAME.fullmatch(path.name))
        }
        if found:
            return dict(sorted(found.items()))
    raise InvalidChapter(f"there are no chapters in {FOLDERS[-1]}: install minibroker again")


def read_chapter(path: Path) -> Chapter:
    """Read a page. Raises `InvalidChapter` or ``OSError``."""
    return parse_chapter(path.read_text(encoding="utf-8"), path.name)


def parse_chapter(page: str, name: str) -> Chapter:
    """Parse the text of a page. Raises `InvalidChapter`."""
    head, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    found = re.match(r"# (\d+)\. (.+)\n", head)
    if found is None:
        raise InvalidChapter(f"{name}: the first line must be '# NUMBER. TITLE'")
    texts, settings = [], {}
    for part in _parts(head[found.end() :]):
        if part.kind == "settings":
            settings = dict(pair.split("=", 1) for pair in part.text.split())
        else:
            texts.append(part.text)
    steps = tuple(
        _step(section, f"{name}, section {section.splitlines()[0]!r}") for section in sections
    )
    return Chapter(int(found[1]), found[2].strip(), "\n\n".join(texts), settings, steps)


class _PagePart(NamedTuple):
    """A paragraph, a fenced block or a comment of a page."""

    kind: str
    """``paragraph``, ``answer``, ``settings``, or a block's language."""
    text: str
    word: str | None = None


def _step(section: str, where: str) -> ChapterStep:
    title, _, body = section.partition("\n")
    before: list[str] = []
    after: list[str] = []
    answers = []
    question = language = code = output = ""
    for part in _parts(body):
        if part.kind in {"sh", "python"}:
            if code:
                raise InvalidChapter(f"{where}: a section has one command")
            language, code = part.kind, part.text
        elif part.kind == "text" and code and not output:
            output = part.text
        elif part.kind == "answer":
            answers.append(AnswerRule(part.word, part.text))
        elif part.text.startswith(PREDICT):
            question = part.text.removeprefix(PREDICT)
        else:
            (after if code else before).append(part.text)
    if bool(question) != bool(answers) or (question and not code):
        raise InvalidChapter(f"{where}: a question needs a command and an answer, and vice versa")
    text, explanation = "\n\n".join(before), "\n\n".join(after)
    return ChapterStep(
        title.strip(), text, question, language, code, output, tuple(answers), explanation
    )


def _parts(body: str) -> Iterator[_PagePart]:
    """Split a body at blank lines and fences; pictures become their lines."""
    lines = iter(body.splitlines())
    for line in lines:
        if line.startswith("```"):
            language = line.removeprefix("```").strip()
            block = "\n".join(takewhile(lambda inner: inner != "```", lines))
            kind = "paragraph" if language == _PICTURE else language
            yield _PagePart(kind, block)
        elif comment := _COMMENT.fullmatch(line):
            kind, word, text = comment.groups()
            yield _PagePart(kind, text, word)
        elif line.startswith("<!--"):
            continue  # For the tools that write the page.
        elif line.strip():
            yield _PagePart("paragraph", "\n".join([line, *takewhile(str.strip, lines)]))


def right_answer(step: ChapterStep, output: str) -> str | None:
    """Return the answer that the real output gives; None if the output decides nothing."""
    for word, text in step.answers:
        for line in output.splitlines():
            if word is None:
                found = _word_within(line, text)
                if found is not None:
                    return found
            elif _matches(line, f"{ANY}{text}{ANY}"):
                return word
    return None


def _word_within(line: str, text: str) -> str | None:
    """Return the first word of a line that has the text around it."""
    before, _, after = text.partition(ANSWER)
    for word in _WORD.finditer(line):
        if _matches(line[: word.start()], ANY + before) and _matches(
            line[word.end() :], after + ANY
        ):
            return word[0]
    return None


def _matches(line: str, text: str) -> bool:
    """Whether a line is a text in which ``…`` is any text."""
    first, *others = text.split(ANY)
    if not others:
        return line == text
    *middle, last = others
    at = len(first)
    if not line.startswith(first):
        return False
    for part in middle:
        found = line.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(line) - len(last) >= at and line.endswith(last)


def is_right(given: str, right: str) -> bool:
    """Whether a prediction means the right answer: case, spaces and commas don't matter."""
    return _plain(given) == _plain(right)


def _plain(answer: str) -> str:
    plain = answer.strip().strip(".").lower().replace(",", "").replace(" ", "")
    return plain.lstrip("0") or "0" if plain.isdecimal() else plain


def differing_line(expected: str, output: str) -> str | None:
    """Return the first line of a page's output that the real output does not have, or None."""
    real = [line.rstrip() for line in output.rstrip().splitlines()]
    pages = expected.rstrip().splitlines()
    for number, line in enumerate(pages):
        if number >= len(real) or not _matches(real[number], line.rstrip()):
            return line
    return None if len(real) == len(pages) else real[len(pages)]


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
