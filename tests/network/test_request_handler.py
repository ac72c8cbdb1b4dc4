"""The path of one request: its owners, its response, and the release of its memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.admission.acceptor_messages import AcceptedConnection
from minibroker.apis import metadata
from minibroker.apis.base import CONTROLLER, CloseConnection
from minibroker.apis.fetch import FetchReply
from minibroker.apis.partition_fetch import FetchResult
from minibroker.apis.produce import ProduceOutcome, ProducePart
from minibroker.cluster.image import Image, PartitionRegistration, Topic, TopicCreated, apply
from minibroker.network.activity_sender import ActivitySender
from minibroker.network.client_connection import ClientConnection
from minibroker.network.connection_state import ChannelState
from minibroker.network.open_files import OpenFiles
from minibroker.network.quota_stage import QuotaStage
from minibroker.network.request_handler import RequestHandler
from minibroker.observability.metrics import ERRORS_AT, HISTOGRAMS, OK_AT
from minibroker.process.environment import PROCESSOR, Environment
from minibroker.process.messages import ApiPart, ApiReply
from minibroker.quotas.controller_mutation import UNCOUNTED
from minibroker.runtime.arena import ArenaPart
from minibroker.runtime.channel import Channel, memory_channel_pair
from minibroker.runtime.rpc import Link, PeerLost, RpcConnection
from minibroker.runtime.stream import memory_stream_pair
from protocol.errors import DecodeError, ErrorCode, UnsupportedVersion
from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.registry import ApiKey
from protocol.schema import Message
from tests.process.conftest import MakeEnvironment
from tests.simulation.client import SimulatedClient, frame

Handler = Callable[[Any], Awaitable[Any]]
WORKED_NS = 1000


class Owner:
    """A process that answers over a link; it dies of a handler that raises ``PeerLost``."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.handler: Handler | None = None
        self.asked: list[ApiPart] = []
        self._nursery = nursery
        self.link = Link(self._dial, self._greet)
        nursery.start_soon(self.link.run)

    async def _dial(self) -> Channel:
        here, self._channel = memory_channel_pair()
        self._nursery.start_soon(RpcConnection(self._channel, self._answer).run)
        return here

    async def _greet(self, _: RpcConnection) -> None: ...

    async def _answer(self, question: ApiPart) -> ApiReply:
        self.asked.append(question)
        assert self.handler is not None
        try:
            return ApiReply(await self.handler(question.part), WORKED_NS)
        except PeerLost:
            self._channel.close()
            await trio.sleep_forever()
            raise


class Followed:
    """Replaces the processor's metadata client: an image, and the link to the controller."""

    def __init__(self) -> None:
        partitions = tuple(PartitionRegistration(index, 0, 0, (0,), (0,)) for index in range(2))
        self.image = apply(Image(), TopicCreated(Topic("t", b"t" * 16, partitions)))


class RunningHandler:
    """The request handler of a processor, with simulated owners and one connection."""

    def __init__(self, env: Environment, nursery: trio.Nursery) -> None:
        self.env = env
        self.part: ArenaPart = env.arena.open_part(0)
        self.workers = [Owner(nursery), Owner(nursery)]
        self.controller = Owner(nursery)
        zero, one = (worker.link for worker in self.workers)
        owners = {0: zero, 1: one, CONTROLLER: self.controller.link}
        self.activity = ActivitySender(env)
        self.request_handler = RequestHandler(
            *(env, cast("Any", Followed()), owners, OpenFiles(100), QuotaStage(env)),
            activity=self.activity,
            on_use=self._use,
            on_unserved=lambda _, unserved: self.unserved.append(unserved.protocol),
        )
        self.unserved: list[str] = []
        self.used: list[tuple[int, ChannelState]] = []
        client, server = memory_stream_pair()
        self.theirs = SimulatedClient(client)
        accepted = AcceptedConnection("PLAINTEXT", server.local, server.peer, 1)
        self.ours = ClientConnection(accepted, server, 0)

    def _use(self, number: int) -> None:
        self.used.append((number, self.ours.state.state))

    async def take(self, body: bytes) -> None:
        """Serve one request with this body."""
        block = self.part.allocate_nowait(len(body))
        assert block is not None
        block.view[:] = body
        await self.request_handler.serve(self.ours, block)

    async def ask(self, request: Message, version: int) -> Any:
        self.theirs._correlation_id = 1
        await self.take(frame(request, version)[4:])
        return await self.theirs.answer(cast("int", request.__api_key__), version)

    @property
    def memory_used(self) -> int:
        return self.part.statistics().used


@pytest.fixture
async def running(make_env: MakeEnvironment, nursery: trio.Nursery) -> RunningHandler:
    return RunningHandler(make_env(PROCESSOR, workers=2), nursery)


def produce(*partitions: int, acks: int = 1) -> ProduceRequest:
    data = [
        PartitionProduceData(index=index, records=b"records %d" % index) for index in partitions
    ]
    return ProduceRequest(acks=acks, topic_data=[TopicProduceData(name="t", partition_data=data)])


async def accept(part: ProducePart) -> dict[tuple[str, int], ProduceOutcome]:
    return {(batch.topic, batch.partition): ProduceOutcome(0, 7, -1, 0) for batch in part.batches}


async def test_request_without_owners_is_answered(running: RunningHandler) -> None:
    request = ApiVersionsRequest(client_software_name="me", client_software_version="1.2")
    response = await running.ask(request, 4)
    assert response.error_code == 0
    assert ApiKey.PRODUCE in {each.api_key for each in response.api_keys}
    assert running.ours.software == ("me", "1.2")
    assert running.ours.client_id == "t"
    assert (running.ours.state.state, running.ours.in_flight) == (ChannelState.NOT_MUTED, None)
    assert running.memory_used == 0


async def test_connection_is_used_before_its_answer_is_sent(running: RunningHandler) -> None:
    await running.ask(ApiVersionsRequest(), 0)
    assert running.used == [(1, ChannelState.RESPONSE_PENDING)]


async def test_records_are_shown_in_place_and_freed_afterwards(running: RunningHandler) -> None:
    seen: list[bytes] = []

    async def look(part: ProducePart) -> Any:
        for batch in part.batches:
            assert batch.ref is not None
            seen.append(bytes(running.env.arena.view(batch.ref)))
        return await accept(part)

    for worker in running.workers:
        worker.handler = look
    response = await running.ask(produce(0, 1), 9)
    assert sorted(seen) == [b"records 0", b"records 1"]
    results = response.responses[0].partition_responses
    assert [(each.error_code, each.base_offset) for each in results] == [(0, 7), (0, 7)]
    assert [len(worker.asked) for worker in running.workers] == [1, 1]
    assert running.memory_used == 0


async def test_error_of_a_single_partition_counts_as_an_error(running: RunningHandler) -> None:
    async def reject_one(part: ProducePart) -> dict[tuple[str, int], ProduceOutcome]:
        return {
            (batch.topic, batch.partition): ProduceOutcome(87 if batch.partition else 0)
            for batch in part.batches
        }

    def counted() -> tuple[int, int]:
        row = running.env.metrics.snapshot().rows[ApiKey.PRODUCE]
        return row[OK_AT], row[ERRORS_AT]

    for worker in running.workers:
        worker.handler = accept
    await running.ask(produce(0, 1), 9)
    assert counted() == (1, 0)
    for worker in running.workers:
        worker.handler = reject_one
    await running.ask(produce(0, 1), 9)
    assert counted() == (1, 1)


async def test_memory_stays_until_the_last_owner_has_answered(running: RunningHandler) -> None:
    gate = trio.Event()
    used: list[int] = []

    async def die(part: Any) -> Any:
        raise PeerLost

    async def tarry(part: Any) -> Any:
        await gate.wait()
        used.append(running.memory_used)
        return await accept(part)

    running.workers[0].handler, running.workers[1].handler = die, tarry

    async def take() -> None:
        with pytest.raises(PeerLost):
            await running.take(frame(produce(0, 1), 9)[4:])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        assert running.memory_used > 0
        gate.set()
    assert used[0] > 0
    assert running.memory_used == 0


async def test_close_waits_for_owner_reading_memory(running: RunningHandler) -> None:
    gate = trio.Event()

    async def tarry(part: Any) -> Any:
        await gate.wait()
        return await accept(part)

    for worker in running.workers:
        worker.handler = tarry

    async def take() -> None:
        with running.ours.scope:
            await running.take(frame(produce(0), 9)[4:])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        assert not running.ours.interruptible
        running.ours.scope.cancel()
        await wait_all_tasks_blocked()
        assert running.memory_used > 0
        gate.set()
    assert running.memory_used == 0


def fetch(*partitions: int, min_bytes: int = 1) -> FetchRequest:
    wanted = [FetchPartition(partition=index, partition_max_bytes=1000) for index in partitions]
    return FetchRequest(
        max_wait_ms=1000,
        min_bytes=min_bytes,
        topics=[FetchTopic(topic="t", partitions=wanted)],
    )


def nothing(part: Any, *, due: bool = True) -> FetchReply:
    found = {
        (wanted.topic, wanted.partition): FetchResult(0, None, 0, 0) for wanted in part.queries
    }
    return FetchReply(found, 0, failed=False, due=due)


async def test_long_poll_ends_with_its_connection(running: RunningHandler) -> None:
    async def wait(part: Any) -> Any:
        await trio.sleep_forever()

    for worker in running.workers:
        worker.handler = wait
    async with trio.open_nursery() as nursery:

        async def take() -> None:
            with running.ours.scope:
                await running.take(frame(fetch(0), 12)[4:])

        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        assert running.ours.interruptible
        assert running.ours.view(used=0.0).in_flight == ApiKey.FETCH
        assert running.memory_used == 0, "a request that waits would keep memory from others"
        running.ours.scope.cancel()
    assert running.memory_used == 0


async def test_first_owner_with_more_ends_the_wait_of_all(running: RunningHandler) -> None:
    cancelled: list[bool] = []

    async def wait(part: Any) -> Any:
        if part.enough == 0:
            return nothing(part)
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append(True)

    async def grow(part: Any) -> Any:
        if part.enough == 0:
            return nothing(part)
        return nothing(part)._replace(size=1)

    running.workers[0].handler, running.workers[1].handler = wait, grow
    response = await running.ask(fetch(0, 1), 12)
    assert [each.error_code for each in response.responses[0].partitions] == [0, 0]
    await wait_all_tasks_blocked()
    assert cancelled == [True]


async def test_merge_uses_the_newest_image(running: RunningHandler) -> None:
    async def create(part: Any) -> Any:
        follower = running.request_handler._metadata_client
        follower.image = apply(follower.image, TopicCreated(Topic("new", b"n" * 16, ())))
        return metadata.MetadataReply({}, UNCOUNTED)

    running.controller.handler = create
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
    response = await running.ask(request, 9)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("new", 0)]
    assert len(running.controller.asked) == 1


async def test_acks_zero_gets_no_response(running: RunningHandler) -> None:
    for worker in running.workers:
        worker.handler = accept
    await running.take(frame(produce(0, acks=0), 9)[4:])
    assert running.ours.state.state is ChannelState.NOT_MUTED
    response = await running.ask(ApiVersionsRequest(), 0)
    assert response.error_code == 0


async def test_acks_zero_error_closes_the_connection(running: RunningHandler) -> None:
    async def refuse(part: ProducePart) -> Any:
        refused = ProduceOutcome(ErrorCode.CORRUPT_MESSAGE)
        return {(batch.topic, batch.partition): refused for batch in part.batches}

    for worker in running.workers:
        worker.handler = refuse
    with pytest.raises(CloseConnection, match="CORRUPT_MESSAGE"):
        await running.take(frame(produce(0, acks=0), 9)[4:])
    assert running.memory_used == 0


async def test_newer_api_versions_is_answered_in_version_0(running: RunningHandler) -> None:
    body = bytearray(frame(ApiVersionsRequest(), 4)[4:])
    body[2:4] = (99).to_bytes(2, "big")
    running.theirs._correlation_id = 1
    await running.take(bytes(body))
    response = await running.theirs.answer(ApiKey.API_VERSIONS, 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [each.api_key for each in response.api_keys] == [ApiKey.API_VERSIONS]


@pytest.mark.parametrize(
    ("key", "version", "text"),
    [
        (ApiKey.PRODUCE, 2, "PRODUCE version 2 is not served, 3 to 13 are"),
        (ApiKey.PRODUCE, 99, "PRODUCE version 99"),
        (ApiKey.FETCH, -1, "FETCH version -1"),
        (ApiKey.ADD_RAFT_VOTER, 0, "ADD_RAFT_VOTER is not served"),
        (999, 0, "no API has the key 999"),
        (-1, 0, "no API has the key -1"),
    ],
)
async def test_unserved_api_closes_the_connection(
    running: RunningHandler, key: int, version: int, text: str
) -> None:
    head = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
    with pytest.raises(UnsupportedVersion, match=text):
        await running.take(head + bytes(20))
    assert running.memory_used == 0


@pytest.mark.parametrize("cut", [1, 9, 14, -1])
async def test_body_that_ends_early_ends_the_connection(running: RunningHandler, cut: int) -> None:
    with pytest.raises(DecodeError):
        await running.take(frame(produce(0), 9)[4:][:cut])
    assert running.memory_used == 0


async def test_each_request_is_counted(running: RunningHandler, autojump_clock: MockClock) -> None:
    for worker in running.workers:
        worker.handler = accept
    await running.ask(produce(0, 1), 9)
    await running.ask(ApiVersionsRequest(client_software_name="!"), 3)
    rows = running.env.metrics.snapshot().rows
    assert (rows[ApiKey.PRODUCE][OK_AT], rows[ApiKey.PRODUCE][ERRORS_AT]) == (1, 0)
    assert (rows[ApiKey.API_VERSIONS][OK_AT], rows[ApiKey.API_VERSIONS][ERRORS_AT]) == (0, 1)
    row = rows[ApiKey.PRODUCE]
    assert row[HISTOGRAMS["request_bytes"].sum_at] == len(frame(produce(0, 1), 9)) - 4
    assert row[HISTOGRAMS["response_bytes"].sum_at] > 20
    assert row[HISTOGRAMS["io"].sum_at] == 2 * WORKED_NS
