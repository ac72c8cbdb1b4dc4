"""Run complete suites of clients: `python -m system_tests.suites [--short] [NAME...]`.

Owns the choice of suites and the printed totals. Invariant: the exit status is 1 if any test ended
otherwise than its suite's list says.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Final

from system_tests.suites import kafka_python_suite, kgo_suite, librdkafka_suite
from system_tests.suites.expectations import Outcome, Result, expectations_of, problems, summary

SUITES: Final[dict[str, Callable[..., dict[str, Result]]]] = {
    each.NAME: each.run for each in (kafka_python_suite, kgo_suite, librdkafka_suite)
}


def main() -> int:
    """Run the suites that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="python -m system_tests.suites")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SUITES))
    parser.add_argument("--short", action="store_true", help="only the tests that CI runs")
    arguments = parser.parse_args()
    wrong = []
    for name in arguments.names or SUITES:
        started = time.monotonic()
        results = SUITES[name](short=arguments.short)
        print(f"{name}: {summary(results)} in {time.monotonic() - started:.0f} s", flush=True)
        for line in expectations_of(name):
            ended = [each for test, each in results.items() if line.is_of(test)]
            if any(each.outcome is not Outcome.PASSED for each in ended):
                print(f"  {line.kind} {line.name}: {line.reason}")
        wrong += problems(results, expectations_of(name), complete=not arguments.short)
    for each in wrong:
        print(each)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
