"""Records that are not delivered again are in the dead-letter queue, at a whole broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.metadata.image import partition_owner
from minibroker.broker.metrics.definitions import SHARE_DEAD_LETTERS
from minibroker.broker.roles import io_worker
from minibroker.broker.shares.letter_writer import LetterWriter, WriteOutcome
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import describe_share_group_offsets as describing
from minibroker_protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records
from tests.broker.apis.share_client import ShareMember, ShareWorld, acquired, errors, share_world

ACCEPT, RELEASE, REJECT = 1, 2, 3
QUEUE: Final = "dlq.g"
ENABLED: Final = "errors.deadletterqueue.group.enable"
CREATES: Final = "errors.deadletterqueue.auto.create.topics.enable=true"


class QueueWorld:
    """A group g with one member, and its dead-letter queue."""

    def __init__(self, world: ShareWorld, member: ShareMember) -> None:
        self.world = world
        self.member = member

    async def produce(self, *records: Record, **options: Any) -> None:
        """Append one batch to partition 1 of the topic t."""
        data = PartitionProduceData(index=1, records=build_batch(records, **options))
        topics = [TopicProduceData(name="t", partition_data=[data])]
        await self.world.client.ask(ProduceRequest(acks=1, topic_data=topics), 9)

    async def wait_finished(self, index: int = 0) -> None:
        """Wait until all records of a partition are finished."""
        topic = describing.DescribeShareGroupOffsetsRequestTopic(topic_name="t", partitions=[index])
        group = describing.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=[topic])
        request = describing.DescribeShareGroupOffsetsRequest(groups=[group])
        lag = -1
        for _ in range(200):
            answer = await self.world.client.ask(request, 1)
            lag = answer.groups[0].topics[0].partitions[0].lag
            if lag == 0:
                return
            await trio.sleep(0.5)
        raise AssertionError(f"the lag is {lag}")

    async def letters(self, index: int = 0, count: int = 1) -> list[Record]:
        """The records of a partition of the queue, when there are so many."""
        found: list[Record] = []
        for _ in range(100):
            partition = FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
            topic = FetchTopic(topic=QUEUE, partitions=[partition])
            request = FetchRequest(max_bytes=1 << 20, min_bytes=0, max_wait_ms=0, topics=[topic])
            answer = await self.world.client.ask(request, 12)
            (data,) = answer.responses[0].partitions
            raw = memoryview(data.records or b"")
            found = [
                record
                for at, header in iter_batches(raw)
                for record in iter_records(raw[at : at + header.size])
            ]
            if len(found) >= count:
                return found
            await trio.sleep(0.5)
        return found


@asynccontextmanager
async def queue_world(
    folder: Path, clock: MockClock, *pairs: str, partitions: int = 1, **configs: str
) -> AsyncIterator[QueueWorld]:
    """Group g has the queue; without ``partitions`` the topic does not exist."""
    async with share_world(folder, clock, *pairs) as world:
        if partitions:
            await create_queue(world, partitions)
        await world.configure(errors_deadletterqueue_topic_name=QUEUE, **configs)
        member = await world.member("m")
        await member.join()
        yield QueueWorld(world, member)


async def create_queue(world: ShareWorld, partitions: int = 1, **configs: str) -> None:
    """Create the topic; share groups may use it unless its configs say otherwise."""
    wanted = {ENABLED: "true", **{name.replace("_", "."): at for name, at in configs.items()}}
    topic = CreatableTopic(
        name=QUEUE,
        num_partitions=partitions,
        replication_factor=1,
        configs=[CreatableTopicConfig(name=name, value=at) for name, at in wanted.items()],
    )
    answer = await world.client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=9000), 5)
    assert answer.topics[0].error_code == 0


def headers(record: Record) -> dict[str, str]:
    return {
        name.removeprefix("__dlq.errors."): (value or b"").decode()
        for name, value in record.headers
    }


def letter(offset: int, deliveries: int, message: str, partition: int = 0) -> dict[str, str]:
    return {
        "topic": "t",
        "partition": str(partition),
        "offset": str(offset),
        "group": "g",
        "delivery.count": str(deliveries),
        "message": message,
    }


REJECTED: Final = "Offset rejected by client."
EXCEEDED: Final = "Offset delivery count exceeded the threshold."


async def test_rejected_record_is_in_the_queue(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with queue_world(tmp_path, autojump_clock) as world:
        await world.world.produce(0, 3)
        await world.member.fetch(0)
        answer = await world.member.acknowledge((0, 0, 2, (ACCEPT, REJECT, ACCEPT)))
        assert errors(answer) == {0: 0}
        (found,) = await world.letters()
        assert (found.key, found.value) == (None, None)
        assert headers(found) == letter(1, 1, REJECTED)
        await world.wait_finished()


async def test_record_with_too_many_deliveries_is_in_the_queue(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with queue_world(tmp_path, autojump_clock, delivery_count_limit="2") as world:
        member = world.member
        await world.world.produce(0, 2)
        await member.fetch(0)
        await member.acknowledge((0, 0, 1, (RELEASE, ACCEPT)))
        assert acquired(await member.fetch(0)) == {0: [(0, 0, 2)]}
        assert await world.letters(count=0) == []
        await member.acknowledge((0, 0, 0, (RELEASE,)))
        (found,) = await world.letters()
        assert headers(found) == letter(0, 2, EXCEEDED)
        await world.wait_finished()
        assert acquired(await member.fetch(0)) == {}


async def test_record_whose_last_lock_expires_is_in_the_queue(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with queue_world(tmp_path, autojump_clock, delivery_count_limit="2") as world:
        await world.world.produce(0, 2)
        await world.member.fetch(0)
        await trio.sleep(31)
        for _ in range(2):  # They are delivered one by one.
            await world.member.fetch(0)
            await trio.sleep(31)
        found = await world.letters(count=2)
        assert [headers(each) for each in found] == [letter(at, 2, EXCEEDED) for at in (0, 1)]


async def test_record_is_copied_to_the_queue(tmp_path: Path, autojump_clock: MockClock) -> None:
    copies = {"errors_deadletterqueue_copy_record_enable": "true"}
    async with queue_world(tmp_path, autojump_clock, partitions=3, **copies) as world:
        member = world.member
        own = (("h", b"1"), ("__dlq.errors.group", b"another"))
        records = [Record(0, 5, b"k%d" % at, b"v%d" % at, own) for at in range(3)]
        await world.produce(*records, compression=Compression.GZIP)
        await world.produce(Record(0, 5, None, None))
        await member.fetch(1)
        await member.acknowledge((1, 0, 3, (ACCEPT, REJECT, ACCEPT, REJECT)))
        first, second = await world.letters(1, count=2)
        assert (first.key, first.value) == (b"k1", b"v1")
        assert headers(first) == letter(1, 1, REJECTED, 1)
        assert (second.key, second.value) == (None, None)
        assert headers(second) == letter(3, 1, REJECTED, 1)
        await world.wait_finished(1)


async def test_letters_that_fill_several_batches_are_all_in_the_queue(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    copies = {"errors_deadletterqueue_copy_record_enable": "true"}
    async with queue_world(tmp_path, autojump_clock, partitions=0, **copies) as world:
        await create_queue(world.world, max_message_bytes="1000")
        records = [Record(0, 5, None, b"v" * size) for size in (300, 300, 2000, 300)]
        await world.produce(*records)
        await world.member.fetch(1)
        await world.member.acknowledge((1, 0, 3, (REJECT,)))
        found = await world.letters(count=4)
        assert [len(each.value or b"") for each in found] == [300, 300, 0, 300]
        assert [headers(each)["offset"] for each in found] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("creates", "config", "queue", "text"),
    [
        ("false", None, QUEUE, "DLQ topic does not exist and auto create is disabled"),
        ("false", {ENABLED: "false"}, QUEUE, "DLQ is not enabled on configured DLQ topic"),
        ("true", {}, "g.letters", "does not comply with the DLQ topic prefix"),
        ("true", None, "dlq.not/valid", "invalid"),
        ("true", {"max.message.bytes": "10"}, QUEUE, "max.message.bytes is 10"),
    ],
)
async def test_record_is_archived_without_a_queue_that_can_be_written(  # noqa: PLR0917
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    creates: str,
    config: dict[str, str] | None,
    queue: str,
    text: str,
) -> None:
    may_create = CREATES.replace("true", creates)
    async with queue_world(tmp_path, autojump_clock, may_create, partitions=0) as world:
        if config is not None:
            await create_queue(world.world, 1, **config)
        await world.world.configure(errors_deadletterqueue_topic_name=queue)
        await world.world.produce(0, 2)
        await world.member.fetch(0)
        await world.member.acknowledge((0, 0, 1, (REJECT, ACCEPT)))
        await world.wait_finished()
        assert "proceeding to ARCHIVED regardless" in caplog.text
        assert text in caplog.text


async def test_queue_is_created_when_it_is_needed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with queue_world(tmp_path, autojump_clock, CREATES, partitions=0) as world:
        await world.world.produce(0, 1)
        await world.member.fetch(0)
        await world.member.acknowledge((0, 0, 0, (REJECT,)))
        await world.wait_finished()
        assert headers((await world.letters())[0]) == letter(0, 1, REJECTED)
        resource = DescribeConfigsResource(
            resource_type=2,
            resource_name=QUEUE,
            configuration_keys=[ENABLED, "message.timestamp.type"],
        )
        described = await world.world.client.ask(DescribeConfigsRequest(resources=[resource]), 4)
        found = {
            each.name: (each.value, each.config_source) for each in described.results[0].configs
        }
        assert found == {ENABLED: ("true", 1), "message.timestamp.type": ("CreateTime", 1)}


async def test_kill_before_the_write_does_not_lose_the_record(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await trio.sleep_forever()

    async with queue_world(tmp_path, autojump_clock) as world:
        member = world.member
        await world.world.produce(0, 3)
        await member.fetch(0)
        with monkeypatch.context() as patched:
            patched.setattr(LetterWriter, "_write", never)
            await member.acknowledge((0, 0, 2, (REJECT, RELEASE, ACCEPT)))
            world.world.broker.kill("worker-0")
            await trio.sleep(5)
        world.world.client = await world.world.connect()
        assert await world.letters(count=0) == []
        again = await world.world.member("n")
        await again.join()
        assert acquired(await again.fetch(0)) == {0: [(1, 1, 2)]}
        (found,) = await world.letters()
        assert headers(found) == letter(0, 1, REJECTED)
        await again.acknowledge((0, 1, 1, (ACCEPT,)))
        await world.wait_finished()
        assert len(await world.letters()) == 1


async def test_records_that_a_leaving_member_rejects_are_in_the_queue_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with queue_world(tmp_path, autojump_clock, CREATES, partitions=0) as world:
        await world.world.produce(0, 2)
        await world.member.fetch(0)
        await world.member.acknowledge((0, 0, 1, (REJECT,)), epoch=-1)
        await world.wait_finished()
        assert [headers(each) for each in await world.letters(count=2)] == [
            letter(at, 1, REJECTED) for at in (0, 1)
        ]


async def test_feature_level_without_queues_archives_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with queue_world(tmp_path, autojump_clock) as world:
        update = FeatureUpdateKey(feature="share.version", max_version_level=1, upgrade_type=2)
        answer = await world.world.client.ask(UpdateFeaturesRequest(feature_updates=[update]), 1)
        assert answer.error_code == 0
        await world.world.produce(0, 2)
        await world.member.fetch(0)
        await world.member.acknowledge((0, 0, 1, (REJECT,)))
        await world.wait_finished()
        await trio.sleep(60)
        assert await world.letters(count=0) == []


async def test_queue_may_be_at_another_worker(tmp_path: Path, autojump_clock: MockClock) -> None:
    assert partition_owner("t", 0, workers=2) != partition_owner(QUEUE, 0, workers=2)
    async with queue_world(tmp_path, autojump_clock, "num.io.threads=2") as world:
        await world.world.produce(0, 2)
        await world.member.fetch(0)
        await world.member.acknowledge((0, 0, 1, (REJECT,)))
        found = [headers(each) for each in await world.letters(count=2)]
        assert found == [letter(at, 1, REJECTED) for at in (0, 1)]
        await world.wait_finished()


@pytest.mark.parametrize(("failures", "seconds"), [(2, 6.0), (5, 30.0)])
async def test_write_is_tried_again_while_it_may_succeed(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
    seconds: float,
) -> None:
    times: list[float] = []

    async def append(*_: object) -> WriteOutcome:
        times.append(trio.current_time())
        failed = len(times) <= failures
        return WriteOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER if failed else ErrorCode.NONE)

    monkeypatch.setattr(f"{io_worker.__name__}._Worker._append_letters", append)
    async with queue_world(tmp_path, autojump_clock) as world:
        await world.world.produce(0, 1)
        await world.member.fetch(0)
        await world.member.acknowledge((0, 0, 0, (REJECT,)))
        await world.wait_finished()
        assert len(times) == min(failures + 1, 5)
        assert times[-1] - times[0] == pytest.approx(seconds, rel=0.2)
        metrics = world.world.broker.environment("worker-0").metrics.snapshot()
        result = "written" if failures < 5 else "failed"
        assert [
            (labels, value)
            for (name, labels), value in metrics.gauges.items()
            if name == SHARE_DEAD_LETTERS.name
        ] == [(("g", result), 1)]
