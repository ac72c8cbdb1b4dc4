from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.cli import main
from minibroker.cli.app import app
from minibroker.cli.learn import (
    Chapter,
    ChapterStep,
    InvalidChapter,
    chapter_files,
    differing_line,
    is_right,
    lesson,
    parse_chapter,
    read_chapter,
    right_answer,
    teach,
)
from minibroker.cli.output import CliError, ExitCode, InvalidUsage

PAGE = """# 4. Groups

<!-- settings: a.b=1 c=x=y -->

First paragraph
of two lines.

<!-- picture: states -->
```mermaid
A --> B
```

## Count

Before.

**Predict:** How many? (a number)

```sh
echo 3 cats
echo done
```

```text
… cats
done
```

<!-- answer: {answer} cats -->

After.

## Choose

**Predict:** Yes or no?

```python
print("no")
```

<!-- answer yes if: yes -->
<!-- answer no if: … -->

## Read on

Nothing to run.
"""


def test_page_is_split_into_steps() -> None:
    chapter = parse_chapter(PAGE, "4-groups.md")
    assert (chapter.number, chapter.title) == (4, "Groups")
    assert chapter.settings == {"a.b": "1", "c": "x=y"}
    assert chapter.introduction == "First paragraph\nof two lines.\n\nA --> B"
    count, choose, read_on = chapter.steps
    assert (count.title, count.text, count.question) == ("Count", "Before.", "How many? (a number)")
    assert (count.language, count.code) == ("sh", "echo 3 cats\necho done")
    assert (count.output, count.explanation) == ("… cats\ndone", "After.")
    assert (choose.language, choose.text, choose.explanation) == ("python", "", "")
    assert (read_on.code, read_on.question, read_on.text) == ("", "", "Nothing to run.")


def test_answer_is_taken_from_the_output() -> None:
    count, choose, _ = parse_chapter(PAGE, "4-groups.md").steps
    assert right_answer(count, "17 cats\ndone") == "17"
    assert right_answer(count, "dogs") is None
    assert right_answer(choose, "first\nyes") == "yes"
    assert right_answer(choose, "no") == "no"


@pytest.mark.parametrize(
    ("given", "right", "is_the_same"),
    [
        ("2012", "2012", True),
        ("2,012 ", "2012", True),
        ("yes.", "Yes", True),
        ("complete abort", "CompleteAbort", True),
        ("6", "0006", True),
        ("0", "0", True),
        ("2013", "2012", False),
        ("", "0", False),
    ],
)
def test_prediction_is_compared_with_the_answer(given: str, right: str, is_the_same: bool) -> None:
    assert is_right(given, right) is is_the_same


def test_output_of_a_page_is_compared_line_by_line() -> None:
    assert differing_line("a … c\nd", "a b c\nd\n") is None
    assert differing_line("a … c\nd", "a b c\ne") == "d"
    assert differing_line("a\nb", "a") == "b"
    assert differing_line("a", "a\nb") == "b"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("Groups\n", "x.md: the first line must be '# NUMBER. TITLE'"),
        ("# 1. A\n\n## B\n\n```sh\na\n```\n\n```sh\nb\n```\n", "'B': a section has one command"),
        ("# 1. A\n\n## B\n\n**Predict:** What?\n", "'B': a question needs a command and an answer"),
        ("# 1. A\n\n## B\n\n```sh\na\n```\n<!-- answer: (a) -->\n", "a question needs a command"),
    ],
)
def test_page_that_is_no_chapter_is_rejected(page: str, message: str) -> None:
    with pytest.raises(InvalidChapter) as caught:
        parse_chapter(page, "x.md")
    assert message in str(caught.value)


def test_chapters_are_found_in_a_checkout_and_in_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(chapter_files()) == [1, 2, 3, 4, 5, 6, 7]
    package = tmp_path / "package"
    package.mkdir()
    (package / "10-last.md").touch()
    (package / "2-first.md").touch()
    (package / "README.md").touch()
    monkeypatch.setattr("minibroker.cli.learn.FOLDERS", (tmp_path / "none", package))
    assert list(chapter_files()) == [2, 10]
    monkeypatch.setattr("minibroker.cli.learn.FOLDERS", (tmp_path / "none",))
    with pytest.raises(InvalidChapter, match="there are no chapters"):
        chapter_files()


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


@pytest.mark.parametrize("reason", [EOFError, KeyboardInterrupt])
def test_end_of_input_at_a_question_ends_without_a_traceback(
    reason: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_: str) -> str:
        raise reason

    monkeypatch.setattr("minibroker.cli.learn.read_chapter", lambda _: CHAPTER)
    monkeypatch.setattr("click.termui.visible_prompt_func", end)
    monkeypatch.setattr("sys.argv", ["minibroker", "learn", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.INTERRUPTED


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
