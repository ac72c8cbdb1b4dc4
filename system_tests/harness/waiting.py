"""Waits for a condition with a deadline, the only kind of wait in these tests.

Owns the loop, the pause between checks and the message at the deadline. It must never know brokers
or clients. Invariant: a wait ends as soon as its condition is true, and a failed one reports the
condition and the last value. Kafka's own tests have `TestUtils.waitForCondition`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Against what never comes, everywhere: JVMs and brokers on two busy cores may take long, and a
# healthy run comes nowhere near it.
PATIENCE_S = 120.0
# Spark alone takes minutes to start while twenty other processes use the same two cores.
SPARK_PATIENCE_S = 1200.0
PAUSE_S = 0.02


class TimedOut(AssertionError):
    """A condition did not come true by its deadline."""


def wait_until(
    condition: Callable[[], T], what: str, *, within_s: float = PATIENCE_S, pause_s: float = PAUSE_S
) -> T:
    """Call `condition` until it returns something true, and return that.

    Raises `TimedOut`, which names `what` and the last value seen, after `within_s` seconds.
    """
    deadline = time.monotonic() + within_s
    while True:
        seen = condition()
        if seen:
            return seen
        if time.monotonic() >= deadline:
            raise TimedOut(f"waited {within_s:g} s for {what}; last saw {seen!r}")
        time.sleep(pause_s)
