"""Writing responses: bytes, and pieces of segment files in between.

Owns how chunks get onto a stream cheaply and the few open files that takes, never what a response
means. Small responses go out in one write; large pieces of files are handed to the kernel
(``sendfile``) and never enter this process. Invariant: every file is open before the first byte
leaves, so a segment that is gone is noticed while nothing has been promised to the client.
Kafka's ``MultiRecordsSend`` and ``FileRecords.writeTo``.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from minibroker.runtime.stream import ByteStream
from minibroker.storage.slices import FileSlice

OPEN_FILES_MAX: Final = 128
"""Segment files that a processor keeps open."""

COPIED_BYTES_MAX: Final = 64 * 1024
"""Responses up to this size are put together in memory and written at once."""

_LENGTH: Final = struct.Struct(">i")

Chunk = bytes | bytearray | memoryview | FileSlice


class RecordsGone(Exception):
    """Records that an owner found were deleted before they could be sent; a client asks again."""


class _OpenFile:
    """A descriptor that closes when nobody uses it any more, be it the cache or a send."""

    __slots__ = ("descriptor",)

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        with suppress(AttributeError):  # It never was open.
            os.close(self.descriptor)


class OpenFiles:
    """The segment files used last."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()

    def get(self, path: str) -> _OpenFile:
        """The open file. Raises ``OSError`` if there is none."""
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = _OpenFile(path)
            if len(self._files) > OPEN_FILES_MAX:
                self._files.popitem(last=False)
        else:
            self._files.move_to_end(path)
        return file

    def forget(self) -> None:
        """Lets go of all: a path may soon name another file."""
        self._files.clear()

    def __len__(self) -> int:
        return len(self._files)


async def send_response(
    stream: ByteStream, files: OpenFiles, header: bytes, chunks: Sequence[Chunk]
) -> int:
    """Sends length, header and chunks; returns the number of bytes.

    Raises ``StreamClosed``, or ``RecordsGone`` if a file is not as its owner said.
    """
    size = len(header) + sum(map(len, chunks))
    opened = [_open(files, chunk) for chunk in chunks if isinstance(chunk, FileSlice)]
    start = _LENGTH.pack(size) + header
    if size <= COPIED_BYTES_MAX or not opened:
        await stream.send_all(_together(start, chunks, opened))
    else:
        await _send_pieces(stream, start, chunks, opened)
    return size + _LENGTH.size


def _open(files: OpenFiles, piece: FileSlice) -> _OpenFile:
    try:
        return files.get(piece.path)
    except OSError as error:
        raise RecordsGone(f"{piece.path} can't be read: {error.strerror}") from None


def _together(start: bytes, chunks: Sequence[Chunk], opened: list[_OpenFile]) -> bytes:
    files = iter(opened)
    parts: list[bytes | bytearray | memoryview] = [start]
    for chunk in chunks:
        if isinstance(chunk, FileSlice):
            data = os.pread(next(files).descriptor, chunk.length, chunk.position)
            if len(data) < chunk.length:
                raise RecordsGone(f"{chunk.path} is shorter than its index says")
            parts.append(data)
        else:
            parts.append(chunk)
    return b"".join(parts)


async def _send_pieces(
    stream: ByteStream, start: bytes, chunks: Sequence[Chunk], opened: list[_OpenFile]
) -> None:
    files = iter(opened)
    await stream.send_all(start, more=True)
    for number, chunk in enumerate(chunks, 1):
        if isinstance(chunk, FileSlice):
            await stream.send_file(next(files).descriptor, chunk.position, chunk.length)
        elif chunk:
            await stream.send_all(bytes(chunk), more=number < len(chunks))
