"""Kafka's log cleaner and minibroker's leave the same batches of the same log.

Both brokers get the same batches in the same segments and compact them at the same moments. Logs
are compared after each compaction: offsets, sequences, attributes, records, aborted transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from minibroker_protocol.compression import Compression
from system_tests.harness.brokers import RunningBroker, start_kafka, start_minibroker
from system_tests.peers.compacted_topic import (
    CLEANER_SETTINGS,
    HOUR_MS,
    CompactedTopic,
    Contents,
    Pair,
)

pytestmark = [pytest.mark.minibroker, pytest.mark.java]


def pairs(value: str | None, *numbers: int) -> list[Pair]:
    """One record for each key, all with a value like this, or tombstones."""
    return [(f"k{number}", value and f"{value}{number}") for number in numbers]


def overwritten(topic: CompactedTopic) -> Iterator[Contents]:
    """Keys that are overwritten in the same batch, segment and other ones; all codecs."""
    for codec in Compression:
        topic.write(0, *pairs(codec.name, *range(10)), codec=codec)
        topic.write(0, *pairs("again", 3, 3, 4), codec=codec)
    topic.write(0, ("k11", ""), *pairs("only", 12))
    topic.write(2, *pairs("later", 0, 1, 2, 12), codec=Compression.ZSTD)
    topic.write(4, *pairs("active", 5))
    yield topic.contents()
    yield topic.compact()
    topic.write(6, *pairs("next", 5, 6))
    yield topic.compact()
    topic.write(8, *pairs("last", 1))
    yield topic.compact()


def deleted(topic: CompactedTopic) -> Iterator[Contents]:
    """Tombstones, some of them before a newer value."""
    topic.write(0, *pairs("value", *range(6)))
    topic.write(0, *pairs(None, 0, 1, 2), ("never", None), codec=Compression.GZIP)
    topic.write(0, *pairs("value", 2), *pairs(None, 3, 3))
    topic.write(2, *pairs("value", 0), *pairs(None, 4))
    topic.write(4, *pairs(None, 5))
    yield topic.contents()
    yield topic.compact()
    topic.write(6, *pairs("value", 9))
    yield topic.compact()
    topic.write(8, *pairs("value", 9))
    yield topic.compact()


def numbered(topic: CompactedTopic) -> Iterator[Contents]:
    """Batches with sequences of an idempotent producer, the last one of which has to stay."""
    topic.write(0, *pairs("a", 0, 1), idempotent=True)
    topic.write(0, *pairs("b", 0, 1, 2), idempotent=True)
    topic.write(0, *pairs("c", 0, 1, 2))
    topic.write(2, *pairs("active", 3))
    yield topic.contents()
    yield topic.compact()
    topic.write(4, *pairs("d", 2), idempotent=True)
    topic.write(6, *pairs("active", 2))
    yield topic.compact()


def committed_and_aborted(topic: CompactedTopic) -> Iterator[Contents]:
    """Transactions side by side, values and tombstones of aborted ones, and one that stays open."""
    topic.write_in("a", 0, *pairs("a", *range(5)))
    topic.end("a", commit=True)
    topic.write_in("b", 0, *pairs("b", 0, 1, 2))
    topic.write_in("a", 0, *pairs("a", 5), *pairs(None, 1))
    topic.write_in("b", 0, *pairs(None, 2), *pairs("b", 6))
    topic.end("a", commit=True)
    topic.end("b", commit=False)
    topic.write(0, *pairs("plain", 3))
    topic.write_in("a", 2, *pairs("a", 3, 4))
    topic.end("a", commit=True)
    topic.write_in("b", 4, *pairs("open", 0))
    topic.write(6, *pairs("plain", 5))
    yield topic.contents()
    yield topic.compact()
    topic.end("b", commit=True)
    topic.write(8, *pairs("plain", 7))
    yield topic.compact()
    topic.write(10, *pairs("plain", 8))
    yield topic.compact()
    topic.write(12, *pairs("plain", 8))
    yield topic.compact()


SCENARIOS = (overwritten, deleted, numbered, committed_and_aborted)
RETENTIONS_MS = (0, 24 * HOUR_MS)
"""Times for which tombstones and markers are kept; after the first one they go in the next run."""


@pytest.fixture(scope="module")
def brokers(
    kafka_libs: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningBroker, ...]]:
    """Yield Kafka and minibroker; the cleaners of both look for work all the time."""
    assert kafka_libs
    folder = tmp_path_factory.mktemp("compacted")
    with (
        start_kafka(folder / "kafka", settings=CLEANER_SETTINGS) as kafka,
        start_minibroker(data_dir=folder / "minibroker", settings=CLEANER_SETTINGS) as own,
    ):
        yield kafka, own


@pytest.mark.parametrize("retention_ms", RETENTIONS_MS, ids=["at once", "after a day"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_both_leave_the_same(
    brokers: tuple[RunningBroker, ...],
    fresh: Callable[[str], str],
    scenario: Callable[[CompactedTopic], Iterator[Contents]],
    retention_ms: int,
) -> None:
    name = fresh("compacted")
    with ExitStack() as stack:
        runs = []
        for broker in brokers:
            topic = CompactedTopic(broker, name, **{"delete.retention.ms": str(retention_ms)})
            stack.callback(topic.close)
            runs.append(scenario(topic))
        for number, (kafka, own) in enumerate(zip(*runs, strict=True)):
            missing = [batch for batch in kafka.batches if batch not in own.batches]
            left = [batch for batch in own.batches if batch not in kafka.batches]
            assert (missing, left) == ([], []), f"after {number} compactions"
            assert own == kafka, f"after {number} compactions"
