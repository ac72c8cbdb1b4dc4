"""Space that is kept free for deletions on a full disk.

Owns one file that only takes up space. It must never know the store. Invariant: it is
never larger than ``RESERVE_BYTES``, and it is missing only while the disk is full.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from minibroker.broker.log.errors import free_bytes
from minibroker.runtime.system import reserve_space

SUFFIX: Final = ".reserve"
RESERVE_BYTES: Final = 256 * 1024
"""Room for the write-ahead log of a few deletions; a node is smaller than a page as a rule."""


class Reserve:
    """The reserve next to a store's file; none for a store in memory."""

    def __init__(self, store: str | None) -> None:
        self._path = None if store is None else store + SUFFIX
        self._is_held = self._path is not None and _is_complete(self._path)

    def release(self) -> bool:
        """Give the space back; returns whether there was any."""
        if self._path is None or not self._is_held:
            return False
        self._is_held = False
        with suppress(OSError):
            os.truncate(self._path, 0)
            return True
        return False

    def restore(self) -> None:
        """Take the space again once there is twice as much."""
        if self._is_held or self._path is None or free_bytes(self._path) < 2 * RESERVE_BYTES:
            return
        with suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                reserve_space(fd, RESERVE_BYTES)
                self._is_held = True
            finally:
                os.close(fd)


def _is_complete(path: str) -> bool:
    try:
        return os.lstat(path).st_size == RESERVE_BYTES
    except OSError:
        return False
