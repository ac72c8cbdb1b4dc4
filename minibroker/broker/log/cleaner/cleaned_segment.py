"""The cleaned copy of a group of segments, in files that end in ``.cleaned``.

Owns the files of one copy while they are written. It must never know which records are kept.
Invariant: when ``finish`` returns, all files are on the disk. Echoes Kafka's
``UnifiedLog.createNewCleanedSegment``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

from minibroker.broker.log.cleaner.swap import CLEANED
from minibroker.broker.log.cleaner.task import CleanedGroup
from minibroker.broker.log.paths import (
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_file,
)
from minibroker.broker.log.segment import OffsetIndex, TimeIndex
from minibroker.broker.log.transaction_index import AbortedTransaction, TransactionIndex
from minibroker_protocol.records import NO_TIMESTAMP, BatchHeader, Buffer


class CleanedSegment:
    """A cleaned copy that is being written. Methods raise OSError."""

    def __init__(
        self, directory: str, base_offset: int, *, index_interval_bytes: int, buffer_bytes: int
    ) -> None:
        self._directory = directory
        self._base_offset = base_offset
        self._interval_bytes = index_interval_bytes
        self._offsets = OffsetIndex(base_offset)
        self._times = TimeIndex(base_offset)
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, base_offset
        self._indexed_position = 0
        self._size = 0
        self._next_offset = base_offset
        self._file = self._create(LOG, buffer_bytes)

    def _create(self, suffix: str, buffer_bytes: int) -> BinaryIO:
        path = offset_file(self._directory, self._base_offset, suffix + CLEANED)
        with suppress(FileNotFoundError):
            os.unlink(path)  # A process that was killed may still have it open.
        return open(path, "xb", buffering=buffer_bytes)

    def write(self, header: BatchHeader, data: Buffer, max_timestamp: int) -> None:
        """Append a batch, whose offsets are those of ``header``."""
        position, last_offset = self._size, header.last_offset
        if max_timestamp > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = max_timestamp, last_offset
        if position - self._indexed_position > self._interval_bytes:
            self._offsets.append(last_offset, position)
            self._times.append(self._max_timestamp, self._max_timestamp_offset)
            self._indexed_position = position
        self._file.write(data)
        self._size += len(data)
        self._next_offset = last_offset + 1

    def finish(
        self,
        aborted: Sequence[AbortedTransaction],
        *,
        has_index: bool,
        modified_ms: int,
    ) -> CleanedGroup:
        """Write the indexes, and everything to the disk (fsync).

        With ``has_index`` a transaction index is written even if it is empty, to replace one.
        """
        self._times.append(self._max_timestamp, self._max_timestamp_offset)
        contents = {OFFSET_INDEX: self._offsets.encode(), TIME_INDEX: self._times.encode()}
        if aborted or has_index:
            index = TransactionIndex()
            for transaction in aborted:
                index.append(transaction)
            contents[TRANSACTION_INDEX] = index.encode()
        for suffix, content in contents.items():
            with self._create(suffix, -1 if content else 0) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        self._file.flush()
        os.utime(self._file.fileno(), ns=(modified_ms * 1_000_000,) * 2)
        os.fsync(self._file.fileno())
        inode = os.fstat(self._file.fileno()).st_ino
        self._file.close()
        return CleanedGroup(
            self._base_offset,
            self._size,
            self._next_offset,
            self._max_timestamp,
            modified_ms,
            inode,
            len(aborted),
        )

    def close(self) -> None:
        """Close the file without finishing it."""
        with suppress(OSError):
            self._file.close()
