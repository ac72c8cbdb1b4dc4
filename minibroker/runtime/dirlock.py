"""One broker a data directory: a lock file that the kernel unlocks when its holders are gone.

It must never know what lies in the directory.
Its invariant: while any process of the holding broker lives, nobody else gets the lock, and a
file left behind by a dead one is no obstacle.
It echoes Kafka's `FileLock` on `.lock` in each log directory.

The lock belongs to the open file, which forked children share: a broker whose supervisor was
killed still holds it until its last process has noticed and ended.
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
    """Somebody else holds the directory; the text names them and says how to go on."""


class DirLock:
    """A lock on directory `path`, taken at once: `with DirLock(path, "minibroker …"):`.

    `holder` is what others are told, after the process id. Raises `DirLockedError`, or `OSError`
    if the directory can't be written.
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
        """Changes what others are told, for instance when it is known where the broker listens."""
        text = f"pid {os.getpid()}, {holder}".encode()[: HOLDER_BYTES_MAX - 1]
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text + b"\n", 0)

    def release(self) -> None:
        """Lets others in. The file stays: removing it would race with who opens it just now."""
        os.ftruncate(self._fd, 0)
        # Explicitly, not just by closing: children may still have the file open.
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
