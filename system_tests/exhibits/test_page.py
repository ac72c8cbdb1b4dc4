"""Pages of exhibits are read strictly, their rows are current, and a run is compared with them."""

from __future__ import annotations

import dataclasses

import pytest

from system_tests.exhibits.page import (
    EXHIBITS,
    INDEX,
    Expectation,
    InvalidPage,
    exhibits,
    missing_line,
    parsed,
    with_table,
)
from system_tests.exhibits.running import Run, checked, problems

pytestmark = pytest.mark.minibroker

PAGE = (EXHIBITS / "platformatic-concurrent-sends.md").read_text()
EXHIBIT = parsed("sends", PAGE)
GOOD = Run(["ended: exit code 0"], [], ["no finding"], ["valid"])


def lacks(kind: str, expected: str, *shown: str) -> str | None:
    return missing_line(Expectation(kind, tuple(expected.splitlines())), shown)


def test_index_has_the_row_of_each_exhibit() -> None:
    index = INDEX.read_text()
    assert index == with_table(index, exhibits()), "make exhibits ARGS=--index"


def test_index_without_a_table_is_rejected() -> None:
    with pytest.raises(InvalidPage, match="no table"):
        with_table("# Exhibits\n", exhibits())


def test_page_without_a_version_is_rejected() -> None:
    with pytest.raises(InvalidPage, match="sections"):
        parsed("sends", PAGE.replace("## With 2.4.0", "## With 2.5.0"))


def test_page_with_a_misspelt_field_is_rejected() -> None:
    with pytest.raises(InvalidPage, match="the head lacks"):
        parsed("sends", PAGE.replace("verdict =", "verdit ="))


def test_page_without_a_program_is_rejected() -> None:
    with pytest.raises(InvalidPage, match="one program"):
        parsed("sends", PAGE.replace("```js", "```text"))


def test_lines_are_expected_in_their_order() -> None:
    assert lacks("output", "a\nc", "a", "b", "  c") is None
    assert lacks("output", "c\na", "a", "b", "c") == "a"


def test_ellipsis_is_any_text() -> None:
    assert lacks("judge", "- sent … in vain", "  - sent 8 batches, all in vain") is None
    assert lacks("judge", "- sent … in vain", "  - sent 8 batches") == "- sent … in vain"


def test_entry_of_a_journal_has_all_words() -> None:
    entry = "request Produce v9 producer_id=0 base_sequence=1"
    assert lacks("journal", "request Produce base_sequence=1", entry) is None
    assert lacks("journal", "request Produce base_sequence=2", entry) is not None


def test_entries_of_a_journal_are_counted() -> None:
    assert lacks("journal", "2 x request Fetch", "request Fetch", "request Fetch") is None
    assert lacks("journal", "3 x request Fetch", "request Fetch", "request Fetch") is not None


def test_absent_entry_of_a_journal_may_occur_before() -> None:
    entries = ("request Metadata", "request Fetch")
    assert lacks("journal", "request Fetch\nno request Metadata", *entries) is None
    assert lacks("journal", "request Metadata\nno request Fetch", *entries) is not None


def test_defective_version_that_is_not_found_is_a_problem() -> None:
    quiet = dataclasses.replace(EXHIBIT, expected=dict.fromkeys(EXHIBIT.versions, ()))
    assert problems(quiet, "2.4.0", GOOD) == []
    assert problems(quiet, "2.2.3", GOOD) == [
        "2.2.3 is expected to be found by: judge: sequence-numbers",
        "2.2.3 is expected to be found by: check: unseen",
    ]


def test_fixed_version_that_is_found_is_a_problem() -> None:
    quiet = dataclasses.replace(EXHIBIT, expected=dict.fromkeys(EXHIBIT.versions, ()))
    red = dataclasses.replace(GOOD, judge=["broken: heartbeats, sequence-numbers"])
    assert problems(quiet, "2.4.0", red) == [
        "2.4.0 is expected not to be found by: judge: sequence-numbers"
    ]


def test_journal_of_the_fixed_version_finds_the_defective_one() -> None:
    fixed = (Expectation("journal", ("request FindCoordinator",)),)
    expected: dict[str, tuple[Expectation, ...]] = {"2.2.3": (), "2.4.0": fixed}
    by_journal = dataclasses.replace(EXHIBIT, verdict=("journal",), expected=expected)
    looks_up = dataclasses.replace(GOOD, journal=["request FindCoordinator v1 key=shop"])
    assert problems(by_journal, "2.2.3", GOOD) == problems(by_journal, "2.4.0", looks_up) == []
    assert problems(by_journal, "2.2.3", looks_up) != []


def test_program_that_never_ends_is_found() -> None:
    assert dataclasses.replace(GOOD, output=["ended: never"]).found() == ["program: never"]


def test_acknowledged_record_that_the_log_lacks_is_found() -> None:
    assert checked(["sent a", "sent b"], {"orders-0": [(0, "a")]})[-1] == "invalid: unseen"


def test_record_of_the_log_that_was_not_polled_is_found() -> None:
    log = {"orders-0": [(0, "a"), (1, "b")]}
    assert checked(["polled 1 b"], log)[-1] == "invalid: lost-write"
    assert checked(["polled 0 a", "polled 1 b"], log)[-1] == "valid"
    assert checked([], log)[-1] == "invalid: unseen"
