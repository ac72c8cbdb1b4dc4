from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.cli.chapters import (
    InvalidChapter,
    chapter_files,
    differing_line,
    is_right,
    parse_chapter,
    right_answer,
)

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
    monkeypatch.setattr("minibroker.cli.chapters.FOLDERS", (tmp_path / "none", package))
    assert list(chapter_files()) == [2, 10]
    monkeypatch.setattr("minibroker.cli.chapters.FOLDERS", (tmp_path / "none",))
    with pytest.raises(InvalidChapter, match="there are no chapters"):
        chapter_files()
