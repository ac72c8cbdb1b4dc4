"""Failures of the file system that a log or its worker detects.

Owns the set of errors after which the storage counts as unwritable, and their description. It must
never know logs or clients. Invariant: a failure names the path, the error and the free bytes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

StorageFailed = Callable[[str, OSError], None]
"""Called with the path and the error when a file cannot be read or written."""

NO_SPACE_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors that deleting files can end."""

_UNWRITABLE: Final = NO_SPACE_ERRNOS | {errno.EROFS, errno.EIO}
_PROBE: Final = ".probe"
_PROBE_BYTES: Final = 64 * 1024

FREE_BYTES_MIN: Final = 1024 * 1024
"""The disk has space again when this much is free: a batch of ``max.message.bytes``."""


def ignore_failure(path: str, error: OSError) -> None:
    """Ignore the failure, for logs without monitoring."""
    del path, error


def is_unwritable(error: OSError) -> bool:
    """Whether the error concerns the storage, and not a single file."""
    return error.errno in _UNWRITABLE


def describe(path: str, error: OSError) -> str:
    """The path, the error and how many bytes are free."""
    return f"{path}: {error.strerror or error}; {free_bytes(path)} bytes are free"


def free_bytes(path: str) -> int:
    """Bytes that this user may still write to the file system of ``path``; -1 if unknown."""
    try:
        status = os.statvfs(path if os.path.isdir(path) else os.path.dirname(path))
    except OSError:
        return -1
    return status.f_bavail * status.f_frsize


def probe(directory: str) -> OSError | None:
    """Write and remove a small file; returns the error if that fails or little space is left."""
    if 0 <= free_bytes(directory) < FREE_BYTES_MIN:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    path = os.path.join(directory, f"{_PROBE}-{os.getpid()}")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            written = os.write(fd, bytes(_PROBE_BYTES))
        finally:
            os.close(fd)
            os.unlink(path)
    except OSError as error:
        return error
    return None if written == _PROBE_BYTES else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
