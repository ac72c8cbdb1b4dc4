"""The limit of open files of this process, and a descriptor that is kept for when it is reached.

Owns the numbers of descriptors, never the files and sockets behind them. Invariant: a reserve that
was spent is refilled before it is spent again. Kafka relies on a limit that is never reached.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Of this process, or of the whole system."""


def descriptors_max() -> int:
    """Files and sockets that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class Reserve:
    """One descriptor that can be freed for a moment, to accept and close a connection."""

    def __init__(self) -> None:
        self._descriptor = -1
        self.refill()

    def refill(self) -> None:
        """Take a descriptor again, if there is one."""
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._descriptor = -1

    @contextmanager
    def spent(self) -> Iterator[bool]:
        """Free the descriptor; yields whether there was one. It is taken again afterwards."""
        had, self._descriptor = self._descriptor, -1
        if had >= 0:
            os.close(had)
        try:
            yield had >= 0
        finally:
            self.refill()

    def close(self) -> None:
        """Free the descriptor for good."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
