"""The leader epochs of a log, each with its first offset, and their checkpoint file.

Owns the table by which a client or a follower finds out where an epoch ended, and so whether its
records still exist. It must never know batches or leaders. Invariant: epochs and start offsets
both strictly increase. The file has Kafka's name and format (KIP-101), and is replaced whenever the
table has changed. Kafka's ``LeaderEpochFileCache``.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from minibroker.broker.log.paths import read_small_file, replace_file

LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1

EPOCH_FILE_BYTES_MAX: Final = 1024 * 1024
"""A larger file is not read, and the table is rebuilt from the log."""

_VERSION: Final = 0


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """The largest known epoch up to the requested one, and the offset after its last record."""

    epoch: int
    end_offset: int


UNDEFINED_END: Final = EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)


class LeaderEpochs:
    """The leader epochs of one log, ascending. Nothing here touches files."""

    __slots__ = ("_epochs", "_starts", "latest_epoch")

    def __init__(self, entries: tuple[EpochEntry, ...] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest_epoch = UNDEFINED_EPOCH
        for entry in entries:
            self.assign(*entry)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(map(EpochEntry, self._epochs, self._starts))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Let ``epoch`` start at this offset, unless it is the latest and has started before.

        Entries with an epoch or offset that is not below the new one are removed.
        """
        if epoch < 0 or start_offset < 0:
            return
        if epoch == self.latest_epoch and start_offset >= self._starts[-1]:
            return
        self._truncate_to(
            min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset))
        )
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest_epoch = epoch

    def _truncate_to(self, count: int) -> None:
        del self._epochs[count:], self._starts[count:]
        self.latest_epoch = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that contains ``offset``; UNDEFINED_EPOCH if the offset precedes the first."""
        count = bisect_right(self._starts, offset)
        return self._epochs[count - 1] if count else UNDEFINED_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The end of ``epoch``, or of the largest smaller epoch if it has no records.

        The latest epoch ends at ``log_end_offset``. An epoch before the first one ends where the
        first one starts. An epoch after the latest one is unknown: UNDEFINED_END.
        """
        if epoch == UNDEFINED_EPOCH or epoch > self.latest_epoch or not self._starts:
            return UNDEFINED_END
        if epoch == self.latest_epoch:
            return EpochEnd(epoch, log_end_offset)
        following = bisect_right(self._epochs, epoch)
        largest_epoch = self._epochs[following - 1] if following else epoch
        return EpochEnd(largest_epoch, self._starts[following])

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that start at or after ``end_offset``, the new end of the log."""
        self._truncate_to(bisect_left(self._starts, end_offset))

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that ended before ``start_offset``, the new start of the log."""
        count = bisect_right(self._starts, start_offset)
        if count:
            del self._epochs[: count - 1], self._starts[: count - 1]
            self._starts[0] = start_offset


def encode_epochs(entries: tuple[EpochEntry, ...]) -> str:
    """The content of the file: the version, the number of entries, and a line for each entry."""
    lines = (f"{entry.epoch} {entry.start_offset}\n" for entry in entries)
    return f"{_VERSION}\n{len(entries)}\n" + "".join(lines)


def decode_epochs(text: str) -> tuple[EpochEntry, ...]:
    """The entries in the content of a file. Raises ValueError."""
    version, count, *lines = text.splitlines()
    if int(version) != _VERSION or int(count) != len(lines):
        raise ValueError(f"version {version}, {count} entries announced, {len(lines)} found")
    entries = tuple(EpochEntry(*map(int, line.split(" "))) for line in lines)
    if entries != LeaderEpochs(entries).entries:
        raise ValueError("epochs and offsets must increase")
    return entries


class LeaderEpochFile:
    """The checkpoint file of one directory. It is written only if its content changes."""

    __slots__ = ("_path", "_synced", "_written")

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
        self._written: tuple[EpochEntry, ...] | None = None
        self._synced = False

    def read(self) -> LeaderEpochs | None:
        """The table in the file; None if the file is missing or damaged. Raises OSError."""
        try:
            data = read_small_file(self._path, EPOCH_FILE_BYTES_MAX)
            self._written = decode_epochs(data.decode("ascii"))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return LeaderEpochs(self._written)

    def write(self, epochs: LeaderEpochs, *, sync: bool = False) -> None:
        """Replace the file if needed; with ``sync`` its content is then on disk. Raises OSError."""
        entries = epochs.entries
        if entries == self._written and (self._synced or not sync):
            return
        replace_file(self._path, encode_epochs(entries), sync=sync)
        self._written, self._synced = entries, sync
