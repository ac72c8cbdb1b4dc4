"""Connections of other roles to an I/O worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.process.connected_roles import STOP_S, ConnectedRoles
from minibroker.broker.process.environment import PROCESSOR, WORKER
from minibroker.broker.process.messages import RegisterRole
from minibroker.runtime.rpc import PeerLost, RpcConnection
from tests.broker.process.conftest import MakeEnvironment


class Running:
    """The connections of a worker, which echoes requests or never replies."""

    def __init__(self, make_env: MakeEnvironment, nursery: trio.Nursery) -> None:
        self._env = make_env(WORKER, 0)
        self._nursery = nursery
        self.roles = ConnectedRoles(self._env, self._handle)
        self.has_stopped = False

    def _handle(self, request: Any) -> Any:
        return trio.Event().wait() if request == "wait" else ("echo", request)

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
