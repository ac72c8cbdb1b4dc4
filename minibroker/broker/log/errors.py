"""How a partition log rejects a request, and the failures of its file system.

Owns the exception: Kafka's error code, the message and the records that caused it; and the set of
errors after which the storage counts as unwritable. It must never know logs or clients. Invariant:
the exception survives pickling, because it crosses processes; a failure names the path, the error
and the free bytes. Echoes the ``ApiException`` family and ``RecordValidationException``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from minibroker_protocol.errors import ErrorCode


class RecordError(NamedTuple):
    """A record that caused a rejection: its position in the batch, from 0, and the reason."""

    position: int
    text: str


class LogError(Exception):
    """A rejected append or read: Kafka's error code, and what failed, where and how to fix it.

    ``records`` are the records that caused it, ascending; empty if no single record did.
    """

    def __init__(self, code: ErrorCode, text: str, records: tuple[RecordError, ...] = ()) -> None:
        super().__init__(code, text, records)
        self.code = code
        self.text = text
        self.records = records

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}"


class NotOneBatchError(LogError):
    """Records that are not one batch of the accepted format; the log does not see them."""


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
    return disk_bytes(path)[0]


def disk_bytes(path: str) -> tuple[int, int]:
    """Free bytes, as `free_bytes`, and the size of the file system; -1 if unknown."""
    try:
        status = os.statvfs(path if os.path.isdir(path) else os.path.dirname(path))
    except OSError:
        return -1, -1
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


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
