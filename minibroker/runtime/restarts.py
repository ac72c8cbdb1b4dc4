"""Decides when a dead process is restarted, and when it died too often.

It must never know processes or clocks: it is given the time of each death, and returns the delay of
the restart. Invariant: within any window a process is restarted a limited number of times, so a
crash loop ends with an error; a spare process is restarted without limit, but with growing delays.
Kafka leaves restarts to its operator; the limit is that of Erlang's supervisors.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from typing import Final

RESTARTS_MAX: Final = 10
RESTART_WINDOW_S: Final = 10.0
BACKOFF_S: Final = 0.05
BACKOFF_MAX_S: Final = 0.5

# A process that dies immediately must reach the maximum within the window, or it would never stop.
assert RESTARTS_MAX * BACKOFF_MAX_S < RESTART_WINDOW_S


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """At most `restarts_max` restarts within `window_s` seconds.

    The first is immediate; then `backoff_s`, doubled each time, up to `backoff_max_s`.
    """

    restarts_max: int = RESTARTS_MAX
    window_s: float = RESTART_WINDOW_S
    backoff_s: float = BACKOFF_S
    backoff_max_s: float = BACKOFF_MAX_S


OPTIONAL: Final = RestartPolicy(
    restarts_max=sys.maxsize, window_s=120.0, backoff_s=0.01, backoff_max_s=30.0
)
"""For processes that the broker can run without."""


class Restarts:
    """Restarts of one process."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._deaths: deque[float] = deque()

    def died(self, now: float) -> float | None:
        """Seconds to wait before the restart, or None if there were too many."""
        policy = self._policy
        while self._deaths and self._deaths[0] <= now - policy.window_s:
            self._deaths.popleft()
        earlier = len(self._deaths)
        if earlier >= policy.restarts_max:
            return None
        self._deaths.append(now)
        if earlier == 0:
            return 0.0
        return min(policy.backoff_s * 2.0 ** (earlier - 1), policy.backoff_max_s)
