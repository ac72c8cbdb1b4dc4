"""Groups of every type, with real clients, for SOAK_S seconds: what the broker keeps stays bounded.

Owns the settings, the samples and the bounds. Segments of internal topics are so small that even
the short run of CI fills several of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition

from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.processes import resident_bytes, tree
from system_tests.harness.waiting import wait_until
from system_tests.soak.members import Worker, working_members

SECONDS: Final = float(os.environ.get("SOAK_S") or 8)
SETTLING_S: Final = 600
SAMPLES: Final = 40
OFFSETS, SHARE_STATES = "__consumer_offsets", "__share_group_state"
SEGMENT_BYTES: Final = 16 * 1024
LOG_BYTES_MAX: Final = 16 * SEGMENT_BYTES
"""The most that an internal topic may have on disk, where one partition is all it has."""
GROWTH_BYTES_MAX: Final = 24 * 1024 * 1024
"""How much more memory the broker may have at the end than after a quarter of the run."""
SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": str(SEGMENT_BYTES),
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.segment.bytes": str(SEGMENT_BYTES),
    "log.segment.bytes": str(1024 * 1024),
    "log.retention.bytes": str(2 * 1024 * 1024),
    "log.initial.task.delay.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
    # By default, removed files stay for a minute and tombstones for a day.
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.delete.retention.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "200",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
}

pytestmark = [
    pytest.mark.minibroker,
    pytest.mark.java,
    pytest.mark.alone,
    pytest.mark.timeout(2 * SECONDS + SETTLING_S),
]


class Sample(NamedTuple):
    """What the broker has, in bytes."""

    memory: int
    offsets: int
    share_states: int

    def __str__(self) -> str:
        return f"{self.memory / 2**20:.1f} MiB, {self.offsets} and {self.share_states} bytes"


def log_bytes(folder: Path, topic: str) -> int:
    """The size of the segments of a topic's only partition."""
    total = 0
    for file in (folder / f"{topic}-0").glob("*.log"):
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def sample(broker: RunningBroker) -> Sample:
    assert broker.data_dir is not None
    return Sample(
        resident_bytes(tree(broker.pid)),
        log_bytes(broker.data_dir, OFFSETS),
        log_bytes(broker.data_dir, SHARE_STATES),
    )


def records_written(broker: RunningBroker, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "none"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0))
        return int(end)
    finally:
        consumer.close()


def until_all_work_on(workers: list[Worker]) -> None:
    """Wait until each worker has done more than now."""
    before = [worker.done for worker in workers]

    def have_worked_on() -> bool:
        for worker in workers:
            worker.check()
        return all(worker.done > done for worker, done in zip(workers, before, strict=True))

    wait_until(have_worked_on, "each client to work on")


@pytest.fixture
def broker(memory_folder: Path) -> Iterator[RunningBroker]:
    with start_minibroker(data_dir=memory_folder / "soak", settings=SETTINGS) as running:
        yield running


def test_memory_and_internal_topics_stay_bounded(broker: RunningBroker, tmp_path: Path) -> None:
    samples: list[Sample] = []
    with working_members(broker, tmp_path) as workers:
        until_all_work_on(workers)
        pause = threading.Event()
        for number in range(SAMPLES + 1):
            samples.append(sample(broker))
            print(f"{number * SECONDS / SAMPLES:.0f} s: {samples[-1]}", flush=True)
            pause.wait(SECONDS / SAMPLES)
            for worker in workers:
                worker.check()
        until_all_work_on(workers)
        for worker in workers:
            print(f"{worker.name}: {worker.done} records")
        for topic in (OFFSETS, SHARE_STATES):
            print(f"{topic}: {records_written(broker, topic)} records were written")
    settled = samples[SAMPLES // 4]
    assert samples[-1].memory - settled.memory < GROWTH_BYTES_MAX
    for each in islice(samples, SAMPLES // 4, None):
        assert each.offsets < LOG_BYTES_MAX
        assert each.share_states < LOG_BYTES_MAX
    assert "Traceback" not in broker.printed()
