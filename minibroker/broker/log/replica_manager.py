"""The logs of one I/O worker and the partitions over them.

`LogManager` owns the set of open logs (opened on demand, maintained, saved in snapshots, and
closed), this worker's partition directories, and which files a copy of a log for a snapshot shares
with it by hard links. `ReplicaManager` owns the open partitions: their leadership, their high
watermarks, and the checks that an API makes before it uses a log. It follows the cluster image: it
drops partitions of deleted topics and updates the leadership of the others. Neither knows clients
or requests, nor decides which topics exist: the cluster image does. Invariants: an open log belongs
to a topic id of the image, so a topic that is deleted and created again never has the old records;
a directory without a topic id, or behind a symbolic link, is not changed; a partition in the table
has the topic id, leader and leader epoch of the newest image. Consumers read below the high
watermark only, and it never falls while this broker leads; with one replica, it advances to the log
end with every append. A deleted log whose files could not be removed is removed by a later
retention. Kafka's ``LogManager``, which has no snapshots, ``Partition`` and ``ReplicaManager``.

A copy looks like a log that was closed in order, so opening it needs no recovery; and it stays as
it is, because files that a log changes in place are copied, except for those of records: these grow
behind the records of the copy. Truncating the log is enough to return to it if records were only
appended.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from minibroker.broker.log.checkpoint import (
    CLEANER_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    UNDEFINED_END,
    Checkpoint,
    EpochEnd,
    EpochEntry,
    read_checkpoint,
    read_topic_id,
    write_checkpoint,
)
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError, StorageFailed, ignore_failure
from minibroker.broker.log.log import Appended, FileSlice, Log, Origin
from minibroker.broker.log.paths import (
    LOG,
    PARTITION_METADATA,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    STRAY,
    list_deleted,
    offset_file,
    offsets_of,
    parse_directory,
    partition_directory,
    remove_renamed,
    rename_directory,
    write_file,
)
from minibroker.broker.log.producers import (
    NO_GUARD,
    NO_OFFSET,
    AbortedTransaction,
    Guard,
    Producer,
    ProducerTable,
    write_snapshot,
)
from minibroker.broker.log.recovery import Truncation
from minibroker.broker.log.segment import ActiveSegment, Segment, SegmentEnd, SegmentFiles
from minibroker.broker.log.validation import PreparedBatch, prepare_batch
from minibroker.broker.metadata.image import Image, Topic
from minibroker.broker.settings import Settings, topics
from minibroker.broker.settings.definitions import PERSONA, PRODUCER_ID_EXPIRATION_MS
from minibroker.broker.settings.dynamic import effective
from minibroker.runtime.system import copy_range
from minibroker_protocol.compression import Compression
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Buffer, TimestampType
from minibroker_protocol.types import Uuid

_REPLACED_FILES: Final = (PARTITION_METADATA, CLEANER_CHECKPOINT, LEADER_EPOCH_CHECKPOINT)
"""Files that a log replaces and never changes in place."""

_LINKS_OF_ONE_COPY: Final = 2
"""Directories that share a file of records: the log's, and that of its copy."""


class SavedState(NamedTuple):
    """What is known of a log in memory at the time of its copy."""

    log: Log
    log_start_offset: int
    sealed: tuple[Segment, ...]
    active: ActiveSegment
    end: SegmentEnd
    producers: tuple[tuple[int, Producer], ...]
    epochs: tuple[EpochEntry, ...]


def saved_state(log: Log) -> SavedState:
    """The present state of a log, whose copy was just made or restored."""
    segments = log.segments
    return SavedState(
        log,
        log.log_start_offset,
        segments.sealed,
        segments.active,
        segments.active.end,
        tuple(log.producers.producers.items()),
        log.leader_epochs.entries,
    )


def return_to(saved: SavedState, log: Log | None) -> bool:
    """Truncate a log to the end of its copy; False if its files must be restored.

    Truncating is enough if records were only appended, to the segment that was active, and no other
    copy shares them.
    """
    if log is not saved.log or not log.is_open:
        return False
    now = saved_state(log)
    if now == saved:
        return True
    grown = now._replace(end=saved.end, producers=saved.producers)
    if grown != saved:
        return False
    try:
        if log.segments.active.link_count > _LINKS_OF_ONE_COPY:
            return False
        log.truncate_to(saved.end, ProducerTable(saved.producers, saved.end.next_offset))
    except OSError:
        return False
    return True


def save_log(log: Log, saved: str) -> None:
    """Save the present state of an open log in a new directory. Raises OSError."""
    os.mkdir(saved)
    log.epoch_file.write(log.leader_epochs)
    for name in _REPLACED_FILES:
        _link_existing(os.path.join(log.directory, name), os.path.join(saved, name))
    active = log.segments.active
    for segment in log.segments:
        suffixes = (LOG,) if segment is active else SEGMENT_SUFFIXES
        for suffix in suffixes:
            file = offset_file(log.directory, segment.base_offset, suffix)
            _link_existing(file, offset_file(saved, segment.base_offset, suffix))
    active.save_indexes(saved)
    for offset in offsets_of(log.directory, SNAPSHOT):
        _copy(offset_file(log.directory, offset, SNAPSHOT), offset_file(saved, offset, SNAPSHOT))
    write_snapshot(saved, log.producers)
    clean = (log.log_end_offset, active.size)
    checkpoint = Checkpoint(log.log_start_offset, log.recovery_point, clean, log.producers)
    write_checkpoint(saved, checkpoint, sync=False)


def restore_log(saved: str, directory: str) -> None:
    """Make a new partition directory as a saved one. Raises OSError.

    The directory of the log that the copy was made of must be removed before, so that only other
    copies share the records.
    """
    os.mkdir(directory)
    last = offsets_of(saved, LOG)[-1]
    checkpoint = read_checkpoint(saved)
    assert checkpoint is not None
    assert checkpoint.clean is not None
    _cut_records(offset_file(saved, last, LOG), checkpoint.clean[1])
    changed = {offset_file(saved, last, suffix) for suffix in SEGMENT_SUFFIXES if suffix != LOG}
    for name in os.listdir(saved):
        source, target = f"{saved}/{name}", f"{directory}/{name}"
        if source in changed or name.endswith(SNAPSHOT):
            _copy(source, target)
        else:
            os.link(source, target)


def _cut_records(path: str, size: int) -> None:
    """Remove the records that were appended after the copy was made, for others to be appended."""
    status = os.stat(path)
    if status.st_nlink == 1:
        if status.st_size != size:
            os.truncate(path, size)
        return
    # Another copy has the file, maybe with later records or as a complete segment.
    own = f"{path}.own"
    with open(path, "rb") as shared, open(own, "wb") as file:
        position = 0
        while position < size:
            count = copy_range(shared.fileno(), file.fileno(), size - position)
            if not count:
                raise OSError(errno.EIO, "the file is shorter than its copy", path)
            position += count
    os.replace(own, path)


def _link_existing(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        return


def _copy(source: str, target: str) -> None:
    with open(source, "rb", buffering=0) as read:
        write_file(target, read.readall())


TopicPartition = tuple[str, int]

KNOWN_SNAPSHOTS_MAX: Final = 16
"""Snapshots whose logs need not be restored from files if they have only grown."""

_logger = logging.getLogger(__name__)

_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


class SavedLogs(NamedTuple):
    """The size of what was saved."""

    partitions: int
    size_bytes: int


def log_config(settings: Settings, image: Image, topic: str) -> LogConfig:
    """The settings of a topic's logs: topic overrides, then broker configs, then defaults."""
    settings = effective(settings, image.configs)
    config = topics.topic_config(settings, image.topic_overrides(topic))
    codec = config[topics.COMPRESSION_TYPE]
    policies = config[topics.CLEANUP_POLICY]
    persona = settings[PERSONA]
    return LogConfig(
        segment_bytes=config[topics.SEGMENT_BYTES],
        segment_ms=config[topics.SEGMENT_MS],
        index_interval_bytes=config[topics.INDEX_INTERVAL_BYTES],
        segment_index_bytes=config[topics.SEGMENT_INDEX_BYTES],
        retention_ms=config[topics.RETENTION_MS],
        retention_bytes=config[topics.RETENTION_BYTES],
        file_delete_delay_ms=config[topics.FILE_DELETE_DELAY_MS],
        max_message_bytes=config[topics.MAX_MESSAGE_BYTES],
        flush_messages=config[topics.FLUSH_MESSAGES],
        flush_ms=config[topics.FLUSH_MS],
        timestamp_type=_TIMESTAMP_TYPES[config[topics.MESSAGE_TIMESTAMP_TYPE]],
        timestamp_before_max_ms=config[topics.MESSAGE_TIMESTAMP_BEFORE_MAX_MS],
        timestamp_after_max_ms=config[topics.MESSAGE_TIMESTAMP_AFTER_MAX_MS],
        compression=_codec(codec),
        delete="delete" in policies,
        compact="compact" in policies,
        delete_retention_ms=config[topics.DELETE_RETENTION_MS],
        min_compaction_lag_ms=config[topics.MIN_COMPACTION_LAG_MS],
        max_compaction_lag_ms=config[topics.MAX_COMPACTION_LAG_MS],
        min_cleanable_dirty_ratio=config[topics.MIN_CLEANABLE_DIRTY_RATIO],
        producer_id_expiration_ms=settings[PRODUCER_ID_EXPIRATION_MS],
        unknown_producer_error=0 if persona is None else persona.behaviour.unknown_producer_error,
    )


def _codec(name: str) -> Compression | None:
    if name == "producer":
        return None
    return Compression.NONE if name == "uncompressed" else Compression[name.upper()]


def _rename_stray(directory: str) -> None:
    """Rename a directory that belongs to no topic. Only the user removes it."""
    renamed_to = rename_directory(directory, STRAY)
    _warn(
        "a partition belongs to no topic of the cluster; it is kept",
        directory,
        renamed_to=renamed_to,
    )


def _warn(message: str, path: str, **fields: object) -> None:
    _logger.warning("%s", message, extra={"fields": {"path": path, **fields}})


_Attempt = Callable[[Log], LogError | None]

CLOSING_THREADS: Final = 8
"""Fewer than the files that may be open, because each keeps one open."""


class LogManager:
    """The open logs of one worker. For one thread; times are epoch milliseconds."""

    def __init__(
        self,
        data_dir: Path,
        settings: Settings,
        owns: Callable[[str, int], bool],
        files: SegmentFiles,
        *,
        on_failure: StorageFailed = ignore_failure,
        on_truncation: Callable[[Truncation], None] = lambda _: None,
    ) -> None:
        """``on_failure`` is called when a file cannot be used, ``on_truncation`` by recovery."""
        self._on_failure = on_failure
        self._on_truncation = on_truncation
        self._data_dir = data_dir
        self._settings = settings
        self._owns = owns
        self._files = files
        self._logs: dict[TopicPartition, Log] = {}
        self._configs: dict[str, LogConfig] = {}
        """By topic; filled when a log is opened, cleared when configs change."""
        self._not_renamed: dict[TopicPartition, str] = {}
        """Directories of deleted logs that could not be renamed so far."""
        self._saved: dict[str, dict[TopicPartition, SavedState]] = {}
        """The logs as they are in snapshots, by name."""
        self._not_removed: set[str] = set()
        """Directories of deleted logs that were renamed and could not be removed so far."""

    def get(self, image: Image, topic: str, partition: int, *, now_ms: int) -> Log | None:
        """The partition's log, opened or created if needed; None if this worker does not host it.

        Raises ``LogError`` if its directory can't be used.
        """
        log = self._logs.get((topic, partition))
        if log is not None:
            return log
        known = image.topics.get(topic)
        if known is None or image.partition(topic, partition) is None:
            return None
        if not self._owns(topic, partition):
            return None
        return self._open(image, known, partition, now_ms)

    def _open(self, image: Image, topic: Topic, partition: int, now_ms: int) -> Log:
        directory = partition_directory(self._data_dir, topic.name, partition)
        try:
            self._delete_directory((topic.name, partition))
            log = self._open_log(image, topic, partition, now_ms)
        except OSError as error:
            self._on_failure(directory, error)
            raise LogError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{directory} can't be opened: {error.strerror}"
            ) from error
        self._logs[topic.name, partition] = log
        if log.truncation is not None:
            self._on_truncation(log.truncation)
        return log

    def _open_log(self, image: Image, topic: Topic, partition: int, now_ms: int) -> Log:
        config = self._config(image, topic.name)

        def attempt() -> Log:
            return Log.open(
                self._data_dir,
                topic.name,
                partition,
                config,
                now_ms=now_ms,
                topic_id=topic.topic_id,
                files=self._files,
                on_failure=self._report_failure,
            )

        try:
            return attempt()
        except LogError as error:
            if error.code != ErrorCode.INCONSISTENT_TOPIC_ID:
                raise
        # A topic of this name was deleted while this worker was down.
        _rename_stray(partition_directory(self._data_dir, topic.name, partition))
        return attempt()

    def _report_failure(self, path: str, error: OSError) -> None:
        """Report a failure; while logs are closed, it is kept until all are."""
        self._on_failure(path, error)

    def _config(self, image: Image, topic: str) -> LogConfig:
        config = self._configs.get(topic)
        if config is None:
            config = self._configs[topic] = log_config(self._settings, image, topic)
        return config

    def recover(self, image: Image, *, now_ms: int) -> list[TopicPartition]:
        """Open the logs on disk; return the partitions of known topics, also if their logs failed.

        Logs of unknown topics are renamed to ``…-stray`` and kept.
        """
        known = []
        for path in list_deleted(self._data_dir):
            remove_renamed(path)
        for entry in sorted(os.scandir(self._data_dir), key=lambda entry: entry.name):
            partition = parse_directory(entry.name)
            if partition is None or not self._owns(*partition):
                continue
            if partition in self._logs or self._recover(image, entry, partition, now_ms):
                known.append(partition)
        return known

    def _recover(
        self, image: Image, entry: os.DirEntry[str], partition: TopicPartition, now_ms: int
    ) -> bool:
        if not entry.is_dir(follow_symlinks=False) or read_topic_id(entry.path) is None:
            _warn("a file in the data directory is not a partition of this broker", entry.path)
        elif image.partition(*partition) is None:
            try:
                _rename_stray(entry.path)
            except OSError as error:
                self._on_failure(entry.path, error)
        else:
            try:
                self.get(image, *partition, now_ms=now_ms)
            except LogError as error:
                _warn(
                    "a log cannot be opened; opening is retried when it is used",
                    entry.path,
                    reason=error.text,
                )
            return True
        return False

    def follow(self, before: Image, after: Image) -> None:
        """Delete the logs of deleted topics and update the settings of the others."""
        deleted_topics = {
            name
            for topic_id, name in before.topic_names.items()
            if topic_id not in after.topic_names
        }
        for name in deleted_topics:
            for partition in before.topics[name].partitions:
                self._delete(name, partition.index, before.topics[name].topic_id)
        if deleted_topics or before.configs != after.configs:
            self._configs.clear()
            for (topic, _), log in self._logs.items():
                log.config = self._config(after, topic)

    def _delete(self, topic: str, index: int, topic_id: Uuid) -> None:
        """Close a log's file now, and remove its directory now or in a later retention."""
        partition = topic, index
        directory = partition_directory(self._data_dir, topic, index)
        log = self._logs.pop(partition, None)
        try:
            if log is not None:
                log.abandon()
            elif not self._has_unopened_directory(partition, topic_id):
                return
            self._not_renamed[partition] = directory
            self._delete_directory(partition)
        except OSError as error:
            self._on_failure(directory, error)
            _warn(
                "a deleted partition's files cannot be removed; retrying", directory, reason=error
            )

    def _has_unopened_directory(self, partition: TopicPartition, topic_id: Uuid) -> bool:
        """Whether the partition has a directory of this topic, whose log is not open."""
        if not self._owns(*partition):
            return False
        directory = partition_directory(self._data_dir, *partition)
        return not os.path.islink(directory) and read_topic_id(directory) == topic_id

    def _delete_directory(self, partition: TopicPartition) -> None:
        """Rename and remove a deleted log's directory, unless that was done. Raises OSError."""
        directory = self._not_renamed.get(partition)
        if directory is None:
            return
        if read_topic_id(directory) is not None:
            renamed = rename_directory(directory)
            if not remove_renamed(renamed):
                self._not_removed.add(renamed)
        del self._not_renamed[partition]

    def apply_retention(self, *, now_ms: int) -> list[LogError]:
        """Drop the expired segments of all logs; returns the errors of logs where it failed.

        Also removes the remaining files of deleted logs.
        """
        for partition in list(self._not_renamed):
            with suppress(OSError):
                self._delete_directory(partition)
        self._not_removed = {path for path in self._not_removed if not remove_renamed(path)}
        return self._for_each_log(lambda log: log.apply_retention(now_ms=now_ms))

    def expire_producers(self, *, now_ms: int) -> None:
        """Expire the idle producers of all logs."""
        for log in self._logs.values():
            log.expire_producers(now_ms=now_ms)

    def save(self, saved: Path, name: str) -> SavedLogs:
        """Save all logs below a directory, as the snapshot ``name``.

        Raises OSError, and LogError if a log cannot be opened.
        """
        for path, partition in self._owned_directories(self._data_dir):
            if partition not in self._logs and read_topic_id(path) is not None:
                text = f"{path} is not open, so its records cannot be saved"
                raise LogError(ErrorCode.KAFKA_STORAGE_ERROR, text)
        for key, log in self._logs.items():
            save_log(log, partition_directory(saved, *key))
        self.note_saved(name)
        return SavedLogs(len(self._logs), sum(log.size for log in self._logs.values()))

    def note_saved(self, name: str) -> None:
        """Note that all logs are as in a snapshot."""
        self._saved.pop(name, None)
        self._saved[name] = {key: saved_state(log) for key, log in self._logs.items()}
        if len(self._saved) > KNOWN_SNAPSHOTS_MAX:
            del self._saved[next(iter(self._saved))]

    def restore(self, saved: Path, name: str) -> None:
        """Return to the logs that ``save`` saved. Raises OSError.

        Logs that have only grown are truncated. The others are closed and their files restored:
        ``recover`` opens them. Then ``note_saved`` must be called.
        """
        saved_states = self._saved.pop(name, {})
        kept = {
            key: state.log
            for key, state in saved_states.items()
            if return_to(state, self._logs.get(key))
        }
        closed, self._logs = self._logs, kept
        for key, log in closed.items():
            if key not in kept:
                log.abandon()
        self._not_renamed.clear()
        for path, partition in self._owned_directories(self._data_dir):
            if partition in kept:
                continue
            if partition in closed or read_topic_id(path) is not None:
                renamed = rename_directory(path)
                if not remove_renamed(renamed):
                    self._not_removed.add(renamed)
        for path, partition in self._owned_directories(saved):
            if partition not in kept:
                restore_log(path, partition_directory(self._data_dir, *partition))

    def _owned_directories(self, parent: Path) -> list[tuple[str, TopicPartition]]:
        found = []
        with os.scandir(parent) as entries:
            for entry in entries:
                partition = parse_directory(entry.name)
                if partition is not None and self._owns(*partition) and not entry.is_symlink():
                    found.append((entry.path, partition))
        return found

    def close(self, *, now_ms: int) -> list[LogError]:
        """Close all logs; returns the errors of logs that will need recovery.

        Each log waits for the disk several times, so threads close `CLOSING_THREADS` at a time.
        """
        if not self._logs:
            return []
        report, failures = self._on_failure, list[tuple[str, OSError]]()
        self._on_failure = lambda path, error: failures.append((path, error))
        self._files.close_all()
        with ThreadPoolExecutor(CLOSING_THREADS) as threads:
            errors = self._for_each_log(lambda log: log.close(now_ms=now_ms), threads.map)
        self._on_failure = report
        for path, error in failures:
            report(path, error)
        self._logs.clear()
        return errors

    def _for_each_log(
        self,
        operation: Callable[[Log], object],
        run: Callable[[_Attempt, Iterable[Log]], Iterable[LogError | None]] = map,
    ) -> list[LogError]:
        """Apply an operation to all logs; ``run`` may do so at a time. Returns its errors."""

        def attempt(log: Log) -> LogError | None:
            try:
                operation(log)
            except LogError as error:
                return error
            return None

        return [error for error in run(attempt, self._logs.values()) if error is not None]

    def abandon(self) -> None:
        """Close all logs without writing anything."""
        for log in self._logs.values():
            log.abandon()
        self._logs.clear()

    def size(self, topic: str, partition: int) -> int:
        """Bytes of an open log; 0 if it is not open, as without records it has no files."""
        log = self._logs.get((topic, partition))
        return 0 if log is None else log.size

    def items(self) -> Iterator[tuple[TopicPartition, Log]]:
        """The open logs."""
        return iter(self._logs.items())


NO_LEADER_EPOCH: Final = -1
"""Leader epoch of a request from a client that does not know it, which is not checked."""

HIGH_WATERMARK: Final = -1
"""The offset by which a DeleteRecords request means the high watermark."""


PartitionChanged = Callable[[str, int], None]


def ignore_change(_topic: str, _partition: int) -> None:
    """Ignore the change of a partition."""


class Partition:
    """The state of one hosted partition. Used by a single thread; times are epoch milliseconds."""

    __slots__ = (
        "_broker_id",
        "_on_change",
        "_transactions",
        "high_watermark",
        "is_leader",
        "leader_epoch",
        "leader_id",
        "log",
        "topic_id",
    )

    def __init__(
        self,
        log: Log,
        topic_id: Uuid,
        *,
        broker_id: int,
        leader_id: int,
        leader_epoch: int,
        on_change: PartitionChanged = ignore_change,
    ) -> None:
        """``on_change`` is called when the high watermark or the log start has changed."""
        self.log = log
        self.topic_id = topic_id
        self._broker_id = broker_id
        self._on_change = on_change
        self._transactions = log.producers.transactions
        self.high_watermark = log.log_start_offset
        self.update_leadership(leader_id, leader_epoch)

    def update_leadership(self, leader_id: int, leader_epoch: int) -> None:
        """Become the leader or a follower, as the controller has decided."""
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.is_leader = leader_id == self._broker_id
        if self.is_leader:
            self.log.assign_leader_epoch(leader_epoch, self.log.log_end_offset)
            self._increment_high_watermark()

    def _increment_high_watermark(self) -> None:
        """Advance to the smallest log end of the in-sync replicas, which is this one alone.

        Kafka's ``maybeIncrementLeaderHW``.
        """
        self.high_watermark = self.log.log_end_offset
        if self._transactions.first_unstable_offset != NO_OFFSET:
            self._transactions.replicated(self.high_watermark)
        self._on_change(self.log.topic, self.log.partition)

    @property
    def last_stable_offset(self) -> int:
        """End of the records of completed transactions: the high watermark without open ones."""
        unstable = self._transactions.first_unstable_offset
        if unstable == NO_OFFSET or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log.log_start_offset)

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Raise LogError if this broker does not lead the partition in the epoch of a request.

        FENCED_LEADER_EPOCH if the client knows an older epoch, UNKNOWN_LEADER_EPOCH if it knows a
        newer one, NOT_LEADER_OR_FOLLOWER if another broker leads.
        """
        epoch = self.leader_epoch
        if current_leader_epoch not in (epoch, NO_LEADER_EPOCH):
            is_older = current_leader_epoch < epoch
            raise LogError(
                ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"{self._name} has leader epoch {epoch}, and the request {current_leader_epoch}",
            )
        if not self.is_leader:
            raise LogError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"the leader of {self._name} is broker {self.leader_id}, not {self._broker_id}",
            )

    @property
    def _name(self) -> str:
        return f"{self.log.topic}-{self.log.partition}"

    def append_as_leader(
        self,
        records: Buffer,
        *,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        guard: Guard = NO_GUARD,
    ) -> Appended:
        """Validate the one batch in ``records`` and append it. Raises LogError."""
        prepared = prepare_batch(records, self.log.config, now_ms=now_ms, origin=origin)
        return self.append_prepared_as_leader(prepared, now_ms=now_ms, origin=origin, guard=guard)

    def append_prepared_as_leader(
        self,
        prepared: PreparedBatch,
        *,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        guard: Guard = NO_GUARD,
    ) -> Appended:
        """Append a batch that ``prepare_batch`` returned for the log's config. Raises LogError."""
        if not self.is_leader:
            self.check_leader()
        appended = self.log.append_prepared(
            prepared, now_ms=now_ms, origin=origin, leader_epoch=self.leader_epoch, guard=guard
        )
        self._increment_high_watermark()
        return appended

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        *,
        transaction_version: int,
        now_ms: int,
    ) -> Appended:
        """End a producer's transaction on this partition. Raises LogError."""
        self.check_leader()
        appended = self.log.append_marker(
            producer_id,
            producer_epoch,
            marker,
            transaction_version=transaction_version,
            now_ms=now_ms,
            leader_epoch=self.leader_epoch,
        )
        self._increment_high_watermark()
        return appended

    def begin_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, *, adds: bool, now_ms: int
    ) -> Guard:
        """Begin to verify that a transaction includes this partition. Raises LogError.

        Returns NO_GUARD if the producer's transaction has records here already.
        """
        self.check_leader()
        return self.log.producers.begin_verification(
            producer_id, producer_epoch, sequence, adds=adds, now_ms=now_ms
        )

    def read(self, offset: int, max_bytes: int, *, min_one: bool = True) -> FileSlice | None:
        """Records from ``offset`` on that are below the high watermark. See ``Log.read``."""
        return self.log.read(offset, max_bytes, min_one=min_one, end_offset=self.high_watermark)

    def read_committed(
        self, offset: int, max_bytes: int, *, min_one: bool = True
    ) -> tuple[FileSlice | None, list[AbortedTransaction]]:
        """Records below the last stable offset, and the aborted transactions among them."""
        return self.log.read_committed(offset, max_bytes, self.last_stable_offset, min_one=min_one)

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEnd:
        """The end of an epoch, or of the largest smaller one that has records, in the log."""
        return self.log.leader_epochs.end_offset_for(leader_epoch, self.log.log_end_offset)

    def find_divergence(self, last_fetched_epoch: int, offset: int) -> EpochEnd | None:
        """Where a log with ``last_fetched_epoch`` before ``offset`` diverges from this one, if so.

        Raises LogError OFFSET_OUT_OF_RANGE if the epoch is not known (KIP-595).
        """
        if offset < self.log.log_start_offset:
            return None  # The read rejects it.
        epoch_end = self.end_offset_for_epoch(last_fetched_epoch)
        if epoch_end == UNDEFINED_END:
            raise LogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self._name} has no leader epoch {last_fetched_epoch}; the latest is"
                f" {self.log.leader_epochs.latest_epoch}",
            )
        is_same = epoch_end.epoch == last_fetched_epoch and epoch_end.end_offset >= offset
        return None if is_same else epoch_end

    def delete_records(self, before_offset: int) -> int:
        """Move the log start to ``before_offset`` or to the high watermark; return the log start.

        Raises LogError, OFFSET_OUT_OF_RANGE if the offset is above the high watermark.
        """
        self.check_leader()
        high_watermark = self.high_watermark
        if before_offset == HIGH_WATERMARK:
            before_offset = high_watermark
        if not 0 <= before_offset <= high_watermark:
            raise LogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"records of {self._name} can't be deleted before offset {before_offset}; the high"
                f" watermark is {high_watermark}",
            )
        log_start_offset = self.log.delete_records(before_offset)
        self._on_change(self.log.topic, self.log.partition)
        return log_start_offset


class ReplicaManager:
    """The open partitions of one worker. Used by a single thread."""

    def __init__(
        self, logs: LogManager, broker_id: int, on_change: PartitionChanged = ignore_change
    ) -> None:
        """``on_change`` is called when the offsets or the leader of a partition have changed."""
        self._on_change = on_change
        self._logs = logs
        self._broker_id = broker_id
        self._partitions: dict[tuple[str, int], Partition] = {}

    def open_partition(self, topic: str, index: int) -> Partition | None:
        """The partition if its log is open, else None."""
        return self._partitions.get((topic, index))

    def get(self, image: Image, topic: str, index: int, *, now_ms: int) -> Partition | None:
        """The partition, with its log opened or created if needed; None if it is not hosted here.

        Raises LogError if the log cannot be opened.
        """
        partition = self._partitions.get((topic, index))
        if partition is not None:
            return partition
        registration = image.partition(topic, index)
        if registration is None:
            return None
        log = self._logs.get(image, topic, index, now_ms=now_ms)
        if log is None:
            return None
        partition = self._partitions[topic, index] = Partition(
            log,
            image.topics[topic].topic_id,
            broker_id=self._broker_id,
            leader_id=registration.leader,
            leader_epoch=registration.leader_epoch,
            on_change=self._on_change,
        )
        return partition

    def follow(self, before: Image, after: Image) -> None:
        """Close the partitions of deleted topics; update configs and leadership of the others."""
        self._logs.follow(before, after)
        if before.topics is after.topics:
            return
        for (topic, index), partition in list(self._partitions.items()):
            known = after.topics.get(topic)
            if known is before.topics.get(topic):
                continue
            is_gone = known is None or known.topic_id != partition.topic_id
            if known is None or is_gone or index >= len(known.partitions):
                # Partitions are removed from a topic only by the return to a snapshot.
                del self._partitions[topic, index]
                self._on_change(topic, index)
            else:
                registration = known.partitions[index]
                partition.update_leadership(registration.leader, registration.leader_epoch)
                self._on_change(topic, index)

    def forget_all(self) -> None:
        """Forget all partitions, whose logs were closed."""
        partitions, self._partitions = self._partitions, {}
        for topic, index in partitions:
            self._on_change(topic, index)
