from __future__ import annotations

import json

from system_tests.suites.expectations import Outcome, Result
from system_tests.suites.outcomes import from_go, from_junit, from_librdkafka


def test_junit_report_has_one_result_for_each_test() -> None:
    report = """<testsuites><testsuite>
      <testcase classname="tests.test_a.TestA" name="test_1"/>
      <testcase classname="tests.a" name="test_2[x]">
        <failure message="no">1 != 2</failure></testcase>
      <testcase classname="tests.a" name="test_3"><error message="fixture">bad</error></testcase>
      <testcase classname="tests.a" name="test_4"><skipped message="old"/></testcase>
      <testcase classname="tests.a" name="test_5">
        <skipped message="bug" type="pytest.xfail"/></testcase>
    </testsuite></testsuites>"""
    assert from_junit(report, "tests.") == {
        "test_a.TestA::test_1": Result(Outcome.PASSED),
        "a::test_2[x]": Result(Outcome.RED, "no\n1 != 2"),
        "a::test_3": Result(Outcome.RED, "fixture\nbad"),
        "a::test_4": Result(Outcome.SKIPPED, "old"),
        "a::test_5": Result(Outcome.PASSED, "bug"),
    }


def test_junit_test_whose_fixture_fails_afterwards_is_red() -> None:
    passed = '<testcase classname="a" name="b"/>'
    failed = '<testcase classname="a" name="b"><error message="close">late</error></testcase>'
    for cases in (passed + failed, failed + passed):
        assert from_junit(f"<testsuite>{cases}</testsuite>")["a::b"].outcome is Outcome.RED


def test_go_events_end_each_test_and_unfinished_ones_are_red() -> None:
    events: list[dict[str, str]] = [
        {"Action": "start"},
        {"Action": "run", "Test": "TestA"},
        {"Action": "run", "Test": "TestA/sub"},
        {"Action": "output", "Test": "TestA/sub", "Output": "bad offset\n"},
        {"Action": "fail", "Test": "TestA/sub"},
        {"Action": "pass", "Test": "TestA"},
        {"Action": "skip", "Test": "TestB"},
        {"Action": "run", "Test": "TestC"},
        {"Action": "output", "Output": "panic: test timed out"},
    ]
    lines = ["# a line of the compiler", *map(json.dumps, events)]
    assert from_go(lines) == {
        "TestA": Result(Outcome.PASSED),
        "TestA/sub": Result(Outcome.RED, "bad offset"),
        "TestB": Result(Outcome.SKIPPED),
        "TestC": Result(Outcome.RED),
    }


def test_librdkafka_table_is_read_without_its_colors() -> None:
    table = """
#==================================================================#
|\x1b[32m <MAIN>                                   |     PASSED |   1.000s \x1b[0m|
|\x1b[32m 0011_produce_batch                       |     PASSED |   1.000s \x1b[0m|
|\x1b[31m 0081_admin                               |     FAILED |   2.000s \x1b[0m| do_test:2: bad
|\x1b[33m 0077_compaction                          |    SKIPPED |   0.000s \x1b[0m| no time
|\x1b[36m 0103_transactions_local          |    SKIPPED |   0.000s \x1b[0m| Filtered due to -L
#==================================================================#
"""
    assert from_librdkafka(table) == {
        "0011_produce_batch": Result(Outcome.PASSED),
        "0081_admin": Result(Outcome.RED, "do_test:2: bad"),
        "0077_compaction": Result(Outcome.SKIPPED, "no time"),
    }


def test_librdkafka_test_that_ended_its_runner_is_red() -> None:
    output = "Running test 0098_consumer_txn\n\x1b[31m### Test failed ###\nbad offset\nabort\n"
    assert from_librdkafka(output) == {
        "0098_consumer_txn": Result(Outcome.RED, "### Test failed ###\nbad offset")
    }
