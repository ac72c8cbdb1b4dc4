"""A processor reaches every worker, and waits until all of them serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.process.environment import WORKER, Environment, role_name
from minibroker.broker.process.local_worker import LocalWorker
from minibroker.broker.process.messages import ApiPart, ApiReply, RegisterRole
from minibroker.broker.process.worker_peers import WorkerPeers
from minibroker.runtime.rpc import Link, LocalPeer, RpcConnection
from tests.broker.process.conftest import MakeEnvironment


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
    answers = [await peer.request(part) for _, peer in sorted(links.peers().items())]
    assert [answer.reply for answer in answers] == ["local", "worker 1"]


async def test_workers_of_other_processes_are_all_links(make_env: MakeEnvironment) -> None:
    links = WorkerPeers(make_env("processor", workers=3))
    assert [type(peer) for peer in links.peers().values()] == [Link] * 3
