"""The request handler of a processor, with owners and a connection that the test plays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio

from minibroker.broker.admission.rejected_connections import AcceptedConnection
from minibroker.broker.apis.base import CONTROLLER
from minibroker.broker.apis.partition_fetch import FetchReply, FetchResult
from minibroker.broker.apis.produce import ProduceOutcome, ProducePart
from minibroker.broker.metadata.image import (
    Image,
    PartitionRegistration,
    Topic,
    TopicCreated,
    apply,
)
from minibroker.broker.network.client_connection import ChannelState, ClientConnection
from minibroker.broker.network.quota_stage import QuotaStage
from minibroker.broker.network.request_handler import RequestHandler
from minibroker.broker.network.response_sender import OpenFiles
from minibroker.broker.process.environment import PROCESSOR, Environment
from minibroker.broker.process.messages import ApiPart, ApiReply
from minibroker.runtime.arena import ArenaPart
from minibroker.runtime.rpc import Channel, Link, PeerLost, RpcConnection, memory_channel_pair
from minibroker.runtime.stream import memory_stream_pair
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.schema import Message
from tests.broker.process.conftest import MakeEnvironment
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
        self.request_handler = RequestHandler(
            *(env, cast("Any", Followed()), owners, OpenFiles(100), QuotaStage(env)),
            on_use=self._use,
            on_unserved=lambda _, unserved: self.unserved.append(unserved.protocol),
        )
        self.unserved: list[str] = []
        self.used: list[tuple[int, ChannelState]] = []
        client, server = memory_stream_pair()
        self.theirs = SimulatedClient(client)
        accepted = AcceptedConnection("PLAINTEXT", server.local, server.peer, 1)
        self.ours = ClientConnection(accepted, server, 0)

    def _use(self, number: int, _: float) -> None:
        self.used.append((number, self.ours.state.state))

    async def take(self, body: bytes) -> None:
        """Serve one request with this body."""
        block = self.part.allocate_nowait(len(body))
        assert block is not None
        block.view[:] = body
        rest = self.request_handler.serve(self.ours, block)
        if rest is not None:
            await rest

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


def outcomes(part: ProducePart) -> dict[tuple[str, int], ProduceOutcome]:
    return {(batch.topic, batch.partition): ProduceOutcome(0, 7, -1, 0) for batch in part.batches}


async def accept(part: ProducePart) -> dict[tuple[str, int], ProduceOutcome]:
    return outcomes(part)


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
