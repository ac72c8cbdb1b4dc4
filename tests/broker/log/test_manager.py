"""Which logs a worker has: those of its partitions of topics that the image knows."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.log.checkpoint import write_topic_id
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Log
from minibroker.broker.log.paths import list_deleted, rename_directory
from minibroker.broker.log.replica_manager import (
    CLOSING_THREADS,
    KNOWN_SNAPSHOTS_MAX,
    LogManager,
    SavedState,
    log_config,
    restore_log,
    return_to,
    save_log,
    saved_state,
)
from minibroker.broker.log.segment import SegmentFiles
from minibroker.broker.log.validation import Origin, prepare_batch
from minibroker.broker.metadata.image import (
    ConfigChanged,
    Image,
    PartitionRegistration,
    Topic,
    TopicCreated,
    apply,
)
from minibroker.broker.settings import Settings
from minibroker_protocol.compression import Compression
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import TimestampType
from tests.descriptors import open_below

NOW_MS = 1_700_000_000_000
MakeBatch = Callable[..., bytes]


def topic(name: str, topic_id: bytes, partitions: int = 2) -> Topic:
    return Topic(
        name,
        topic_id * 16,
        tuple(PartitionRegistration(i, 0, 0, (0,), (0,)) for i in range(partitions)),
    )


def image(*topics: Topic, config: Mapping[str, str] | None = None) -> Image:
    current_image = Image()
    for topic in topics:
        current_image = apply(current_image, TopicCreated(topic, config or {}))
    return current_image


@pytest.fixture
def settings() -> Settings:
    return Settings.from_sources()


@pytest.fixture
def manager(tmp_path: Path, settings: Settings) -> Iterator[LogManager]:
    """It owns all partitions but those with number 1."""
    manager = LogManager(tmp_path, settings, lambda _, partition: partition != 1, SegmentFiles())
    yield manager
    manager.close(now_ms=NOW_MS)


def open_log(manager: LogManager, current: Image, name: str = "t") -> Log:
    log = manager.get(current, name, 0, now_ms=NOW_MS)
    assert log is not None
    return log


def test_log_is_opened_once(manager: LogManager, tmp_path: Path) -> None:
    current = image(topic("t", b"1"))
    log = open_log(manager, current)
    assert open_log(manager, current) is log
    assert list(manager.items()) == [(("t", 0), log)]
    assert (tmp_path / "t-0" / "partition.metadata").exists()


def test_unhosted_or_unknown_partition_is_not_opened(manager: LogManager, tmp_path: Path) -> None:
    current = image(topic("t", b"1"))
    for name, partition in (("t", 1), ("t", 2), ("u", 0)):
        assert manager.get(current, name, partition, now_ms=NOW_MS) is None
    assert list(tmp_path.iterdir()) == []


def test_topic_configs_apply_to_new_logs(manager: LogManager, settings: Settings) -> None:
    current = image(
        topic("t", b"1"),
        config={
            "segment.bytes": "2000000",
            "compression.type": "zstd",
            "cleanup.policy": "compact",
            "message.timestamp.type": "LogAppendTime",
        },
    )
    config = log_config(settings, current, "t")
    assert open_log(manager, current).config == config
    assert (config.segment_bytes, config.compression) == (2_000_000, Compression.ZSTD)
    assert (config.delete, config.compact) == (False, True)
    assert config.timestamp_type is TimestampType.LOG_APPEND_TIME


@pytest.mark.parametrize(
    ("name", "codec"),
    [("producer", None), ("uncompressed", Compression.NONE), ("lz4", Compression.LZ4)],
)
def test_compression_type_selects_codec(
    settings: Settings, name: str, codec: Compression | None
) -> None:
    current = image(topic("t", b"1"), config={"compression.type": name})
    assert log_config(settings, current, "t").compression == codec


def test_changed_topic_configs_apply_to_open_logs(manager: LogManager) -> None:
    before = image(topic("t", b"1"))
    log = open_log(manager, before)
    after = apply(before, ConfigChanged("topics", "t", {"retention.ms": "5"}))
    manager.follow(before, after)
    assert log.config.retention_ms == 5


def test_default_broker_configs_apply_to_open_logs(manager: LogManager) -> None:
    before = image(topic("t", b"1"))
    log = open_log(manager, before)
    assert log.config.retention_ms != 6
    after = apply(before, ConfigChanged("brokers", "<default>", {"log.retention.ms": "6"}))
    manager.follow(before, after)
    assert log.config.retention_ms == 6


def test_logs_of_deleted_topic_are_removed(
    manager: LogManager, tmp_path: Path, batch: MakeBatch
) -> None:
    before = image(topic("t", b"1"), topic("u", b"2"))
    open_log(manager, before).append(batch(0), now_ms=NOW_MS)
    other_log = open_log(manager, before, "u")
    recreated = image(topic("t", b"3"), topic("u", b"2"))
    manager.follow(before, recreated)
    assert [log for _, log in manager.items()] == [other_log]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["u-0"]
    assert open_log(manager, recreated).log_end_offset == 0


def test_log_of_earlier_topic_with_same_name_becomes_stray(
    manager: LogManager, tmp_path: Path, settings: Settings, batch: MakeBatch
) -> None:
    open_log(manager, image(topic("t", b"1"))).append(batch(0), now_ms=NOW_MS)
    manager.close(now_ms=NOW_MS)
    assert open_log(manager, image(topic("t", b"2"))).log_end_offset == 0
    assert list_deleted(tmp_path) == []
    assert sum(path.name.endswith("-stray") for path in tmp_path.iterdir()) == 1


def test_recovery_opens_known_logs_and_keeps_unknown_ones_as_strays(
    manager: LogManager, tmp_path: Path, batch: MakeBatch, caplog: pytest.LogCaptureFixture
) -> None:
    current = image(topic("t", b"1"), topic("u", b"2"))
    open_log(manager, current).append(batch(0, 1), now_ms=NOW_MS)
    open_log(manager, current, "u")
    manager.close(now_ms=NOW_MS)
    for other in ("t-1", "gone-1", "photos-2024", "x-0.0123-delete", "notes"):
        (tmp_path / other).mkdir()
    (tmp_path / "meta.properties").touch()
    (tmp_path / "t-2").symlink_to(tmp_path / "notes")
    (tmp_path / "t-4").touch()
    manager.recover(image(topic("t", b"1")), now_ms=NOW_MS)
    ((key, log),) = manager.items()
    assert (key, log.log_end_offset, log.opened_clean) == (("t", 0), 2, True)
    left = sorted(path.name for path in tmp_path.iterdir())
    (stray,) = (name for name in left if name.endswith("-stray"))
    left.remove(stray)
    assert stray.startswith("u-0.")
    assert left == [
        "gone-1",
        "meta.properties",
        "notes",
        "photos-2024",
        "t-0",
        "t-1",
        "t-2",
        "t-4",
        "x-0.0123-delete",
    ]
    warned = [record.fields["path"] for record in caplog.records]  # type: ignore[attr-defined]
    names = ["photos-2024", "t-2", "t-4", "u-0"]
    assert warned == [str(tmp_path / name) for name in names]


def test_recovery_continues_when_a_stray_cannot_be_renamed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: MakeBatch
) -> None:
    failures: list[tuple[str, int | None]] = []
    manager = LogManager(
        tmp_path,
        settings,
        lambda *_: True,
        SegmentFiles(),
        on_failure=lambda path, error: failures.append((path, error.errno)),
    )
    current = image(topic("a", b"1"), topic("b", b"2"))
    open_log(manager, current, "a")
    open_log(manager, current, "b").append(batch(0), now_ms=NOW_MS)
    manager.close(now_ms=NOW_MS)

    def refuse(*_: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as context:
        context.setattr("minibroker.broker.log.paths.os.rename", refuse)
        manager.recover(image(topic("b", b"2")), now_ms=NOW_MS)
    assert failures == [(str(tmp_path / "a-0"), errno.EROFS)]
    assert [key for key, _ in manager.items()] == [("b", 0)]
    manager.close(now_ms=NOW_MS)


def many_logs(
    folder: Path, settings: Settings, batch: MakeBatch, **options: Any
) -> tuple[LogManager, Image]:
    """Logs with a record each, more than files may be open."""
    manager = LogManager(folder, settings, lambda *_: True, SegmentFiles(limit=16), **options)
    current = image(topic("t", b"1", partitions=100))
    for index in range(100):
        log = manager.get(current, "t", index, now_ms=NOW_MS)
        assert log is not None
        log.append(batch(0), now_ms=NOW_MS)
    return manager, current


def test_many_logs_are_closed_at_a_time_and_cleanly(
    tmp_path: Path, settings: Settings, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, current = many_logs(tmp_path, settings, batch)
    close, all_close = Log.close, threading.Barrier(CLOSING_THREADS)

    def close_with_others(log: Log, *, now_ms: int) -> None:
        if log.directory.endswith(tuple(f"t-{number}" for number in range(CLOSING_THREADS))):
            all_close.wait(60)
        close(log, now_ms=now_ms)

    with monkeypatch.context() as context:
        context.setattr(Log, "close", close_with_others)
        assert manager.close(now_ms=NOW_MS) == []
    again = LogManager(tmp_path, settings, lambda *_: True, SegmentFiles())
    for index in range(100):
        log = again.get(current, "t", index, now_ms=NOW_MS)
        assert log is not None
        assert (log.opened_clean, log.log_end_offset) == (True, 1)
    again.abandon()


def test_failures_of_logs_that_are_closed_are_reported_in_the_same_thread(
    tmp_path: Path, settings: Settings, batch: MakeBatch
) -> None:
    failures: list[tuple[str, int]] = []
    manager, _ = many_logs(
        tmp_path,
        settings,
        batch,
        on_failure=lambda path, _: failures.append((path, threading.get_ident())),
    )
    shutil.rmtree(tmp_path / "t-7")
    [error] = manager.close(now_ms=NOW_MS)
    assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert failures == [(str(tmp_path / "t-7"), threading.get_ident())]


def test_recovery_completes_interrupted_removal(
    manager: LogManager, tmp_path: Path, batch: MakeBatch
) -> None:
    open_log(manager, image(topic("t", b"1"))).append(batch(0), now_ms=NOW_MS)
    ((_, log),) = manager.items()
    log.abandon()
    rename_directory(log.directory)
    assert len(list_deleted(tmp_path)) == 1
    manager.recover(image(), now_ms=NOW_MS)
    assert list(tmp_path.iterdir()) == []


def test_directory_with_foreign_files_is_rejected(manager: LogManager, tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "holiday.jpg").touch()
    with pytest.raises(LogError, match="was not created by a broker"):
        open_log(manager, image(topic("t", b"1")))
    assert [path.name for path in (tmp_path / "t-0").iterdir()] == ["holiday.jpg"]


def test_symbolic_link_is_rejected_as_log_directory(manager: LogManager, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "t-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LogError, match="is a symbolic link"):
        open_log(manager, image(topic("t", b"1")))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_retention_applies_to_every_log(manager: LogManager, batch: MakeBatch) -> None:
    current = image(topic("t", b"1"), topic("u", b"2"), config={"retention.ms": "1000"})
    logs = [open_log(manager, current, name) for name in ("t", "u")]
    for log in logs:
        log.append(batch(0), now_ms=NOW_MS)
    manager.apply_retention(now_ms=NOW_MS + 2000)
    assert [log.log_start_offset for log in logs] == [1, 1]


def test_unusable_directory_is_kafka_storage_error(manager: LogManager, tmp_path: Path) -> None:
    (tmp_path / "t-0").write_text("a file where a directory should be")
    with pytest.raises(LogError, match="KAFKA_STORAGE_ERROR"):
        open_log(manager, image(topic("t", b"1")))


def test_retention_continues_with_other_logs_if_one_fails(
    manager: LogManager, batch: MakeBatch
) -> None:
    current = image(topic("t", b"1"), topic("u", b"2"), config={"retention.ms": "1000"})
    bad, good = (open_log(manager, current, name) for name in ("t", "u"))
    for log in (bad, good):
        log.append(batch(0), now_ms=NOW_MS)
    shutil.rmtree(bad.directory)
    (error,) = manager.apply_retention(now_ms=NOW_MS + 2000)
    assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "t-0" in error.text
    assert good.log_start_offset == 1


@pytest.mark.parametrize("call", ["rename", "unlink", "scandir"])
def test_deleted_log_that_cannot_be_removed_is_removed_later(
    manager: LogManager,
    tmp_path: Path,
    batch: MakeBatch,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    before = image(topic("t", b"1"), topic("u", b"2"))
    open_log(manager, before).append(batch(0), now_ms=NOW_MS)
    open_log(manager, before, "u")
    open_before = open_below(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    after = image(topic("u", b"2"))
    with monkeypatch.context() as context:
        context.setattr(os, call, fail)
        manager.follow(before, after)
        assert open_below(tmp_path) == open_before - 1
        manager.apply_retention(now_ms=NOW_MS)
        assert len(os.listdir(tmp_path)) == 2
    manager.apply_retention(now_ms=NOW_MS)
    assert [path.name for path in tmp_path.iterdir()] == ["u-0"]


def test_recreated_topic_waits_until_deleted_log_is_renamed(
    manager: LogManager, tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, recreated = image(topic("t", b"1")), image(topic("t", b"2"))
    open_log(manager, before).append(batch(0), now_ms=NOW_MS)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as context:
        context.setattr(os, "rename", fail)
        manager.follow(before, recreated)
        with pytest.raises(LogError, match="can't be opened: Input/output error"):
            open_log(manager, recreated)
    assert open_log(manager, recreated).log_end_offset == 0
    assert [path.name for path in tmp_path.iterdir()] == ["t-0"]


def test_deleted_topic_whose_log_could_not_be_opened_leaves_no_directory(
    manager: LogManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = image(topic("t", b"1", 3))
    open_log(manager, current)
    manager.close(now_ms=NOW_MS)
    for others in ("t-1", "t-2"):
        (tmp_path / others).mkdir()
    write_topic_id(str(tmp_path / "t-1"), b"1" * 16)  # of another worker
    write_topic_id(str(tmp_path / "t-2"), b"2" * 16)  # of another topic
    manager.follow(current, Image())
    assert sorted(os.listdir(tmp_path)) == ["t-1", "t-2"]


def test_deletion_does_not_follow_symbolic_link(manager: LogManager, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    write_topic_id(str(tmp_path / "elsewhere"), b"1" * 16)
    (tmp_path / "t-0").symlink_to("elsewhere")
    manager.follow(image(topic("t", b"1")), Image())
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "t-0"]


def test_new_directory_is_removed_if_topic_id_cannot_be_written(
    manager: LogManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(LogError) as raised:
        open_log(manager, image(topic("t", b"1")))
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert os.listdir(tmp_path) == []
    (tmp_path / "t-0").mkdir()
    with pytest.raises(LogError):
        open_log(manager, image(topic("t", b"1")))
    assert os.listdir(tmp_path / "t-0") == []


def test_saved_logs_are_restored_and_others_are_removed(
    manager: LogManager, tmp_path: Path, batch: MakeBatch
) -> None:
    current = image(topic("t", b"1"), topic("u", b"2"), topic("v", b"3"), topic("w", b"4"))
    for name in ("t", "u", "w"):
        open_log(manager, current, name).append(batch(), now_ms=NOW_MS)
    foreign = tmp_path / "t-1"  # Another worker's.
    foreign.mkdir()
    saved = tmp_path / "saved"
    saved.mkdir()
    assert manager.save(saved, "s").partitions == 3
    unchanged, grown, rolled = (open_log(manager, current, name) for name in "tuw")
    for _ in range(2):
        for name in "uvw":
            open_log(manager, current, name).append(batch(), now_ms=NOW_MS)
        open_log(manager, current, "w").roll(now_ms=NOW_MS)
        manager.restore(saved, "s")
        recovered = sorted(manager.recover(current, now_ms=NOW_MS))
        assert recovered == [("t", 0), ("u", 0), ("w", 0)]
        manager.note_saved("s")
        assert open_log(manager, current, "t") is unchanged
        assert open_log(manager, current, "u") is grown
        assert open_log(manager, current, "w") is not rolled
        assert [open_log(manager, current, name).log_end_offset for name in "tuw"] == [1, 1, 1]
    assert foreign.is_dir()


def test_logs_of_an_earlier_process_are_restored(
    manager: LogManager, settings: Settings, tmp_path: Path, batch: MakeBatch
) -> None:
    current = image(topic("t", b"1"))
    open_log(manager, current).append(batch(), now_ms=NOW_MS)
    saved = tmp_path / "saved"
    saved.mkdir()
    manager.save(saved, "s")
    manager.abandon()
    again = LogManager(tmp_path, settings, lambda *_: True, SegmentFiles())
    log = open_log(again, current)
    again.restore(saved, "s")
    assert not log.is_open
    again.recover(current, now_ms=NOW_MS)
    assert open_log(again, current).log_end_offset == 1
    again.abandon()


def test_log_that_is_not_open_is_not_left_out_of_a_copy(
    manager: LogManager, tmp_path: Path
) -> None:
    (tmp_path / "t-0").mkdir()
    write_topic_id(str(tmp_path / "t-0"), b"1" * 16)
    with pytest.raises(LogError, match="t-0 is not open"):
        manager.save(tmp_path, "s")


def test_states_of_few_snapshots_are_kept(manager: LogManager, batch: MakeBatch) -> None:
    open_log(manager, image(topic("t", b"1"))).append(batch(), now_ms=NOW_MS)
    for number in range(KNOWN_SNAPSHOTS_MAX + 3):
        manager.note_saved(str(number))
    assert len(manager._saved) == KNOWN_SNAPSHOTS_MAX
    assert "0" not in manager._saved


OpenLog = Callable[..., Log]


def read(log: Log) -> list[bytes]:
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20)
        assert piece is not None
        found.append(piece.load())
        offset = log.next_segment_offset(offset)
    return found


def state(log: Log) -> tuple[object, ...]:
    return (
        read(log),
        log.log_start_offset,
        log.log_end_offset,
        log.segments.base_offsets,
        [segment.max_timestamp for segment in log.segments],
        log.leader_epochs.entries,
        dict(log.producers.producers),
        log.max_timestamp(),
        log.offset_for_time(NOW_MS + 3),
    )


def give_up(log: Log) -> None:
    """Remove a log's directory, as a worker does before a return."""
    log.abandon()
    directory = Path(log.directory)
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()


def abort_transaction(log: Log, producer_id: int) -> None:
    marker = EndTransactionMarker(False, 0)
    log.append_marker(producer_id, 0, marker, transaction_version=1, now_ms=NOW_MS)


@pytest.fixture
def fill(batch: MakeBatch) -> Callable[..., None]:
    def append(log: Log, count: int, leader_epoch: int = 0, **options: Any) -> None:
        for _ in range(count):
            after_ms = log.log_end_offset
            records = batch(after_ms, after_ms, **options)
            log.append(records, now_ms=NOW_MS + after_ms, leader_epoch=leader_epoch)

    return append


def test_restored_log_equals_the_saved_one_and_needs_no_recovery(
    tmp_path: Path, open_log: OpenLog, fill: Callable[..., None]
) -> None:
    log = open_log(segment_bytes=500)
    fill(log, 20)
    abort_transaction(log, 7)
    log.delete_records(3)
    fill(log, 1, leader_epoch=4)
    before = state(log)
    saved = str(tmp_path / "saved")
    save_log(log, saved)
    for _ in range(3):
        fill(log, 9)
        log.delete_records(10)
        log.apply_retention(now_ms=NOW_MS)
        give_up(log)
        restore_log(saved, str(tmp_path / "t-0"))
        log = open_log(segment_bytes=500)
        assert log.opened_clean
        assert state(log) == before


def test_copies_that_share_records_do_not_change_each_other(
    tmp_path: Path, open_log: OpenLog, fill: Callable[..., None]
) -> None:
    log = open_log(segment_bytes=500)
    states = {}
    for name in ("a", "b", "c", "d"):
        states[name] = state(log)
        save_log(log, str(tmp_path / name))
        if name == "b":
            log.roll(now_ms=NOW_MS)
        else:
            fill(log, 2)
    for name in "abcddcbaacbd":
        fill(log, 3, value=name.encode())
        give_up(log)
        restore_log(str(tmp_path / name), str(tmp_path / "t-0"))
        log = open_log(segment_bytes=500)
        assert state(log) == states[name], name


@pytest.fixture
def begin_transaction(batch: MakeBatch) -> Callable[[Log], None]:
    def begin(log: Log) -> None:
        last = log.producers.producers.get(7)
        sequence = 0 if last is None else last.last_sequence + 1
        sequences = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        records = batch(0, transactional=True, **sequences)
        guard = log.producers.verifications.begin(7, sequence, 0, adds=False, now_ms=NOW_MS)
        prepared = prepare_batch(records, log.config, now_ms=NOW_MS, origin=Origin.CLIENT)
        log.append_prepared(prepared, now_ms=NOW_MS, guard=guard)

    return begin


def test_aborted_transactions_are_restored(
    tmp_path: Path, open_log: OpenLog, begin_transaction: Callable[[Log], None]
) -> None:
    log = open_log()
    begin_transaction(log)
    abort_transaction(log, 7)
    _, before = log.read_committed(0, 1000, log.log_end_offset)
    save_log(log, str(tmp_path / "saved"))
    give_up(log)
    restore_log(str(tmp_path / "saved"), str(tmp_path / "t-0"))
    log = open_log()
    assert log.read_committed(0, 1000, log.log_end_offset)[1] == before
    assert len(before) == 1


@pytest.fixture
def saved_log(tmp_path: Path, open_log: OpenLog, fill: Callable[..., None]) -> SavedState:
    """A log of two segments with a producer and an aborted transaction, just after its copy."""
    log = open_log(index_interval_bytes=1)
    fill(log, 2)
    log.roll(now_ms=NOW_MS)
    fill(log, 3)
    fill(log, 1, producer_id=8, producer_epoch=0, base_sequence=0)
    abort_transaction(log, 7)
    log.flush(now_ms=NOW_MS)
    save_log(log, str(tmp_path / "saved"))
    return saved_state(log)


def test_log_that_has_grown_is_truncated(
    saved_log: SavedState, tmp_path: Path, open_log: OpenLog, fill: Callable[..., None]
) -> None:
    log = saved_log.log
    before = state(log)
    for is_flushed in (False, True):
        fill(log, 4)
        fill(log, 1, producer_id=9, producer_epoch=0, base_sequence=0)
        abort_transaction(log, 8)
        if is_flushed:
            log.flush(now_ms=NOW_MS)
        assert return_to(saved_log, log)
        assert state(log) == before
        assert saved_state(log) == saved_log
    fill(log, 1, value=b"later")
    after = state(log)
    log.close(now_ms=NOW_MS)
    again = open_log(index_interval_bytes=1)
    assert again.opened_clean
    assert state(again) == after
    again.abandon()


@pytest.mark.parametrize("is_flushed", [False, True])
def test_truncated_log_is_recovered_after_a_crash(
    saved_log: SavedState, open_log: OpenLog, fill: Callable[..., None], is_flushed: bool
) -> None:
    log = saved_log.log
    before = state(log)
    fill(log, 9)
    if is_flushed:
        log.flush(now_ms=NOW_MS)
    assert return_to(saved_log, log)
    log.abandon()
    assert state(open_log(index_interval_bytes=1)) == before


def test_truncated_log_reads_the_entries_of_aborted_transactions_that_are_left(
    tmp_path: Path, open_log: OpenLog, begin_transaction: Callable[[Log], None]
) -> None:
    log = open_log()
    begin_transaction(log)
    abort_transaction(log, 7)
    save_log(log, str(tmp_path / "saved"))
    saved = saved_state(log)
    end = log.log_end_offset
    before = log.read_committed(0, 1000, end)
    begin_transaction(log)
    abort_transaction(log, 7)
    log.flush(now_ms=NOW_MS)
    assert len(log.read_committed(0, 1000, log.log_end_offset)[1]) == 2
    assert return_to(saved, log)
    assert log.read_committed(0, 1000, end) == before
    log.close(now_ms=NOW_MS)
    assert open_log().read_committed(0, 1000, end) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.roll(now_ms=NOW_MS),
        lambda log: log.delete_records(1),
        lambda log: log.assign_leader_epoch(9, log.log_end_offset),
        Log.abandon,
    ],
    ids=["rolled", "shortened", "new leader epoch", "closed"],
)
def test_log_that_has_changed_otherwise_is_not_truncated(
    saved_log: SavedState, fill: Callable[..., None], change: Callable[[Log], None]
) -> None:
    log = saved_log.log
    fill(log, 1)
    end = log.log_end_offset
    change(log)
    assert not return_to(saved_log, log)
    assert log.log_end_offset == end


def test_records_that_another_copy_shares_are_not_truncated(
    saved_log: SavedState, tmp_path: Path, fill: Callable[..., None]
) -> None:
    log = saved_log.log
    fill(log, 1)
    save_log(log, str(tmp_path / "later"))
    fill(log, 1)
    assert not return_to(saved_log, log)


def test_log_without_its_file_is_not_truncated(
    saved_log: SavedState, fill: Callable[..., None]
) -> None:
    log = saved_log.log
    fill(log, 1)
    log.segments.active.close()
    assert not return_to(saved_log, log)


def test_expired_producers_return(saved_log: SavedState) -> None:
    log = saved_log.log
    before = dict(log.producers.producers)
    log.expire_producers(now_ms=NOW_MS + 10**10)
    assert not log.producers.producers
    assert return_to(saved_log, log)
    assert log.producers.producers == before
