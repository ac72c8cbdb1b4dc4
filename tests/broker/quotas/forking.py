"""Processes that record at the same time as the test.

Owns how they start and end. It must never know what they do. Invariant: no forked process continues
with the test.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def forked(work: Callable[[], object]) -> int:
    """The id of a process that does some work and ends."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid
