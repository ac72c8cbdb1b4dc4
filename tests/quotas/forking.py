"""Processes that record beside the test's own.

Owns how they begin and end; knows nothing of what they do.  Invariant: whatever they do, none of
them goes on with the test it came from.
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
