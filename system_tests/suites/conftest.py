"""The check that all these system tests share."""

from __future__ import annotations

from collections.abc import Callable

from system_tests.conftest import without_toolchain
from system_tests.harness.jars import ToolchainMissing
from system_tests.suites.expectations import Outcome, Result, expectations_of, problems


def check(name: str, run: Callable[..., dict[str, Result]]) -> None:
    """Run the short selection of a suite and compare it with the suite's list."""
    try:
        results = run(short=True)
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    assert any(each.outcome is Outcome.PASSED for each in results.values()), "no test passed"
    assert not problems(results, expectations_of(name), complete=False)
