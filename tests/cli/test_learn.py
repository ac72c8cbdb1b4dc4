from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.cli.chapters import (
    Chapter,
    ChapterStep,
    chapter_files,
    differing_line,
    parse_chapter,
    read_chapter,
)
from minibroker.cli.learn import lesson, teach
from minibroker.cli.output import CliError, InvalidUsage

CHAPTER = parse_chapter(
    """# 9. Test

Introduction.

## Count

**Predict:** How many?

```sh
echo 3
```

<!-- answer: {answer} -->

Because.
""",
    "9-test.md",
)


@pytest.fixture(scope="module", params=chapter_files().items(), ids=lambda item: f"{item[0]}")
def chapter(request: pytest.FixtureRequest) -> Chapter:
    return read_chapter(request.param[1])


def test_steps_of_a_chapter_print_what_its_page_says(chapter: Chapter) -> None:
    differing = {}
    with lesson(chapter) as taught:
        for step in chapter.steps:
            if step.code:
                result = taught.run(step)
                assert bool(step.question) == (result.right is not None), step.title
                line = differing_line(step.output, result.output)
                if line is not None:
                    differing[step.title] = line, result.output
    assert not differing


def test_chapters_ask_for_predictions(chapter: Chapter) -> None:
    assert sum(bool(step.question) for step in chapter.steps) >= 5
    assert all(step.explanation for step in chapter.steps if step.question)


@pytest.mark.parametrize(
    ("typed", "verdict", "score"),
    [
        ("3\n", "Right: 3", "1 of 1"),
        ("4\n", "Not so: you said 4, the broker says 3", "0 of 1"),
        ("\n", "The answer: 3", "0 of 0"),
    ],
)
def test_prediction_is_judged(
    typed: str, verdict: str, score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibroker.cli.learn.read_chapter", lambda _: CHAPTER)
    result = CliRunner().invoke(app, ["learn", "1"], input=typed)
    lines = result.stdout.splitlines()
    assert lines[:3] == ["9. Test", "", "Introduction."]
    assert lines.index("$ echo 3") < lines.index("3") < lines.index(verdict)
    assert lines[-3:] == ["Because.", "", f"{score} predictions were right."]


def test_chapter_without_questions_only_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibroker.cli.learn.read_chapter", lambda _: CHAPTER)
    result = CliRunner().invoke(app, ["learn", "1", "--no-questions"])
    assert "The answer: 3" in result.stdout
    assert "predictions" not in result.stdout


def test_console_of_the_chapter_s_broker_is_named() -> None:
    with lesson(CHAPTER) as taught, urllib.request.urlopen(taught.console) as page:
        assert b"<html" in page.read()


def test_chapters_are_listed() -> None:
    result = CliRunner().invoke(app, ["learn"])
    assert result.stdout.splitlines()[3].split() == ["4", "Groups", "7", "predictions"]


def test_chapter_that_does_not_exist_is_rejected() -> None:
    result = CliRunner().invoke(app, ["learn", "99"])
    assert isinstance(result.exception, InvalidUsage)
    assert str(result.exception) == "there is no chapter 99: `minibroker learn` lists them"


def test_output_without_an_answer_is_an_error() -> None:
    (step,) = CHAPTER.steps
    silent = CHAPTER._replace(steps=(step._replace(code="true"),))
    with (
        lesson(silent) as taught,
        pytest.raises(CliError, match="Count: the output has no answer to the question"),
    ):
        teach(silent, taught, asks=False)


def test_command_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibroker.cli.learn.STEP_TIMEOUT_S", 0.1)
    step = ChapterStep("Wait", "", "", "sh", "sleep 60", "", (), "")
    with lesson(CHAPTER) as taught, pytest.raises(CliError, match="Wait: the command did not end"):
        taught.run(step)


def test_processes_and_files_end_with_the_chapter() -> None:
    step = ChapterStep(
        "Leave", "", "", "sh", "sleep 60 > out 2>&1 & echo $! $PWD $DATA", "", (), ""
    )
    with lesson(CHAPTER) as taught:
        pid, work, data = taught.run(step).output.split()
        assert Path(f"/proc/{pid}").exists()
        assert Path(work, "out").exists()
        assert Path(data, "meta.properties").exists()
    assert not Path(work).exists()
    assert not Path(data).exists()
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"
