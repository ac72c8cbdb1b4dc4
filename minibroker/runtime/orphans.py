"""Ends a process whose supervisor was killed.

Owns time limits in real time, because the broker's clock may stand still. It must never know how a
role ends. Invariant: a process without supervisor ends after ``ORPHAN_SECONDS_MAX`` at the latest.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from typing import Final

ORPHAN_SECONDS_MAX: Final = 3
"""How long a role may take to end once the supervisor is gone; then the system ends it."""


def is_orphan(lifeline: int) -> bool:
    """Whether the supervisor at the other end of the lifeline is gone."""
    readable, _, _ = select.select([lifeline], [], [], 0)
    return bool(readable)


def bound_last_seconds() -> None:
    """Lets the system end this process should it not end by itself."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(ORPHAN_SECONDS_MAX)


def wait_until_gone(pids: Iterable[int], seconds: float = ORPHAN_SECONDS_MAX) -> bool:
    """Waits for processes that need not be children; whether all have ended in time."""
    until = time.monotonic() + seconds
    return all(_wait_for(pid, until) for pid in pids)


def _wait_for(pid: int, until: float) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        remaining = max(until - time.monotonic(), 0)
        readable, _, _ = select.select([handle], [], [], remaining)
        return bool(readable)
    finally:
        os.close(handle)
