"""Links between I/O workers, and from a processor to all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.process.environment import (
    PROCESSOR,
    WORKER,
    Environment,
    role_name,
)
from minibroker.broker.process.local_worker import LocalWorker
from minibroker.broker.process.messages import ApiPart, ApiReply, RegisterRole
from minibroker.broker.process.worker_links import STOP_S, ConnectedRoles, WorkerLinks, WorkerPeers
from minibroker.runtime.rpc import Link, LocalPeer, PeerLost, RpcConnection, request_all
from tests.broker.process.conftest import MakeEnvironment


class Peer:
    """Another worker, which echoes the parts that it gets."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.registered: list[RegisterRole] = []
        self.connections: list[RpcConnection] = []
        self.is_dying = False

    async def run(self) -> None:
        listener = self._env.transport.listen(self._env.name)
        async with trio.open_nursery() as nursery:
            while True:
                rpc = RpcConnection(await listener.accept(), self._handle)
                self.connections.append(rpc)
                nursery.start_soon(rpc.run)

    def _handle(self, request: Any) -> Any:
        if isinstance(request, RegisterRole):
            self.registered.append(request)
            return None
        if self.is_dying:
            self.is_dying = False
            self.connections[-1].close()
        return ApiReply(("echo", request.part), 1)


async def test_part_is_executed_by_other_worker_and_link_is_kept(
    make_env: MakeEnvironment,
) -> None:
    links = WorkerLinks(make_env(WORKER, 0, workers=2))
    peer = Peer(make_env(WORKER, 1, workers=2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.run)
        nursery.start_soon(links.run)
        await trio.testing.wait_all_tasks_blocked()
        assert peer.registered == []
        for _ in range(2):
            assert await links.request(1, ApiPart(27, "a")) == ("echo", "a")
        assert peer.registered == [RegisterRole(WORKER, 0, 1)]
        nursery.cancel_scope.cancel()


async def test_death_of_other_worker_is_reported_and_link_reconnects(
    make_env: MakeEnvironment,
) -> None:
    links = WorkerLinks(make_env(WORKER, 0, workers=2))
    peer = Peer(make_env(WORKER, 1, workers=2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.run)
        nursery.start_soon(links.run)
        await trio.testing.wait_all_tasks_blocked()
        peer.is_dying = True
        with pytest.raises(PeerLost):
            await links.request(1, ApiPart(27, "a"))
        assert await links.request(1, ApiPart(27, "b")) == ("echo", "b")
        assert len(peer.registered) == 2
        nursery.cancel_scope.cancel()


async def test_request_after_the_end_is_lost(make_env: MakeEnvironment) -> None:
    links = WorkerLinks(make_env(WORKER, 0, workers=2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(links.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    with pytest.raises(PeerLost, match="stopping"):
        await links.request(1, ApiPart(27, "a"))


async def answer_as_worker(env: Environment, index: int, registered: list[Any]) -> None:
    listener = env.transport.listen(role_name(WORKER, index))

    def handle(request: Any) -> Any:
        if isinstance(request, RegisterRole):
            registered.append((index, request))
            return None
        return ApiReply(f"worker {index}", 1)

    await RpcConnection(await listener.accept(), handle).run()


async def test_local_worker_is_called_directly_and_others_over_links(
    make_env: MakeEnvironment, nursery: trio.Nursery
) -> None:
    env = make_env("processor", workers=2)
    local = LocalWorker(env.work_time)
    env = replace(env, local_worker=local)
    links = WorkerPeers(env)
    registered: list[Any] = []
    assert {index: type(peer) for index, peer in links.peers().items()} == {
        0: LocalPeer,
        1: Link,
    }
    nursery.start_soon(answer_as_worker, env, 1, registered)
    links.start(nursery)
    connected = trio.Event()

    async def wait() -> None:
        await links.wait_connected()
        connected.set()

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    assert registered == [(1, RegisterRole("processor", 0, env.incarnation))]
    assert not connected.is_set()
    local.serve(cast("Any", None), lambda _: ApiReply("local", 1))
    await connected.wait()
    part = ApiPart(0, None)
    answers = await request_all([(peer, part) for _, peer in sorted(links.peers().items())])
    assert [answer.reply for answer in answers] == ["local", "worker 1"]


async def test_workers_of_other_processes_are_all_links(make_env: MakeEnvironment) -> None:
    links = WorkerPeers(make_env("processor", workers=3))
    assert [type(peer) for peer in links.peers().values()] == [Link] * 3


class Running:
    """The connections of a worker, which echoes requests or never replies."""

    def __init__(self, make_env: MakeEnvironment, nursery: trio.Nursery) -> None:
        self._env = make_env(WORKER, 0)
        self._nursery = nursery
        self.roles = ConnectedRoles(self._env, self._handle, self._note_lost)
        self.lost: list[int] = []
        self.has_stopped = False

    def _handle(self, request: Any) -> Any:
        return trio.Event().wait() if request == "wait" else ("echo", request)

    async def _note_lost(self, number: int, *, task_status: trio.TaskStatus[None]) -> None:
        await trio.lowlevel.checkpoint()
        self.lost.append(number)
        task_status.started()
        await trio.sleep_forever()

    async def connect(self, role: str, number: int = 0) -> RpcConnection:
        rpc = RpcConnection(await self._env.transport.connect(self._env.name))
        self._nursery.start_soon(rpc.run)
        await rpc.request(RegisterRole(role, number, 1))
        return rpc

    async def stop(self) -> None:
        await self.roles.wait_disconnected()
        self.has_stopped = True


@asynccontextmanager
async def running(make_env: MakeEnvironment) -> AsyncIterator[Running]:
    async with trio.open_nursery() as nursery:
        at = Running(make_env, nursery)
        nursery.start_soon(at.roles.run)
        await wait_all_tasks_blocked()
        yield at
        nursery.cancel_scope.cancel()


async def test_request_is_handled_on_each_connection(make_env: MakeEnvironment) -> None:
    async with running(make_env) as at:
        for number in range(2):
            rpc = await at.connect(PROCESSOR, number)
            assert await rpc.request(number) == ("echo", number)


async def test_registration_closes_the_connection_of_the_former_process(
    make_env: MakeEnvironment,
) -> None:
    async with running(make_env) as at:
        former = await at.connect(PROCESSOR)
        other = await at.connect(PROCESSOR, 1)

        async def request() -> None:
            with pytest.raises(PeerLost):
                await former.request("wait")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(request)
            await wait_all_tasks_blocked()
            await at.connect(PROCESSOR)
        assert await other.request("x") == ("echo", "x")


async def test_processor_is_lost_before_its_successor_is_registered(
    make_env: MakeEnvironment,
) -> None:
    async with running(make_env) as at:
        await at.connect(PROCESSOR, 1)
        ended, worker = await at.connect(PROCESSOR, 2), await at.connect(WORKER, 3)
        ended.close()
        worker.close()
        await wait_all_tasks_blocked()
        assert at.lost == []
        await at.connect(WORKER, 3)
        await at.connect(PROCESSOR, 2)
        assert at.lost == [2]
        await at.connect(PROCESSOR, 1)
        assert at.lost == [2, 1]


async def test_stop_waits_for_processors_and_not_for_workers(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running(make_env) as at:
        processor = await at.connect(PROCESSOR)
        await at.connect(WORKER, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.stop)
            await wait_all_tasks_blocked()
            assert not at.has_stopped
            assert await processor.request("last") == ("echo", "last")
            processor.close()
            await wait_all_tasks_blocked()
            assert at.has_stopped


async def test_stop_ends_although_a_processor_stays_connected(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running(make_env) as at:
        await at.connect(PROCESSOR)
        began = trio.current_time()
        await at.stop()
        assert trio.current_time() - began == pytest.approx(STOP_S)
