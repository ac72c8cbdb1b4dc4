"""Reads the activity topic from a broker's data directory.

Owns the list of what there is to read (complete batches, in pieces of a bounded size) and the
reading; it must never know the records' contents, or how pieces are distributed. Invariant: a piece
starts and ends at a batch boundary, so pieces can be read anywhere and in any order; a batch that
is still being written is left for the next run. A damaged batch is reported as one fault.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from itertools import pairwise, zip_longest
from typing import Any, Final, NamedTuple

from minibroker.broker.log.checkpoint import read_topic_id
from minibroker.broker.log.paths import LOG, offset_file, offsets_of, parse_directory
from minibroker.broker.settings.definitions import ACTIVITY_ENABLE
from minibroker.lab.activity.schema import TOPIC
from minibroker.pipeline.errors import BadInput
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
    BatchHeader,
    iter_batches,
    iter_records,
    parse_batch_header,
    verify_crc,
)
from minibroker_protocol.types import Uuid

PIECE_BYTES: Final = 16 << 20
"""Read into memory at once; a larger batch is a piece of its own."""
RAW_MAX: Final = 1024
"""Bytes kept of a damaged batch."""


class SegmentBatch(NamedTuple):
    """The records of a batch."""

    values: list[bytes | None]
    offsets: list[int]


class Damaged(NamedTuple):
    """A batch that can't be read."""

    offset: int
    data: bytes
    """At most ``RAW_MAX`` bytes of it."""
    reason: str


class SegmentPiece(NamedTuple):
    """Consecutive batches of one file."""

    path: str
    topic: str
    partition: int
    start: int
    end: int
    """Positions in the file."""
    next_offset: int
    """Where to continue after it."""

    @property
    def size(self) -> int:
        return self.end - self.start


def partitions(data_dir: str, topic: str = TOPIC) -> dict[int, str]:
    """The topic's partitions and their folders. Raises BadInput if there are none."""
    try:
        names = sorted(os.listdir(data_dir))
    except OSError as error:
        raise BadInput(f"{data_dir} cannot be read: {error.strerror}") from error
    parsed = {name: parse_directory(name) for name in names}
    found = {at[1]: os.path.join(data_dir, name) for name, at in parsed.items()
             if at is not None and at[0] == topic}  # fmt: skip
    if not found:
        raise BadInput(
            f"{data_dir} has no topic {topic}: check that it is a broker's data directory and that"
            f" the broker has {ACTIVITY_ENABLE.name}=true"
        )
    return found


def topic_id_of(data_dir: str, topic: str = TOPIC) -> Uuid | None:
    """The id of the topic in the data directory; None if it is unknown."""
    return next(map(read_topic_id, partitions(data_dir, topic).values()))


def pieces(
    data_dir: str,
    progress: Mapping[str, int],
    *,
    topic: str = TOPIC,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[SegmentPiece]:
    """Pieces to read, starting at the offsets in ``progress``.

    Partitions alternate, because they grow in parallel: pieces read together are of the same hours.
    """
    each = [
        _of_partition(number, folder, progress.get(str(number), 0), topic, piece_bytes)
        for number, folder in partitions(data_dir, topic).items()
    ]
    for turn in zip_longest(*each):
        yield from (piece for piece in turn if piece is not None)


def _of_partition(
    partition: int, folder: str, offset: int, topic: str, piece_bytes: int
) -> Iterator[SegmentPiece]:
    bases = offsets_of(folder, LOG)
    if bases and offset > bases[-1] and offset > _log_end(folder, bases):
        offset = 0  # The log was replaced; duplicates are recognized by their keys.
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
) -> Iterator[SegmentPiece]:
    with _mapped(path) as data:
        start, end, next_offset = -1, 0, offset
        for position, header in _whole(data, 0):
            if header.last_offset < offset:
                continue
            if start < 0:
                start = position
            elif position + header.size - start > piece_bytes:
                yield SegmentPiece(path, *place, start, end, next_offset)
                start = position
            end, next_offset = position + header.size, header.next_offset
        if following is not None and end < len(data):
            # A sealed segment contains only batches: the reader reports what the rest is.
            start, end, next_offset = max(start, 0), len(data), following
        if start >= 0:
            yield SegmentPiece(path, *place, start, end, next_offset)


def _whole(data: Any, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch, up to the first incomplete or invalid one."""
    view = memoryview(data)
    try:
        for at, header in iter_batches(view[position:]):
            yield position + at, header
    except DecodeError:
        return
    finally:
        view.release()


class _mapped:  # noqa: N801 - a context manager, used as `open` is
    """A memory-mapped file."""

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


def read(piece: SegmentPiece) -> Iterator[SegmentBatch | Damaged]:
    """Read the batches of a piece."""
    data = _content(piece)
    position, offset = 0, -1
    while position < len(data):
        try:
            header = parse_batch_header(data, position)
            if header.size > len(data) - position:
                raise DecodeError(f"a batch of {header.size} bytes is truncated", position)
        except DecodeError as error:
            yield _damaged(piece, position, offset, data[position:], str(error))
            return
        batch = data[position : position + header.size]
        try:
            if not header.is_control:
                yield _batch(batch)
        except DecodeError as error:
            yield _damaged(piece, position, header.base_offset, batch, str(error))
        position += header.size
        offset = header.next_offset


def _content(piece: SegmentPiece) -> memoryview:
    try:
        with open(piece.path, "rb") as file:
            file.seek(piece.start)
            return memoryview(file.read(piece.size))
    except FileNotFoundError as error:
        why = (
            "was removed by retention while it was read: run this again"
            if os.path.isdir(os.path.dirname(piece.path))
            else "does not exist on this worker: all workers must reach it under the same path"
        )
        raise BadInput(f"{piece.path} {why}") from error


def _batch(batch: memoryview) -> SegmentBatch:
    if not verify_crc(batch):
        raise DecodeError("its CRC is wrong", 0)
    records = list(iter_records(batch))
    return SegmentBatch([record.value for record in records], [record.offset for record in records])


def _damaged(
    piece: SegmentPiece, position: int, offset: int, data: memoryview, reason: str
) -> Damaged:
    where = f"batch at byte {piece.start + position} of {piece.path}: {reason}"
    return Damaged(offset, bytes(data[:RAW_MAX]), where)
