from __future__ import annotations

import pytest

from system_tests.suites.expectations import (
    LISTS,
    Expectation,
    Outcome,
    Result,
    expectations_of,
    problems,
    read,
    summary,
)

PASSED = Result(Outcome.PASSED)
RED = Result(Outcome.RED, "assert 1 == 2")
SKIPPED = Result(Outcome.SKIPPED, "no such broker")


def test_list_line_is_kind_name_and_reason() -> None:
    lines = ["# a comment", "", "red a.b::c[d: e]: needs two brokers"]
    assert read(lines[:2]) == []
    assert read(["red a::b[1]: needs two: brokers"]) == [
        Expectation("red", "a::b[1]", "needs two: brokers")
    ]


@pytest.mark.parametrize("line", ["red a::b", "green a::b: it passes", "red a::b: ", "a::b: why"])
def test_list_line_without_kind_or_reason_is_rejected(line: str) -> None:
    with pytest.raises(ValueError, match="expected `KIND NAME: reason`"):
        read([line])


@pytest.mark.parametrize("suite", [each.stem for each in LISTS.glob("*.txt")])
def test_list_of_each_suite_is_read(suite: str) -> None:
    names = [each.name for each in expectations_of(suite)]
    assert len(names) == len(set(names))


def test_red_test_without_line_is_a_problem() -> None:
    assert problems({"a": PASSED, "b": RED}, [], complete=True) == [
        "b is red and not listed: assert 1 == 2"
    ]


def test_skipped_test_without_line_is_a_problem() -> None:
    assert len(problems({"a": SKIPPED}, [], complete=True)) == 1


def test_listed_test_that_passes_is_a_problem() -> None:
    listed = [Expectation("red", "a", "needs two brokers")]
    assert problems({"a": RED}, listed, complete=True) == []
    assert problems({"a": PASSED}, listed, complete=True) == [
        "a is listed as red (needs two brokers) and is passed"
    ]
    assert len(problems({"a": SKIPPED}, listed, complete=True)) == 1


def test_flaky_test_may_pass_or_fail_but_must_run() -> None:
    listed = [Expectation("flaky", "a", "races with itself")]
    assert problems({"a": RED}, listed, complete=True) == []
    assert problems({"a": PASSED}, listed, complete=True) == []
    assert len(problems({"a": SKIPPED}, listed, complete=True)) == 1


def test_line_of_no_test_is_a_problem_of_a_complete_run_only() -> None:
    listed = [Expectation("red", "gone", "needs two brokers")]
    assert len(problems({"a": PASSED}, listed, complete=True)) == 1
    assert problems({"a": PASSED}, listed, complete=False) == []


def test_star_matches_any_text_and_an_exact_line_wins() -> None:
    listed = [
        Expectation("skipped", "a::*", "an old broker"),
        Expectation("red", "a::b[x]", "needs two brokers"),
    ]
    results = {"a::b[x]": RED, "a::c": SKIPPED, "b::a::c": PASSED}
    assert problems(results, listed, complete=True) == []


def test_summary_counts_outcomes() -> None:
    assert summary({"a": PASSED, "b": RED, "c": PASSED}) == "2 passed, 1 red, 0 skipped"
