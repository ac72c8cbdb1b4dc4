"""A reference to a range of a log file, which is not copied.

Owns path, position and length. It must never know the content. Invariant: it is immutable and cheap
to pickle, and ``len()`` is the length in bytes, so that an encoder can use it in place of the
bytes. Echoes a slice of Kafka's ``FileRecords``.
"""

from __future__ import annotations

import os


class FileSlice:
    """``length`` bytes of the file ``path`` from ``position``, both in bytes."""

    __slots__ = ("length", "path", "position")

    path: str
    position: int
    length: int

    def __init__(self, path: str, position: int, length: int) -> None:
        self.path = path
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length

    def load(self) -> bytes:
        """Read the bytes; shorter than ``length`` only if the file has shrunk. Raises OSError."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, self.length, self.position)
        finally:
            os.close(fd)

    def __reduce__(self) -> tuple[type[FileSlice], tuple[str, int, int]]:
        return FileSlice, (self.path, self.position, self.length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileSlice) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash((self.path, self.position, self.length))

    def __repr__(self) -> str:
        return f"FileSlice({self.path!r}, {self.position}, {self.length})"
