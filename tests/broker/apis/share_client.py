"""A member of a share group, as a client of a whole broker with a simulated clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio
from trio.testing import MockClock

from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from minibroker_protocol.messages import share_acknowledge as acknowledging
from minibroker_protocol.messages import share_fetch as fetching
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from minibroker_protocol.messages.share_fetch import ShareFetchRequest
from minibroker_protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from minibroker_protocol.records import Record, build_batch
from tests.simulation.client import SimulatedClient

GROUP_CONFIG: Final = 32
Ack = tuple[int, int, int, tuple[int, ...]]
"""Partition, first and last offset, types."""


class ShareMember:
    """One member with its connection and its share session."""

    def __init__(
        self, client: SimulatedClient, topic_id: bytes, member_id: str, group_id: str = "g"
    ) -> None:
        self.client = client
        self.topic_id = topic_id
        self.member_id = member_id
        self.group_id = group_id
        self.epoch = 0
        self.session_epoch = 0

    async def heartbeat(self, epoch: int | None = None, names: Sequence[str] | None = None) -> Any:
        """Send a heartbeat; keep the member's epoch."""
        request = ShareGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
            subscribed_topic_names=None if names is None else list(names),
        )
        response = await self.client.ask(request, 1)
        self.epoch = response.member_epoch
        return response

    async def join(self) -> list[int]:
        """Join the group with the topic t; return the assigned partitions."""
        return assigned(await self.heartbeat(0, ["t"]))

    async def fetch(
        self,
        *partitions: int,
        acks: Sequence[Ack] = (),
        epoch: int | None = None,
        version: int = 2,
        **fields: Any,
    ) -> Any:
        """Fetch partitions, which are added to the session."""
        at = {index: fetching.FetchPartition(partition_index=index) for index in partitions}
        for index, first, last, types in acks:
            at.setdefault(index, fetching.FetchPartition(partition_index=index))
            at[index].acknowledgement_batches.append(
                fetching.AcknowledgementBatch(
                    first_offset=first, last_offset=last, acknowledge_types=list(types)
                )
            )
        topic = fetching.FetchTopic(topic_id=self.topic_id, partitions=list(at.values()))
        sent = self.session_epoch if epoch is None else epoch
        request = ShareFetchRequest(
            **{
                "group_id": self.group_id,
                "member_id": self.member_id,
                "share_session_epoch": sent,
                "max_wait_ms": 0,
                "min_bytes": 1,
                "max_bytes": 1_000_000,
                "max_records": 500,
                "batch_size": 500,
                "topics": [topic] if at else [],
                **fields,
            }
        )
        response = await self.client.ask(request, version)
        if response.error_code == 0:
            self.session_epoch = 0 if sent == -1 else sent + 1
        return response

    async def acknowledge(
        self,
        *acks: Ack,
        epoch: int | None = None,
        renew: bool = False,
        nothing_of: Iterable[int] = (),
    ) -> Any:
        """Acknowledge records, and none of further partitions."""
        at = {
            index: acknowledging.AcknowledgePartition(partition_index=index) for index in nothing_of
        }
        for index, first, last, types in acks:
            partition = at.setdefault(
                index, acknowledging.AcknowledgePartition(partition_index=index)
            )
            partition.acknowledgement_batches.append(
                acknowledging.AcknowledgementBatch(
                    first_offset=first, last_offset=last, acknowledge_types=list(types)
                )
            )
        sent = self.session_epoch if epoch is None else epoch
        request = ShareAcknowledgeRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            share_session_epoch=sent,
            is_renew_ack=renew,
            topics=[
                acknowledging.AcknowledgeTopic(topic_id=self.topic_id, partitions=list(at.values()))
            ],
        )
        response = await self.client.ask(request, 2)
        if response.error_code == 0:
            self.session_epoch = 0 if sent == -1 else sent + 1
        return response


def assigned(response: Any) -> list[int]:
    """The assigned partitions of a heartbeat."""
    assert response.error_code == 0, response
    topics = () if response.assignment is None else response.assignment.topic_partitions
    return sorted(each for topic in topics for each in topic.partitions)


def acquired(response: Any) -> dict[int, list[tuple[int, int, int]]]:
    """First and last offset and delivery count of what a fetch has acquired, by partition."""
    assert response.error_code == 0, response
    return {
        partition.partition_index: [
            (each.first_offset, each.last_offset, each.delivery_count)
            for each in partition.acquired_records
        ]
        for topic in response.responses
        for partition in topic.partitions
        if partition.acquired_records
    }


def errors(response: Any) -> dict[int, int]:
    """Errors of partitions, of the acknowledgements of a fetch."""
    return {
        partition.partition_index: getattr(
            partition, "acknowledge_error_code", partition.error_code
        )
        for topic in response.responses
        for partition in topic.partitions
    }


class ShareWorld:
    """A broker with the topic t of two partitions, and its share groups."""

    def __init__(self, broker: TaskBroker, client: SimulatedClient, topic_id: bytes) -> None:
        self.broker = broker
        self.client = client
        self.topic_id = topic_id

    async def connect(self) -> SimulatedClient:
        return SimulatedClient(await self.broker.sources["PLAINTEXT"].connect())

    async def member(self, name: str, group_id: str = "g") -> ShareMember:
        return ShareMember(await self.connect(), self.topic_id, name, group_id)

    async def produce(self, index: int, count: int, *, batches: int = 1) -> None:
        for _ in range(batches):
            records = build_batch([Record(at, 1, None, b"v%d" % at) for at in range(count)])
            data = PartitionProduceData(index=index, records=records)
            topics = [TopicProduceData(name="t", partition_data=[data])]
            await self.client.ask(ProduceRequest(acks=1, topic_data=topics), 9)

    async def configure(self, group_id: str = "g", **configs: str) -> None:
        """Set configs of a share group, e.g. ``auto_offset_reset="earliest"``.

        Names that start with ``errors`` are those of dead-letter queues.
        """
        resource = AlterConfigsResource(
            resource_type=GROUP_CONFIG,
            resource_name=group_id,
            configs=[
                AlterableConfig(name=_config_name(name), value=value)
                for name, value in configs.items()
            ],
        )
        response = await self.client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert [each.error_code for each in response.responses] == [0], response


def _config_name(name: str) -> str:
    dotted = name.replace("_", ".")
    return dotted if dotted.startswith("errors.") else f"share.{dotted}"


@asynccontextmanager
async def share_world(
    folder: Path, clock: MockClock, *pairs: str, earliest: bool = True
) -> AsyncIterator[ShareWorld]:
    """A running broker; group g reads from the start unless not ``earliest``."""
    settings = Settings.from_sources(pairs=pairs)
    broker = TaskBroker(settings, folder, clock=SimulatedClock(clock), seed=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        client = SimulatedClient(await broker.sources["PLAINTEXT"].connect())
        topics = [CreatableTopic(name="t", num_partitions=2, replication_factor=1)]
        await client.ask(CreateTopicsRequest(topics=topics, timeout_ms=9000), 5)
        found = await client.ask(MetadataRequest(topics=None), 12)
        (topic_id,) = [topic.topic_id for topic in found.topics if topic.name == "t"]
        world = ShareWorld(broker, client, topic_id)
        if earliest:
            await world.configure(auto_offset_reset="earliest")
        yield world
        await broker.stop()
