"""Segment files that a processor has open: the most recently used, and those being sent.

Owns their descriptors and their maximal number. It must never know responses or connections.
Invariant: a file stays open while something refers to it; while ``generation`` is the same, a path
refers to the same file; one file can always be opened, however many connections there are, unless
all open files are being sent. Kafka keeps the files of all logs open instead.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from typing import Final

from minibroker.broker.log.paths import ANY_INODE, open_segment
from minibroker.runtime.system import OUT_OF_DESCRIPTORS

CACHED_MAX: Final = 128
"""Segment files that stay open because they were used last."""

CACHED_SHARE: Final = 4
"""The cache may hold one in so many of the files that may be open."""

OPEN_SHARE: Final = 4
"""One in so many descriptors of a processor may be a segment file; the others are for connections.
"""

OPEN_MAX: Final = 1024
"""Maximal number of open segment files if there are enough descriptors."""


def open_files_max(descriptors_max: int) -> int:
    """Return how many segment files a process with so many descriptors may have open."""
    return min(OPEN_MAX, max(2, descriptors_max // OPEN_SHARE))


class _Count:
    """Number of open files.

    Separate from the cache, because a reference cycle would keep files open.
    """

    __slots__ = ("opened",)

    def __init__(self) -> None:
        self.opened = 0


class OpenFile:
    """A descriptor that is closed when neither the cache nor a response refers to it."""

    __slots__ = ("_count", "descriptor")

    def __init__(self, path: str, inode: int, count: _Count) -> None:
        self.descriptor = open_segment(path, inode)
        self._count = count
        count.opened += 1

    def __del__(self) -> None:
        with suppress(AttributeError):  # The file was never opened.
            self._count.opened -= 1
            os.close(self.descriptor)


def _reserved() -> OpenFile | None:
    """Return a reserved descriptor, or None if there is none left."""
    with suppress(OSError):
        return OpenFile(os.devnull, ANY_INODE, _Count())
    return None


class OpenFiles:
    """The segment files used last, and a reserve descriptor for the next one. For one thread."""

    def __init__(self, descriptors_max: int) -> None:
        """``descriptors_max`` is the number of descriptors of this process."""
        self.limit = open_files_max(descriptors_max)
        self._cached_max = min(CACHED_MAX, max(1, self.limit // CACHED_SHARE))
        self._files: OrderedDict[tuple[str, int], OpenFile] = OrderedDict()
        self._count = _Count()
        self._reserve = _reserved()
        self.generation = 0
        """Changes when a path may refer to another file."""

    @property
    def opened(self) -> int:
        """Number of open files, in the cache or not."""
        return self._count.opened

    @property
    def may_stay_open(self) -> bool:
        """Whether a file may stay open until it has been sent, however long that takes."""
        return self.opened < self.limit - self._cached_max

    def get(self, path: str, inode: int = ANY_INODE) -> OpenFile:
        """Return the open file: the one with this inode, if other files had the same path.

        Raises ``OSError`` if it does not exist or no descriptor is left.
        """
        file = self._files.get((path, inode))
        if file is None:
            file = self._files[path, inode] = self._open(path, inode)
            if len(self._files) > self._cached_max:
                self._files.popitem(last=False)
        else:
            self._files.move_to_end((path, inode))
        return file

    def _open(self, path: str, inode: int) -> OpenFile:
        """Open a file, if necessary with the descriptor of another file or the reserve."""
        for free_descriptor in (self._files.clear, self._use_reserve):
            try:
                return OpenFile(path, inode, self._count)
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS:
                    raise
            free_descriptor()
        return OpenFile(path, inode, self._count)

    def _use_reserve(self) -> None:
        self._reserve = None

    def forget(self) -> None:
        """Close files that are not being sent: their paths may soon refer to other files."""
        self.generation += 1
        self._files.clear()
        if self._reserve is None:  # Before a new connection takes the closed descriptor.
            self._reserve = _reserved()

    def forget_removed(self) -> None:
        """Close deleted files, which occupy disk space as long as they are open."""
        for key, file in list(self._files.items()):
            if os.fstat(file.descriptor).st_nlink == 0:
                del self._files[key]

    def __len__(self) -> int:
        return len(self._files)
