"""The activity topic as it lies in a broker's data directory, read by Spark in parallel.

Owns what there is to read (whole batches, in pieces of a bounded size) and the reading; it must
never know what the records say. Invariant: a piece begins and ends with a batch, so pieces can be
read anywhere and in any order; of a log that grows, the batch that is being written is left for the
next time. A batch that is damaged is one row that says so. Python's data sources are Spark 4's.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from minibroker.activity.schema import TOPIC
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.walking import gather, walk_records
from minibroker.storage.paths import LOG, offset_file, offsets_of, parse_directory
from protocol.compression import DECOMPRESSED_MAX_BYTES, Compression, decompress
from protocol.errors import DecodeError
from protocol.records import (
    HEADER_BYTES,
    BatchHeader,
    iter_batches,
    iter_records,
    parse_batch_header,
    verify_crc,
)

FORMAT: Final = "minibroker-segments"
SCHEMA: Final = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, value binary, damage string"
)
"""``damage`` is null but in a row that stands for a whole batch that can't be read."""
ARROW: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("value", pa.binary()),
        ("damage", pa.string()),
    ]
)
PIECE_BYTES: Final = 16 << 20
"""Read by one task at once; a batch that is larger is a piece of its own."""
RAW_MAX: Final = 1024
"""Bytes kept of a damaged batch."""


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


def pieces(
    data_dir: str,
    progress: Mapping[str, int],
    *,
    topic: str = TOPIC,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[Piece]:
    """What is to be read, partition by partition, from the offsets that ``progress`` names on."""
    for partition, folder in partitions(data_dir, topic).items():
        bases = offsets_of(folder, LOG)
        offset = progress.get(str(partition), 0)
        if bases and offset > _log_end(folder, bases):
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


def read_piece(piece: Piece) -> Iterator[pa.RecordBatch]:
    """The records of a piece, by ``ARROW``."""
    try:
        with open(piece.path, "rb") as file:
            file.seek(piece.start)
            data = memoryview(file.read(piece.end - piece.start))
    except FileNotFoundError as error:
        raise BadInput(
            f"{piece.path} was removed while it was read, as retention does: run this again"
        ) from error
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
                yield _read_batch(piece, batch, header)
        except DecodeError as error:
            yield _damaged(piece, position, header.base_offset, batch, str(error))
        position += header.size
        offset = header.next_offset


def _damaged(
    piece: Piece, position: int, offset: int, data: memoryview, reason: str
) -> pa.RecordBatch:
    where = f"batch at byte {piece.start + position} of {piece.path}: {reason}"
    row = (piece.topic, piece.partition, offset, None, bytes(data[:RAW_MAX]), where)
    return pa.RecordBatch.from_pylist([dict(zip(ARROW.names, row, strict=True))], ARROW)


def _read_batch(piece: Piece, batch: memoryview, header: BatchHeader) -> pa.RecordBatch:
    if not verify_crc(batch):
        raise DecodeError("its checksum is wrong", 0)
    try:
        codec = Compression(header.codec)
    except ValueError:
        raise DecodeError(f"unknown compression codec {header.codec}", 0) from None
    if not 0 <= header.record_count <= DECOMPRESSED_MAX_BYTES:
        raise DecodeError(f"it claims {header.record_count} records", 0)
    section = decompress(codec, batch[HEADER_BYTES:], DECOMPRESSED_MAX_BYTES)
    data = np.frombuffer(section, np.uint8)
    if header.record_count > len(data):
        raise DecodeError(f"it claims {header.record_count} records in {len(data)} bytes", 0)
    found = np.zeros((header.record_count, 4), np.int64)
    if not walk_records(data, found):
        for _ in iter_records(batch):  # Says what is wrong.
            pass
        raise DecodeError("its records are no records", 0)
    return _batch(piece, header, data, found)


def _batch(piece: Piece, header: BatchHeader, data: Any, found: Any) -> pa.RecordBatch:
    count = len(found)
    sizes = found[:, 3]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.maximum(sizes, 0), out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    gather(data, found[:, 2], sizes, offsets, out)
    validity = None
    if (sizes < 0).any():
        validity = pa.py_buffer(np.packbits(sizes >= 0, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(piece.topic, count),
            pa.repeat(pa.scalar(piece.partition, pa.int32()), count),
            pa.array(header.base_offset + found[:, 0]),
            pa.array(header.base_timestamp + found[:, 1]),
            pa.Array.from_buffers(pa.binary(), count, buffers),
            pa.nulls(count, pa.string()),
        ],
        schema=ARROW,
    )


class SegmentSource(DataSource):
    """``spark.read.format("minibroker-segments").load(DATA_DIR)``, once it is registered.

    Options: ``topic``; ``pieces``, what to read of it as JSON, everything if left out.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: object) -> SegmentReader:  # noqa: ARG002
        return SegmentReader(dict(self.options))


class SegmentReader(DataSourceReader):
    """One read of a data directory."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._path = options.get("path", "")
        self._topic = options.get("topic", TOPIC)
        self._pieces = options.get("pieces")

    def partitions(self) -> list[InputPartition]:
        if self._pieces is not None:
            found = [Piece(*piece) for piece in json.loads(self._pieces)]
        else:
            found = list(pieces(self._path, {}, topic=self._topic))
        # Without any partition Spark would ask for a read of nothing in particular.
        return [InputPartition(tuple(piece)) for piece in found] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is not None:
            yield from read_piece(Piece(*partition.value))
