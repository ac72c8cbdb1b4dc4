"""The small files of a partition's directory: checkpoint, topic id, cleaner offset, leader epochs.

Owns ``checkpoint.json`` (log start offset, recovery point, clean shutdown, last batches of the
producers), ``partition.metadata`` (topic id), ``cleaner-offset-checkpoint``, and the table by which
a client or a follower finds out where a leader epoch ended, and so whether its records still exist,
in the format of KIP-101. It must never know segments, batches or leaders. Invariants: a file is
replaced completely or not at all; epochs and their start offsets both strictly increase. Kafka has
``log-start-offset-checkpoint``, ``recovery-point-offset-checkpoint``, ``.kafka_cleanshutdown`` and
``cleaner-offset-checkpoint`` (in the same format), one per data directory. Here, there is one file
per partition, so each worker writes its own. Kafka ignores unknown files. Its
``LeaderEpochFileCache`` is the table.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left, bisect_right
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from minibroker.broker.log.errors import LogError
from minibroker.broker.log.paths import (
    PARTITION_METADATA,
    TEMPORARY,
    read_small_file,
    replace_file,
)
from minibroker.broker.log.producers import BatchMetadata, Producer, ProducerTable
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import Uuid, uuid_from_text, uuid_text

_CHECKPOINT: Final = "checkpoint.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of the file. ``clean`` is None unless the log was closed in order.

    ``recovery_point`` is the base offset of the first segment that may not be completely on disk.
    ``clean`` is (log end offset, bytes of the last segment).
    """

    log_start_offset: int
    recovery_point: int
    clean: tuple[int, int] | None
    producers: ProducerTable


def write_checkpoint(directory: str, checkpoint: Checkpoint, *, sync: bool) -> None:
    """Replace the checkpoint; with ``sync`` it is on disk first. Raises OSError."""
    table = checkpoint.producers
    document = {
        "version": _VERSION,
        "log_start_offset": checkpoint.log_start_offset,
        "recovery_point": checkpoint.recovery_point,
        "clean": checkpoint.clean,
        "producers": {
            "end_offset": table.end_offset,
            "entries": [
                [producer_id, *producer] for producer_id, producer in table.producers.items()
            ],
        },
    }
    replace_file(os.path.join(directory, _CHECKPOINT), json.dumps(document), sync=sync)


def read_checkpoint(directory: str) -> Checkpoint | None:
    """The checkpoint, or None if it is missing or can't be read."""
    try:
        with open(os.path.join(directory, _CHECKPOINT), encoding="utf-8") as file:
            return _parse(json.load(file))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _parse(document: dict[str, Any]) -> Checkpoint:
    if document["version"] != _VERSION:
        raise ValueError(document["version"])
    entries = document["producers"]["entries"]
    table = ProducerTable(
        (
            (
                int(key),
                Producer(
                    int(epoch),
                    int(last),
                    tuple(BatchMetadata(*batch) for batch in batches),
                    *map(int, transaction),
                ),
            )
            for key, epoch, last, batches, *transaction in entries
        ),
        int(document["producers"]["end_offset"]),
    )
    clean = document["clean"]
    return Checkpoint(
        int(document["log_start_offset"]),
        int(document["recovery_point"]),
        None if clean is None else (int(clean[0]), int(clean[1])),
        table,
    )


def has_checkpoint(directory: str) -> bool:
    """Whether a minibroker used the partition's directory. Kafka does not write this file."""
    return os.path.lexists(os.path.join(directory, _CHECKPOINT))


def write_topic_id(directory: str, topic_id: Uuid) -> None:
    """Write ``partition.metadata``, as Kafka does; it is on disk when this returns."""
    text = f"version: 0\ntopic_id: {uuid_text(topic_id)}"
    replace_file(os.path.join(directory, PARTITION_METADATA), text, sync=True)


def read_topic_id(directory: str) -> Uuid | None:
    """The topic id in ``partition.metadata``, or None if it cannot be read."""
    try:
        text = read_small_file(os.path.join(directory, PARTITION_METADATA)).decode()
        fields = dict(line.split(": ", 1) for line in text.splitlines() if line.strip())
        return uuid_from_text(fields["topic_id"].strip())
    except (OSError, ValueError, KeyError):
        return None


def create_directory(directory: str, topic_id: Uuid | None) -> None:
    """Create a partition's directory if needed, and claim it for a topic.

    Raises as ``claim_directory``, and OSError.
    """
    is_new = not os.path.lexists(directory)
    os.makedirs(directory, exist_ok=True)
    if topic_id is None:
        return
    try:
        claim_directory(directory, topic_id)
    except OSError:
        if is_new:  # Without a topic id no broker would ever remove it.
            with suppress(OSError):
                os.rmdir(directory)
        raise


def claim_directory(directory: str, topic_id: Uuid) -> None:
    """Write the topic id to a new directory, or check the id in an existing one.

    Raises LogError if the directory belongs to another topic, has files that no broker wrote, or is
    or contains a symbolic link, through which recovery could change files elsewhere.
    """
    names = _names_without_links(directory)
    existing_id = read_topic_id(directory)
    if existing_id is None:
        if PARTITION_METADATA in names:
            raise LogError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{directory}/{PARTITION_METADATA} cannot be read: restore it, or move the"
                " directory elsewhere",
            )
        if names - {PARTITION_METADATA + TEMPORARY}:
            raise LogError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{directory} was not created by a broker, as it has files and no"
                f" {PARTITION_METADATA}; move it elsewhere",
            )
        write_topic_id(directory, topic_id)
    elif existing_id != topic_id:
        raise LogError(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"{directory} belongs to an earlier topic of this name; remove it or delete the topic",
        )


def _names_without_links(directory: str) -> set[str]:
    entries = list(os.scandir(directory))
    links = [entry.path for entry in entries if entry.is_symlink()]
    if os.path.islink(directory) or links:
        raise LogError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{links[0] if links else directory} is a symbolic link, which is not followed; remove"
            " the link",
        )
    return {entry.name for entry in entries}


CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
_CLEANER_VERSION: Final = 0


def has_cleaner_checkpoint(directory: str) -> bool:
    """Whether the log was ever cleaned."""
    return os.path.lexists(os.path.join(directory, CLEANER_CHECKPOINT))


def read_cleaner_checkpoint(directory: str) -> int | None:
    """The offset, or None if there is none that can be read: the log is then cleaned as a whole."""
    try:
        text = read_small_file(os.path.join(directory, CLEANER_CHECKPOINT)).decode()
        version, count, entry = text.splitlines()
        if int(version) != _CLEANER_VERSION or int(count) != 1:
            return None
        return int(entry.split(" ")[2])
    except (OSError, ValueError, IndexError):
        return None


def write_cleaner_checkpoint(directory: str, topic: str, partition: int, offset: int) -> None:
    """Replace the file. Raises OSError. If the content is lost, the whole log is cleaned again."""
    path = os.path.join(directory, CLEANER_CHECKPOINT)
    replace_file(path, f"{_CLEANER_VERSION}\n1\n{topic} {partition} {offset}\n", sync=False)


LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1

EPOCH_FILE_BYTES_MAX: Final = 1024 * 1024
"""A larger file is not read, and the table is rebuilt from the log."""

_EPOCHS_VERSION: Final = 0


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
    return f"{_EPOCHS_VERSION}\n{len(entries)}\n" + "".join(lines)


def decode_epochs(text: str) -> tuple[EpochEntry, ...]:
    """The entries in the content of a file. Raises ValueError."""
    version, count, *lines = text.splitlines()
    if int(version) != _EPOCHS_VERSION or int(count) != len(lines):
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
