"""A processor with a controller, workers and an acceptor that the test plays."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.admission.rejected_connections import (
    AcceptedConnection,
    ConnectionsClosed,
    ProcessorConnections,
)
from minibroker.broker.metadata.image import (
    Image,
    PartitionRegistration,
    Topic,
    TopicCreated,
    apply,
)
from minibroker.broker.metrics.definitions import CLOSED, OPEN, CloseReason
from minibroker.broker.process.environment import (
    CONTROLLER,
    PROCESSOR,
    WORKER,
    Environment,
    handoff_name,
    role_name,
)
from minibroker.broker.process.messages import (
    ApiPart,
    ApiReply,
    ImageApplied,
    RegisterRole,
    RoleRegistered,
)
from minibroker.broker.roles.processor import processor
from minibroker.broker.settings import Settings
from minibroker.runtime.handoff import Connection, Handoff
from minibroker.runtime.rpc import RpcConnection
from minibroker.runtime.stream import Address, ByteStream, SocketStream, memory_stream_pair
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.broker.process.conftest import MakeEnvironment
from tests.simulation.client import SimulatedClient
from tests.tcp import connected_sockets

LISTENER = "PLAINTEXT"
HELLO = ApiVersionsRequest(client_software_name="me", client_software_version="1")
TOPIC = Topic("t", b"t" * 16, (PartitionRegistration(0, 0, 0, (0,), (0,)),))
IMAGE = apply(Image(controller_epoch=1), TopicCreated(TOPIC))
LOOK = ListOffsetsRequest(
    topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(timestamp=-1)])]
)


def in_memory(peer: Address, local: Address) -> tuple[ByteStream, Connection]:
    return memory_stream_pair(peer, local)


def over_tcp(*_: Address) -> tuple[ByteStream, Connection]:
    theirs, ours = connected_sockets()
    return SocketStream(theirs), ours


connected_both_ways = pytest.mark.usefixtures("connect_client")
"""Runs a test with clients in memory, and with clients over TCP."""


class RunningProcessor:
    """The processor's neighbours."""

    connect_client = staticmethod(in_memory)
    """The client's end of a new connection and the processor's."""

    def __init__(self, env: Environment, nursery: trio.Nursery) -> None:
        self.env = env
        self.nursery = nursery
        self.ready = trio.Event()
        env.ready = self.ready.set
        self.may_end = trio.Event()
        """Until it is set, the workers do not answer the greeting."""
        self.greeted = 0
        self.answering = trio.Event()
        """Until it is set, the workers do not answer anything else."""
        self.asked: list[Any] = []
        self.reply: Any = {}
        self.controller: RpcConnection | None = None
        self.workers: list[RpcConnection] = []
        self.handoff: Handoff | None = None
        self.numbers = 0
        self.streams: list[ByteStream] = []
        """The clients' ends of all connections."""
        self.handed_over: list[Connection] = []
        """The processor's ends."""
        self.present: ProcessorConnections | None = None
        self.told: list[Any] = []
        """Messages from the processor to the acceptor, except for ``ConnectionsClosed``:"""
        self.taken = 0
        self.closed_numbers: list[int] = []

    async def start(self) -> None:
        self.nursery.start_soon(self._be, CONTROLLER)
        for worker in range(self.env.workers):
            self.nursery.start_soon(self._be, role_name(WORKER, worker))

    async def _be(self, name: str) -> None:
        listener = self.env.transport.listen(name)
        while True:
            channel = await listener.accept()
            is_controller = name == CONTROLLER
            answer = self._welcome if is_controller else self._answer
            rpc = RpcConnection(channel, answer)
            if is_controller:
                self.controller = rpc
            else:
                self.workers.append(rpc)
            self.nursery.start_soon(rpc.run)

    def _welcome(self, request: Any) -> Any:
        if isinstance(request, ImageApplied):
            return None
        assert request == RegisterRole(PROCESSOR, 0, self.env.incarnation)
        return RoleRegistered(IMAGE)

    async def _answer(self, request: Any) -> Any:
        if isinstance(request, RegisterRole):
            await self.may_end.wait()
            self.greeted += 1
            return None
        assert isinstance(request, ApiPart)
        self.asked.append(request.part)
        await self.answering.wait()
        return ApiReply(self.reply, 0)

    async def accept(self) -> None:
        """The acceptor meets the processor."""
        self.handoff = await self.env.transport.connect_handoff(handoff_name(0))
        self.present = (await self.handoff.receive())[0]
        assert isinstance(self.present, ProcessorConnections)
        self.told.clear()
        self.closed_numbers.clear()

    async def connect(self) -> SimulatedClient:
        client = await self.hand_over()
        assert self.handoff is not None
        before = self.taken
        while self.taken == before:
            await self.listen()
        return client

    async def listen(self) -> None:
        """Receive the next message from the processor to the acceptor."""
        assert self.handoff is not None
        message, _ = await self.handoff.receive()
        if isinstance(message, ConnectionsClosed):
            self.taken += message.taken
            self.closed_numbers += message.closed
        else:
            self.told.append(message)

    async def hand_over(self) -> SimulatedClient:
        self.numbers += 1
        peer, local = ("10.0.0.1", 1000 + self.numbers), ("127.0.0.1", 9092)
        client, server = self.connect_client(peer, local)
        self.streams.append(client)
        self.handed_over.append(server)
        assert self.handoff is not None
        accepted = AcceptedConnection(LISTENER, local, peer, self.numbers)
        await self.handoff.send(accepted, server)
        return SimulatedClient(client)

    def closed(self) -> Counter[CloseReason]:
        found: Counter[CloseReason] = Counter()
        for (name, labels), count in self.env.metrics.snapshot().counters.items():
            if name == CLOSED.name:
                assert labels[0] == LISTENER
                found[CloseReason(labels[1])] += count
        return found

    def still_open(self) -> int:
        return int(self.env.metrics.snapshot().gauges.get((OPEN.name, (LISTENER,)), 0))


@asynccontextmanager
async def running_processor(
    make_env: MakeEnvironment, *pairs: str, ready: bool = True, **changes: Any
) -> AsyncIterator[RunningProcessor]:
    settings = Settings.from_sources(pairs=pairs)
    async with trio.open_nursery() as nursery:
        at = RunningProcessor(make_env(PROCESSOR, settings=settings, **changes), nursery)
        await at.start()
        nursery.start_soon(processor, at.env)
        if ready:
            at.may_end.set()
            at.answering.set()
            await at.ready.wait()
            await at.accept()
        try:
            yield at
            at.env.stopping.set()
            await wait_all_tasks_blocked()
        finally:
            for stream in at.streams:
                stream.close()
        nursery.cancel_scope.cancel()
