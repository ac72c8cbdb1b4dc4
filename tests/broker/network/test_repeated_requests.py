"""A heartbeat that is repeated is recognized by its bytes, and has the effect of the first one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.metadata.image import Image
from minibroker.broker.network import direct_requests
from minibroker.broker.network.direct_requests import RepeatedRequests, _Repeated
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.share_group_describe import ShareGroupDescribeRequest
from minibroker_protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from minibroker_protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from minibroker_protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import RequestHeader
from tests.broker.network.one_broker import another, assert_single_step_changes_nothing, running
from tests.simulation.client import SimulatedClient

REQUEST: Final = b"request"
HOST: Final = "10.0.0.1"
IMAGE: Final = Image()


# The table of requests ----------------------------------------------------------------------------


def repeated(repeat: Callable[[], bool] = lambda: True, host: str = HOST) -> _Repeated:
    header = RequestHeader(68, 1, 7, "client")
    return _Repeated(host, header, repeat, (), b"\0\0\0\x06" + b"\0\0\0\x07" + b"ab")


def test_request_is_executed_again_with_the_same_bytes_host_and_image() -> None:
    table, executed = RepeatedRequests(), []
    known = repeated(lambda: not executed.append(1))  # type: ignore[func-returns-value]
    table.keep(REQUEST, IMAGE, known)
    assert table.execute(REQUEST + b"x", HOST, IMAGE) is None
    assert table.execute(REQUEST, "10.0.0.2", IMAGE) is None
    assert table.execute(REQUEST, HOST, Image()) is None
    assert executed == []
    assert table.execute(REQUEST, HOST, IMAGE) is known
    assert executed == [1]


def test_request_that_cannot_be_repeated_is_forgotten() -> None:
    table = RepeatedRequests()
    table.keep(REQUEST, IMAGE, repeated(lambda: False))
    assert table.execute(REQUEST, HOST, IMAGE) is None
    assert len(table) == 0


def test_requests_of_a_former_image_are_forgotten() -> None:
    table = RepeatedRequests()
    table.keep(b"1", IMAGE, repeated())
    table.keep(b"2", Image(), repeated())
    assert len(table) == 1


def test_number_of_known_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_requests, "REPEATS_MAX", 3)
    table = RepeatedRequests()
    for number in range(10):
        table.keep(b"%d" % number, IMAGE, repeated())
        assert 0 < len(table) <= 3
        assert table.execute(b"%d" % number, HOST, IMAGE) is not None


# Heartbeats ---------------------------------------------------------------------------------------


@pytest.fixture
def recognized(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The requests that were recognized."""
    found: list[bytes] = []
    execute = RepeatedRequests.execute

    def noted(table: RepeatedRequests, request: bytes, host: str, image: Image) -> Any:
        known = execute(table, request, host, image)
        if known is not None:
            found.append(request)
        return known

    monkeypatch.setattr(RepeatedRequests, "execute", noted)
    return found


class GroupMember:
    """A member that sends the heartbeats of its epoch, and reports what it was given once."""

    VERSION = 1

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self._report: dict[str, Any] = {}

    async def beat(self, client: SimulatedClient, **fields: Any) -> Any:
        report, self._report = self._report, {}
        response = await client.ask(self.heartbeat(**{**report, **fields}), self.VERSION)
        if response.error_code == 0:
            self.epoch = max(response.member_epoch, 0)
            self._report = self.report_of(response) if self.epoch else {}
        elif "member_epoch" not in fields:
            self.epoch = 0
        return response

    def report_of(self, response: Any) -> dict[str, Any]:
        """What the next heartbeat reports."""
        del response
        return {}

    def heartbeat(self, **fields: Any) -> Message:
        raise NotImplementedError


class ConsumerMember(GroupMember):
    DESCRIBE = partial(ConsumerGroupDescribeRequest, group_ids=["g"])

    def heartbeat(self, **fields: Any) -> Message:
        joins: dict[str, Any] = {
            "rebalance_timeout_ms": 30_000,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
        }
        known = {"group_id": "g", "member_id": self.name, "member_epoch": self.epoch}
        return ConsumerGroupHeartbeatRequest(**{**known, **({} if self.epoch else joins), **fields})

    def report_of(self, response: Any) -> dict[str, Any]:
        if response.assignment is None:
            return {}
        return {"topic_partitions": response.assignment.topic_partitions}


class ShareMember(GroupMember):
    DESCRIBE = partial(ShareGroupDescribeRequest, group_ids=["g"])

    def heartbeat(self, **fields: Any) -> Message:
        joins = {} if self.epoch else {"subscribed_topic_names": ["t"]}
        known = {"group_id": "g", "member_id": self.name, "member_epoch": self.epoch}
        return ShareGroupHeartbeatRequest(**{**known, **joins, **fields})


class StreamsMember(GroupMember):
    DESCRIBE = partial(StreamsGroupDescribeRequest, group_ids=["g"])

    def heartbeat(self, **fields: Any) -> Message:
        source = Subtopology(subtopology_id="0", source_topics=["t"])
        joins: dict[str, Any] = {
            "rebalance_timeout_ms": 30_000,
            "process_id": self.name,
            "topology": Topology(epoch=0, subtopologies=[source]),
            "active_tasks": [],
            "standby_tasks": [],
            "warmup_tasks": [],
        }
        known = {"group_id": "g", "member_id": self.name, "member_epoch": self.epoch}
        return StreamsGroupHeartbeatRequest(**{**known, **({} if self.epoch else joins), **fields})

    def report_of(self, response: Any) -> dict[str, Any]:
        if response.active_tasks is None:
            return {}
        kinds = "active_tasks", "standby_tasks", "warmup_tasks"
        return {kind: getattr(response, kind) for kind in kinds}


Kind = type[ConsumerMember] | type[ShareMember] | type[StreamsMember]
KINDS: Final = (ConsumerMember, ShareMember, StreamsMember)
GROUP_CONFIG = 32
SET = 0


def configured(kind: Kind, **values: int) -> Message:
    """A request that sets configs of the group."""
    name = {ConsumerMember: "consumer", ShareMember: "share", StreamsMember: "streams"}[kind]
    configs = [
        AlterableConfig(
            name=f"{name}.{each.replace('_', '.')}", config_operation=SET, value=str(value)
        )
        for each, value in values.items()
    ]
    resource = AlterConfigsResource(resource_type=GROUP_CONFIG, resource_name="g", configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource])


def created(name: str) -> Message:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
    return CreateTopicsRequest(topics=topics)


async def settle(client: SimulatedClient, *members: GroupMember) -> None:
    """Let members join, and send heartbeats until each is recognized."""
    for _ in range(12):
        for member in members:
            await member.beat(client)
        await trio.sleep(1)


@pytest.mark.parametrize("kind", KINDS)
async def test_repeated_heartbeat_is_recognized_until_something_changes(
    kind: Kind, tmp_path: Path, autojump_clock: MockClock, recognized: list[bytes]
) -> None:
    async def is_recognized(**fields: Any) -> bool:
        before = len(recognized)
        response = await member.beat(client, **fields)
        assert response.error_code == 0
        return len(recognized) > before

    async with running(tmp_path, autojump_clock, "combined") as client:
        member = kind("m")
        await settle(client, member)
        assert await is_recognized()
        assert not await is_recognized(rack_id="rack")
        assert not await is_recognized()  # The member has changed.
        assert await is_recognized()
        await client.ask(created("u"), 2)
        assert not await is_recognized()
        await client.ask(configured(kind, heartbeat_interval_ms=7_000), 1)
        await member.beat(client)
        assert (await member.beat(client)).heartbeat_interval_ms == 7_000
        assert await is_recognized()
        client.client_id = "other"
        assert not await is_recognized()
        await settle(client, member)
        assert await is_recognized()
        epoch = member.epoch
        await settle(client, member, kind("n"))
        assert member.epoch > epoch
        assert await is_recognized()
        known = member.heartbeat()
        assert (await member.beat(client, member_epoch=-1)).error_code == 0
        before = len(recognized)
        assert (await client.ask(known, kind.VERSION)).error_code != 0
        assert len(recognized) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_recognized_heartbeats_keep_a_member_in_its_group(
    kind: Kind, tmp_path: Path, autojump_clock: MockClock, recognized: list[bytes]
) -> None:
    async with running(tmp_path, autojump_clock, "combined") as client:
        member, silent = kind("m"), kind("n")
        await settle(client, member, silent)
        del recognized[:]
        for _ in range(4):
            await trio.sleep(10)
            await member.beat(client)
        assert len(recognized) == 4
        await trio.sleep(11)  # The session of the other one has expired by now.
        [group] = (await client.ask(kind.DESCRIBE(), 1)).groups
        assert [each.member_id for each in group.members] == ["m"]
        await trio.sleep(50)
        [group] = (await client.ask(kind.DESCRIBE(), 1)).groups
        assert group.members == []


async def test_recognized_heartbeat_is_recorded_and_throttled(
    tmp_path: Path, autojump_clock: MockClock, recognized: list[bytes]
) -> None:
    pairs = "quota.window.num=2", "quota.window.size.seconds=1"
    async with running(tmp_path, autojump_clock, "combined", *pairs) as client:
        member = ConsumerMember("m")
        await settle(client, member)
        entity = [EntityData(entity_type="client-id", entity_name="t")]
        ops = [OpData(key="request_percentage", value=0.000_001)]
        entries = [AlterClientQuotasRequestEntryData(entity=entity, ops=ops)]
        await client.ask(AlterClientQuotasRequest(entries=entries), 1)
        throttled = []
        for _ in range(3):
            response = await member.beat(client)
            throttled.append(response.throttle_time_ms > 0)
            assert response.member_epoch == member.epoch
        assert throttled[1:] == [True, True]
        assert len(recognized) >= 2


async def test_heartbeats_with_other_bytes_on_two_connections_are_recognized_by_member(
    tmp_path: Path, autojump_clock: MockClock, recognized: list[bytes]
) -> None:
    async with running(tmp_path, autojump_clock, "combined") as client:
        second = await another(client)
        members = [ConsumerMember(name) for name in "mno"]
        await settle(client, *members)
        del recognized[:]
        for each in (client, second):
            for member in members:
                response = await member.beat(each)
                assert (response.member_id, response.member_epoch) == (member.name, member.epoch)
        assert len(recognized) == 6


# Interleavings ------------------------------------------------------------------------------------


class Story:
    """What members and others do at random, and every byte that they receive."""

    STEPS = 20

    def __init__(self, kind: Kind, seed: int) -> None:
        self._kind = kind
        self._random = Random(seed)
        self._members = [kind(name) for name in "mno"]
        self._topics = 0

    async def play(self, client: SimulatedClient) -> list[bytes]:
        received = []
        steps: list[Callable[[SimulatedClient], Awaitable[object]]] = [
            *[self._sleep] * 3,
            self._other_epoch,
            self._other_rack,
            self._leave,
            self._create,
            self._configure,
            self._delete,
            self._other_client,
        ]
        for _ in range(self.STEPS):
            await self._random.choice(steps)(client)
            received.append(client.received)
            for _ in range(self._random.randrange(8)):
                await self._member().beat(client)
                received.append(client.received)
                await trio.sleep(0.5)
            await client.ask(self._kind.DESCRIBE(), 1)
            received.append(client.received)
        return received

    def _member(self) -> GroupMember:
        return self._random.choice(self._members)

    async def _sleep(self, _client: SimulatedClient) -> None:
        await trio.sleep(self._random.choice((0.5, 1, 3, 20, 50)))

    async def _other_epoch(self, client: SimulatedClient) -> None:
        member = self._member()
        await member.beat(client, member_epoch=member.epoch + self._random.choice((-1, 1)))

    async def _other_rack(self, client: SimulatedClient) -> None:
        await self._member().beat(client, rack_id=self._random.choice("rs"))

    async def _leave(self, client: SimulatedClient) -> None:
        await self._member().beat(client, member_epoch=-1)

    async def _create(self, client: SimulatedClient) -> None:
        self._topics += 1
        await client.ask(created(f"t{self._topics}"), 2)

    async def _configure(self, client: SimulatedClient) -> None:
        interval = self._random.choice((6_000, 7_000))
        await client.ask(configured(self._kind, heartbeat_interval_ms=interval), 1)

    async def _delete(self, client: SimulatedClient) -> None:
        await client.ask(DeleteGroupsRequest(groups_names=["g"]), 2)

    async def _other_client(self, client: SimulatedClient) -> None:
        client.client_id = self._random.choice("tu")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
async def test_recognized_heartbeats_change_no_byte_and_no_state(
    kind: Kind, seed: int, tmp_path: Path, autojump_clock: MockClock, recognized: list[bytes]
) -> None:
    await assert_single_step_changes_nothing(
        tmp_path, autojump_clock, lambda client: Story(kind, seed).play(client)
    )
    assert recognized
