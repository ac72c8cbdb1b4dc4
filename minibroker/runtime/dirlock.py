"""Locks a data directory for one broker, with a file that the kernel unlocks.

It must never know the content of the directory. Invariant: while any process of a broker lives, no
other broker gets the lock, and the lock file of a dead broker is no obstacle. Kafka's `FileLock` on
`.lock` in each log directory.

The lock belongs to the open file, which forked children share: a broker whose supervisor was killed
holds it until its last process has ended.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

LOCK_FILE: Final = ".lock"
HOLDER_BYTES_MAX: Final = 1000


class DirLockedError(Exception):
    """Another broker holds the directory; the text names it and says how to continue."""


class DirLock:
    """A lock on directory `path`, acquired at once: `with DirLock(path, "minibroker …"):`.

    `holder` is shown to other brokers, after the process id. Raises `DirLockedError`, or `OSError`
    if the directory cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], holder: str) -> None:
        self._path = Path(path) / LOCK_FILE
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._path, flags, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = os.pread(self._fd, HOLDER_BYTES_MAX, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise DirLockedError(
                f"{path} is in use by {found or 'another process'}: stop it or give another "
                f"directory"
            ) from None
        self.describe(holder)

    def describe(self, holder: str) -> None:
        """Change the text for other brokers, for instance when the address is known."""
        text = f"pid {os.getpid()}, {holder}".encode()[: HOLDER_BYTES_MAX - 1]
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text + b"\n", 0)

    def release(self) -> None:
        """Release the lock. The file stays: removing it would race with a process that opens it."""
        os.ftruncate(self._fd, 0)
        # Explicitly, not only by closing: children may still have the file open.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)

    def __enter__(self) -> DirLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
