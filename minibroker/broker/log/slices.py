"""A reference to a range of a log file, which is not copied.

Owns path, inode, position and length. It must never know the content. Invariant: it is immutable
and cheap to pickle, ``len()`` is the length in bytes, so that an encoder can use it in place of the
bytes, and it never refers to the cleaned copy of its file. Echoes a slice of Kafka's
``FileRecords``.
"""

from __future__ import annotations

import os
from typing import Final

ANY_INODE: Final = 0
"""The inode of a slice that is read from any file with its path."""

REPLACED: Final = ".deleted"
"""Kafka's suffix of a segment file that was replaced and is removed later."""


def replaced_path(path: str, inode: int) -> str:
    """The name of a segment file after a cleaned copy has taken its name."""
    return f"{path}.{inode}{REPLACED}"


def open_segment(path: str, inode: int) -> int:
    """Open the file with this inode, also if a cleaned copy has taken its name since.

    Raises FileNotFoundError if it was removed, and OSError.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    fd = os.open(path, flags)
    if inode in (ANY_INODE, os.fstat(fd).st_ino):
        return fd
    os.close(fd)
    return os.open(replaced_path(path, inode), flags)


class FileSlice:
    """``length`` bytes of the file ``path`` from ``position``, both in bytes."""

    __slots__ = ("inode", "length", "path", "position")

    path: str
    position: int
    length: int
    inode: int

    def __init__(self, path: str, position: int, length: int, inode: int = ANY_INODE) -> None:
        self.path = path
        self.position = position
        self.length = length
        self.inode = inode

    def __len__(self) -> int:
        return self.length

    def load(self) -> bytes:
        """Read the bytes; shorter than ``length`` only if the file has shrunk. Raises OSError."""
        fd = open_segment(self.path, self.inode)
        try:
            return os.pread(fd, self.length, self.position)
        finally:
            os.close(fd)

    def __reduce__(self) -> tuple[type[FileSlice], tuple[str, int, int, int]]:
        return FileSlice, (self.path, self.position, self.length, self.inode)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileSlice) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash((self.path, self.position, self.length, self.inode))

    def __repr__(self) -> str:
        return f"FileSlice({self.path!r}, {self.position}, {self.length})"
