"""The segments of a log, ordered by offset: the sealed ones and the active one.

Owns the search for the segment with an offset or a timestamp, and the part of a segment that a read
returns. It must never know producers, leader epochs or checkpoints. Invariant: the segments are
adjacent, and only the last one grows. Kafka's ``LogSegments`` and the reading half of ``LocalLog``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from minibroker.broker.log.batch_search import TimestampOffset
from minibroker.broker.log.segment import ActiveSegment, Segment
from minibroker.broker.log.slices import FileSlice
from minibroker.broker.log.transaction_index import AbortedTransaction
from minibroker_protocol.errors import DecodeError


class LogSegments:
    """The segments of one log. Methods that read files raise OSError and DecodeError."""

    def __init__(self, sealed: list[Segment], active: ActiveSegment) -> None:
        self.active = active
        self._sealed = sealed
        self._bases = [segment.base_offset for segment in sealed]

    def __len__(self) -> int:
        return len(self._sealed) + 1

    def __iter__(self) -> Iterator[Segment]:
        yield from self._sealed
        yield self.active

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._sealed) + self.active.size

    @property
    def base_offsets(self) -> tuple[int, ...]:
        return (*self._bases, self.active.base_offset)

    @property
    def sealed(self) -> tuple[Segment, ...]:
        return tuple(self._sealed)

    def roll_to(self, active: ActiveSegment) -> None:
        """Seal the active segment, whose indexes must be finished, and continue with a new one."""
        self._sealed.append(self.active.seal())
        self._bases.append(self.active.base_offset)
        self.active = active

    def remove_first(self, count: int) -> list[int]:
        """Remove the first sealed segments; return their base offsets."""
        removed = self._bases[:count]
        del self._sealed[:count], self._bases[:count]
        return removed

    def replace(self, replaced: Sequence[Segment], cleaned: Segment) -> None:
        """Put a cleaned segment in the place of adjacent sealed ones."""
        first = self._sealed.index(replaced[0])
        end = first + len(replaced)
        self._sealed[first:end] = [cleaned]
        self._bases[first:end] = [cleaned.base_offset]

    def sync_sealed(self, recovery_point: int) -> None:
        """Write the sealed segments from the recovery point on to the disk (fsync)."""
        for segment in self._sealed_from(recovery_point):
            segment.sync()

    def sealed_files(self, recovery_point: int) -> list[str]:
        """The records' files of the segments that ``sync_sealed`` writes to the disk."""
        return [segment.path for segment in self._sealed_from(recovery_point)]

    def _sealed_from(self, offset: int) -> list[Segment]:
        return self._sealed[bisect_right(self._bases, offset - 1) :]

    def next_base_offset(self, offset: int) -> int | None:
        """Base offset of the segment after the one with ``offset``, None after the last one."""
        bases = self.base_offsets
        following = bisect_right(bases, offset)
        return bases[following] if following < len(bases) else None

    def read(
        self, offset: int, max_bytes: int, end_offset: int | None, *, min_one: bool
    ) -> tuple[Segment, FileSlice]:
        """The slice that ``Log.read`` describes, and its segment."""
        segment, position, first_size = self._locate(offset)
        end = segment.size
        if end_offset is not None:
            last, end_position, _ = self._locate(end_offset)
            if last is segment:
                end = end_position
        length = min(end - position, max(max_bytes, first_size) if min_one else max_bytes)
        return segment, FileSlice(
            segment.path, position, length if length >= first_size else 0, segment.inode
        )

    def _locate(self, offset: int) -> tuple[Segment, int, int]:
        """(segment, position, size) of the first batch that ends at or after ``offset``."""
        active = self.active
        if offset < active.base_offset:
            for segment in self._sealed[bisect_right(self._bases, offset) - 1 :]:
                extent = segment.locate(offset)
                if extent is not None:
                    return segment, *extent
        extent = active.locate(offset)
        if extent is None:
            raise DecodeError(f"no batch at or after offset {offset}", 0)
        return active, *extent

    def aborted_transactions(
        self, segment: Segment, piece: FileSlice, offset: int, end_offset: int
    ) -> list[AbortedTransaction]:
        """Aborted transactions with records in a slice of ``segment`` that starts at ``offset``.

        ``end_offset`` is the last stable offset. The list may contain further transactions that
        start soon after the slice.
        """
        end = min(end_offset, segment.offset_bound(piece.position + piece.length))
        result: list[AbortedTransaction] = []
        first = bisect_right(self._bases, segment.base_offset - 1)
        for each in (*self._sealed[first:], self.active):
            if each.aborted_count:
                overlapping, is_complete = each.aborted_transactions(offset, end)
                result += overlapping
                if is_complete:
                    break
        return result

    def find_by_timestamp(self, timestamp_ms: int, start: int) -> TimestampOffset | None:
        """The first record from offset ``start`` on with at least this timestamp."""
        for segment in self:
            if segment.max_timestamp >= timestamp_ms and segment.next_offset > start:
                result = segment.find_by_timestamp(timestamp_ms, start)
                if result is not None:
                    return result
        return None

    def find_max_timestamp(self) -> TimestampOffset | None:
        """The record with the largest timestamp."""
        return max(self, key=lambda segment: segment.max_timestamp).find_max_timestamp()
