"""The activity topic as it lies in a broker's data directory.

Owns what there is to read (whole batches, in pieces of a bounded size) and the reading; it must
never know what the records say, or who reads pieces side by side. Invariant: a piece begins and
ends with a batch, so pieces can be read anywhere and in any order; of a log that grows, the batch
that is being written is left for the next time. A batch that is damaged is told as one. Records
stay where they were decompressed, in memory that the next batch is read into.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise, zip_longest
from typing import Any, Final, NamedTuple

import numpy as np
from zstandard import ZstdDecompressor, ZstdError, frame_content_size

from minibroker.activity.schema import TOPIC
from minibroker.pipeline.columns import Raw
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.walking import walk_records
from minibroker.pipeline.words import SLACK
from minibroker.storage.checkpoint import read_topic_id
from minibroker.storage.paths import LOG, offset_file, offsets_of, parse_directory
from protocol.compression import DECOMPRESSED_MAX_BYTES, Compression, decompress_into
from protocol.errors import DecodeError
from protocol.records import (
    HEADER_BYTES,
    BatchHeader,
    iter_batches,
    iter_records,
    parse_batch_header,
    verify_crc,
)
from protocol.types import Uuid

PIECE_BYTES: Final = 16 << 20
"""Read into memory at once; a batch that is larger is a piece of its own."""
FIRST_ROOM: Final = 1 << 20
"""For what a batch decompresses to; it grows as it must."""
RAW_MAX: Final = 1024
"""Bytes kept of a damaged batch."""


class Batch(NamedTuple):
    """A batch's records. The bytes are there until the next one is read."""

    raw: Raw
    offsets: Any


class Damaged(NamedTuple):
    """A batch that can't be read."""

    offset: int
    data: bytes
    """The first of its bytes."""
    reason: str


class Piece(NamedTuple):
    """Batches that lie together in one file."""

    path: str
    topic: str
    partition: int
    start: int
    end: int
    """Positions in the file."""
    next_offset: int
    """What is to be read after it."""

    @property
    def size(self) -> int:
        return self.end - self.start


def partitions(data_dir: str, topic: str = TOPIC) -> dict[int, str]:
    """The topic's partitions in a data directory, and their folders. Raises BadInput if none."""
    try:
        names = sorted(os.listdir(data_dir))
    except OSError as error:
        raise BadInput(f"{data_dir} can't be read: {error.strerror}") from error
    parsed = {name: parse_directory(name) for name in names}
    found = {at[1]: os.path.join(data_dir, name) for name, at in parsed.items()
             if at is not None and at[0] == topic}  # fmt: skip
    if not found:
        raise BadInput(
            f"{data_dir} has no topic {topic}: is it a broker's data directory, and was the"
            " recording of activity switched on?"
        )
    return found


def topic_id_of(data_dir: str, topic: str = TOPIC) -> Uuid | None:
    """Which of all topics that ever had the name lies there; None if nothing says so."""
    return next(map(read_topic_id, partitions(data_dir, topic).values()))


def pieces(
    data_dir: str,
    progress: Mapping[str, int],
    *,
    topic: str = TOPIC,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[Piece]:
    """What is to be read, from the offsets that ``progress`` names on.

    Partitions come in turns, as they grow beside one another, so that what is read together is of
    the same hours.
    """
    each = [
        _of_partition(number, folder, progress.get(str(number), 0), topic, piece_bytes)
        for number, folder in partitions(data_dir, topic).items()
    ]
    for turn in zip_longest(*each):
        yield from (piece for piece in turn if piece is not None)


def _of_partition(
    partition: int, folder: str, offset: int, topic: str, piece_bytes: int
) -> Iterator[Piece]:
    bases = offsets_of(folder, LOG)
    if bases and offset > bases[-1] and offset > _log_end(folder, bases):
        offset = 0  # It is another log than was read before; duplicates are told by their keys.
    for base, following in pairwise([*bases, None]):
        assert base is not None
        if following is None or following > offset:
            path = offset_file(folder, base, LOG)
            yield from _pieces(path, (topic, partition), offset, following, piece_bytes)


def _log_end(folder: str, bases: list[int]) -> int:
    with _mapped(offset_file(folder, bases[-1], LOG)) as data:
        end = bases[-1]
        for _, header in _whole(data, 0):
            end = header.next_offset
        return end


def _pieces(
    path: str, place: tuple[str, int], offset: int, following: int | None, piece_bytes: int
) -> Iterator[Piece]:
    with _mapped(path) as data:
        start, end, next_offset = -1, 0, offset
        for position, header in _whole(data, 0):
            if header.last_offset < offset:
                continue
            if start < 0:
                start = position
            elif position + header.size - start > piece_bytes:
                yield Piece(path, *place, start, end, next_offset)
                start = position
            end, next_offset = position + header.size, header.next_offset
        if following is not None and end < len(data):
            # A sealed file has nothing but batches: its reader tells what the rest is.
            start, end, next_offset = max(start, 0), len(data), following
        if start >= 0:
            yield Piece(path, *place, start, end, next_offset)


def _whole(data: Any, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of batches until one that is cut off or none."""
    view = memoryview(data)
    try:
        for at, header in iter_batches(view[position:]):
            yield position + at, header
    except DecodeError:
        return
    finally:
        view.release()


class _mapped:  # noqa: N801 - a context manager, used as `open` is
    """A file's bytes, not copied."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    def __enter__(self) -> mmap.mmap | bytes:
        with open(self._path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return b""
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map

    def __exit__(self, *_: object) -> None:
        if self._map is not None:
            self._map.close()


class Reader:
    """Reads pieces, one after the other, into the same memory."""

    def __init__(self) -> None:
        self._room = np.empty(FIRST_ROOM + SLACK, np.uint8)
        self._bytes = bytearray()
        self._zstd = ZstdDecompressor()

    def read(self, piece: Piece) -> Iterator[Batch | Damaged]:
        """The batches of a piece."""
        try:
            with open(piece.path, "rb") as file:
                file.seek(piece.start)
                if len(self._bytes) < piece.size:
                    self._bytes = bytearray(piece.size)
                data = memoryview(self._bytes)[: piece.size]
                data = data[: file.readinto(data)]
        except FileNotFoundError as error:
            why = (
                "was removed while it was read, as retention does: run this again"
                if os.path.isdir(os.path.dirname(piece.path))
                else "is not there where this worker runs: workers must find it under the same path"
            )
            raise BadInput(f"{piece.path} {why}") from error
        position, offset = 0, -1
        while position < len(data):
            try:
                header = parse_batch_header(data, position)
                if header.size > len(data) - position:
                    raise DecodeError(f"a batch of {header.size} bytes is cut off", position)
            except DecodeError as error:
                yield _damaged(piece, position, offset, data[position:], str(error))
                return
            batch = data[position : position + header.size]
            try:
                if not header.is_control:
                    yield self._batch(batch, header)
            except DecodeError as error:
                yield _damaged(piece, position, header.base_offset, batch, str(error))
            position += header.size
            offset = header.next_offset

    def _batch(self, batch: memoryview, header: BatchHeader) -> Batch:
        if not verify_crc(batch):
            raise DecodeError("its checksum is wrong", 0)
        try:
            codec = Compression(header.codec)
        except ValueError:
            raise DecodeError(f"unknown compression codec {header.codec}", 0) from None
        if not 0 <= header.record_count <= DECOMPRESSED_MAX_BYTES:
            raise DecodeError(f"it claims {header.record_count} records", 0)
        size = self._decompressed(codec, batch[HEADER_BYTES:])
        if header.record_count > size:
            raise DecodeError(f"it claims {header.record_count} records in {size} bytes", 0)
        found = np.empty((4, header.record_count), np.int64)
        if not walk_records(self._room[:size], found):
            for _ in iter_records(batch):  # Says what is wrong.
                pass
            raise DecodeError("its records are no records", 0)
        deltas, _, starts, sizes = found
        return Batch(Raw(self._room, starts, sizes), header.base_offset + deltas)

    def _decompressed(self, codec: Compression, data: memoryview) -> int:
        """How much is in the room then."""
        while True:
            most = len(self._room) - SLACK
            size = self._into(codec, data, self._room.data[:most])
            if size is not None:
                return size
            if most >= DECOMPRESSED_MAX_BYTES:
                raise DecodeError(f"it grows past the limit of {DECOMPRESSED_MAX_BYTES} bytes", 0)
            self._room = np.empty(min(2 * most, DECOMPRESSED_MAX_BYTES) + SLACK, np.uint8)

    def _into(self, codec: Compression, data: memoryview, room: memoryview) -> int | None:
        """As ``decompress_into``, which everything is left to but whole frames of Zstandard that
        say how large they are, as recorders write: a window in between takes a sixth longer.
        """
        if codec is Compression.ZSTD:
            with (
                suppress(ZstdError),
                self._zstd.stream_reader(data, read_across_frames=True) as whole,
            ):
                size = whole.readinto(room)
                if size == frame_content_size(data):
                    return size
        return decompress_into(codec, data, room)


def _damaged(piece: Piece, position: int, offset: int, data: memoryview, reason: str) -> Damaged:
    where = f"batch at byte {piece.start + position} of {piece.path}: {reason}"
    return Damaged(offset, bytes(data[:RAW_MAX]), where)
