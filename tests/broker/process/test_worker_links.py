"""Links between I/O workers."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from minibroker.broker.process.environment import WORKER, Environment
from minibroker.broker.process.messages import ApiPart, ApiReply, RegisterRole
from minibroker.broker.process.worker_links import WorkerLinks
from minibroker.runtime.rpc import PeerLost, RpcConnection
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
