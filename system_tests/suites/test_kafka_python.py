from __future__ import annotations

from collections.abc import Sequence

import pytest

from system_tests.suites import kafka_python_suite
from system_tests.suites.conftest import check
from system_tests.suites.expectations import Outcome, Result

pytestmark = pytest.mark.minibroker


def test_kafka_python_ends_as_expected() -> None:
    check(kafka_python_suite.NAME, kafka_python_suite.run)


@pytest.mark.parametrize("again", [Outcome.PASSED, Outcome.RED])
def test_failed_test_is_run_again_alone(again: Outcome) -> None:
    asked: list[Sequence[str]] = []

    def run_tests(arguments: Sequence[str]) -> dict[str, Result]:
        asked.append(arguments)
        if len(asked) == 1:
            return {
                "test_a.TestB::x[::1]": Result(Outcome.RED),
                "test_b::y": Result(Outcome.PASSED),
            }
        return {"test_a.TestB::x[::1]": Result(again)}

    results = kafka_python_suite.with_second_attempts(run_tests)
    assert [result.outcome for result in results.values()] == [again, Outcome.PASSED]
    assert asked == [["test/integration"], ["test/integration/test_a.py::TestB::x[::1]"]]
