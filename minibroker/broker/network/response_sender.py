"""Writes responses: bytes, and pieces of segment files.

Owns how chunks are written to a stream efficiently. It must never know what a response means. Small
chunks are written together; large pieces of files are sent by the kernel (``sendfile``) and never
copied to this process. Invariant: every file is opened before the first byte is sent, so a deleted
segment is noticed while nothing has been sent; a piece is never sent from another file of the same
name. Kafka's ``MultiRecordsSend`` and ``FileRecords.writeTo``.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from minibroker.broker.log.log import FileSlice
from minibroker.broker.log.paths import ANY_INODE, open_segment
from minibroker.runtime.stream import ByteStream
from minibroker.runtime.system import OUT_OF_DESCRIPTORS

COPIED_BYTES_MAX: Final = 64 * 1024
"""Responses up to this size are assembled in memory and written at once."""

COPIED_PIECE_MAX: Final = 8 * 1024
"""Pieces of files up to this size are copied in larger responses too: a fetch of thousands of
partitions has thousands of small pieces.
"""

_LENGTH: Final = struct.Struct(">i")

Chunk = bytes | bytearray | memoryview | FileSlice


class RecordsGone(Exception):
    """Records were deleted after an owner returned them, before they were sent; clients retry."""


class RecordsUnreadable(Exception):
    """A segment file cannot be opened or read: no descriptor is free, or the disk is damaged."""


async def send_response(
    stream: ByteStream, files: OpenFiles, header: bytes, chunks: Sequence[Chunk]
) -> int:
    """Send length, header and chunks; return the number of bytes.

    Raises ``StreamClosed``, ``RecordsGone`` if a file is not as its owner reported, or
    ``RecordsUnreadable``.
    """
    size = len(header) + sum(map(len, chunks))
    start = _LENGTH.pack(size) + header
    if size <= COPIED_BYTES_MAX or not any(isinstance(chunk, FileSlice) for chunk in chunks):
        await stream.send_all(_joined(start, chunks, files))
    else:
        await _send_pieces(stream, start, chunks, files)
    return size + _LENGTH.size


def join_response(files: OpenFiles, header: bytes, chunks: Sequence[Chunk]) -> bytes:
    """Return length, header and chunks as bytes; raises as ``send_response``."""
    size = len(header) + sum(map(len, chunks))
    return _joined(_LENGTH.pack(size) + header, chunks, files)


def _open(files: OpenFiles, piece: FileSlice) -> OpenFile:
    try:
        return files.get(piece.path, piece.inode)
    except FileNotFoundError as error:
        raise RecordsGone(f"{piece.path} can't be read: {error.strerror}") from None
    except OSError as error:
        raise _unreadable(piece, error) from None


def _unreadable(piece: FileSlice, error: OSError) -> RecordsUnreadable:
    return RecordsUnreadable(f"{piece.path} can't be read: {error.strerror}")


def _read(file: OpenFile, piece: FileSlice, start: int, length: int) -> bytes:
    try:
        data = os.pread(file.descriptor, length, piece.position + start)
    except OSError as error:
        raise _unreadable(piece, error) from None
    if len(data) < length:
        raise RecordsGone(f"{piece.path} is shorter than its index says")
    return data


def _joined(start: bytes, chunks: Sequence[Chunk], files: OpenFiles) -> bytes:
    parts: list[bytes | bytearray | memoryview] = [start]
    for chunk in chunks:
        if isinstance(chunk, FileSlice):
            parts.append(_read(_open(files, chunk), chunk, 0, chunk.length))
        else:
            parts.append(chunk)
    return b"".join(parts)


class _Piece:
    """A piece of a file that exists: the file stays open, or is opened again to send."""

    __slots__ = ("_file", "_files", "_generation", "slice")

    def __init__(self, files: OpenFiles, piece: FileSlice) -> None:
        self.slice = piece
        self._files = files
        self._generation = files.generation
        may_stay_open = files.may_stay_open
        file = _open(files, piece)
        self._file = file if may_stay_open else None

    def open(self) -> OpenFile:
        if self._file is not None:
            return self._file
        if self._files.generation != self._generation:
            raise RecordsGone(f"{self.slice.path} may have been replaced while it was sent")
        return _open(self._files, self.slice)

    async def send(self, stream: ByteStream) -> None:
        piece, file = self.slice, self._file
        if file is not None:
            try:
                await stream.send_file(file.descriptor, piece.position, piece.length)
            except EOFError as error:
                raise RecordsGone(f"{piece.path}: {error}") from None
            except OSError as error:
                raise _unreadable(piece, error) from None
            self._file = None
            return
        # A slow reader would keep the file open, so no file is open during a wait.
        for start in range(0, piece.length, COPIED_BYTES_MAX):
            length = min(COPIED_BYTES_MAX, piece.length - start)
            await stream.send_all(_read(self.open(), piece, start, length))


async def _send_pieces(
    stream: ByteStream, start: bytes, chunks: Sequence[Chunk], files: OpenFiles
) -> None:
    found: list[bytes | bytearray | memoryview | _Piece] = [
        _Piece(files, chunk) if isinstance(chunk, FileSlice) else chunk for chunk in chunks
    ]
    found.reverse()
    for part, is_last in _parts(start, found):
        if isinstance(part, _Piece):
            await part.send(stream)
        elif part:
            await stream.send_all(part, more=not is_last)


def _parts(
    start: bytes, found: list[bytes | bytearray | memoryview | _Piece]
) -> Iterator[tuple[bytes | _Piece, bool]]:
    """Yield large pieces unchanged and everything else joined; with whether it is the last one.

    Removes the chunks from the end of ``found``, so that a file is closed as soon as it was sent.
    """
    together, size = [start], len(start)
    while found:
        chunk = found.pop()
        if isinstance(chunk, _Piece) and chunk.slice.length > COPIED_PIECE_MAX:
            yield b"".join(together), False
            yield chunk, not found
            together, size = [], 0
            continue
        if isinstance(chunk, _Piece):
            chunk = _read(chunk.open(), chunk.slice, 0, chunk.slice.length)
        together.append(bytes(chunk))
        size += len(chunk)
        if size >= COPIED_BYTES_MAX:
            yield b"".join(together), not found
            together, size = [], 0
    yield b"".join(together), True


# --------------------------------------------------------------------------------------------------
# Segment files that a processor has open: the most recently used, and those being sent.
#
# Owns their descriptors and their maximal number. It must never know responses or connections.
# Invariant: a file stays open while something refers to it; while ``generation`` is the same, a
# path refers to the same file; one file can always be opened, however many connections there are,
# unless all open files are being sent. Kafka keeps the files of all logs open instead.

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
