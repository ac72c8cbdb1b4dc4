"""Cache of open files: the most recently used active segments of a worker.

Owns the descriptors and their number, which may be far below the number of logs. It must never know
what is in the files. Invariant: at most ``limit`` descriptors are open, each path has at most one,
and a closed file is opened again by its path when it is used next. Kafka keeps all files open;
PostgreSQL has the same cache as its virtual file descriptors.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from minibroker.runtime.descriptors import OUT_OF_DESCRIPTORS

OPEN_MAX: Final = 128
"""Descriptors of a log that is opened outside of a worker."""

WriteFault = Callable[[int, str, tuple[bytes, memoryview], int], None]
"""Called with the descriptor, the log's directory, head and body of the batch, and the position;
may raise ``OSError``.
"""

_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC
_MODE: Final = 0o644


def sync_files(paths: Iterable[str]) -> None:
    """Write files to the disk (fsync), except those that are gone. Raises OSError."""
    for path in paths:
        with suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


class SegmentFiles:
    """Descriptors by path, the least recently used first. For one thread."""

    def __init__(self, limit: int = OPEN_MAX) -> None:
        if limit < 1:
            raise ValueError(f"at least one file must be open, not {limit}")
        self.limit = limit
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        self.write_fault: WriteFault | None = None
        """Called before each batch is written, for a test that lets writes fail."""

    def __len__(self) -> int:
        return len(self._descriptors)

    def create(self, path: str) -> int:
        """The descriptor of a file that is created if it does not exist. Raises OSError."""
        fd = self._descriptors.get(path)
        return self._open(path, _FLAGS | os.O_CREAT) if fd is None else fd

    def descriptor(self, path: str) -> int:
        """The descriptor of an existing file, valid until the next call. Raises OSError."""
        fd = self._descriptors.get(path)
        if fd is None:
            return self._open(path, _FLAGS)
        self._descriptors.move_to_end(path)
        return fd

    def _open(self, path: str, flags: int) -> int:
        self._shrink(self.limit - 1)
        try:
            fd = os.open(path, flags, _MODE)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self._descriptors:
                raise
            # Other files of this process use more descriptors than expected.
            self._shrink(len(self._descriptors) // 2)
            fd = os.open(path, flags, _MODE)
        self._descriptors[path] = fd
        return fd

    def _shrink(self, count: int) -> None:
        while len(self._descriptors) > count:
            _, descriptor = self._descriptors.popitem(last=False)
            os.close(descriptor)

    def close(self, path: str) -> None:
        """Close a file if it is open. Call it before the file is renamed or removed."""
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_directory(self, directory: str) -> None:
        """Close all files of one directory, for example of a log that could not be opened."""
        for path in [path for path in self._descriptors if os.path.dirname(path) == directory]:
            self.close(path)
