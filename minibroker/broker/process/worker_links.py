"""Links from one I/O worker to the others, for parts that the owner of other partitions executes.

Owns the links, each opened at its first use. It must never know what is in a part. Invariant: a
worker only sends requests over its links and answers those of others over theirs, so two workers
that request from each other cannot block. Kafka's brokers send such requests through
``InterBrokerSendThread``.
"""

from __future__ import annotations

from typing import Any

import trio

from minibroker.broker.process.environment import WORKER, Environment, role_name
from minibroker.broker.process.messages import ApiPart, ApiReply, RegisterRole
from minibroker.runtime.channel import Channel
from minibroker.runtime.rpc import Link, PeerLost, RpcConnection


class WorkerLinks:
    """Links to other I/O workers; ``run`` must be running."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._links: dict[int, Link] = {}
        self._nursery: trio.Nursery | None = None
        self._has_ended = False

    async def run(self) -> None:
        """Run the links until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._has_ended = True

    async def request(self, worker: int, part: ApiPart) -> Any:
        """Return the reply to a part. Raises ``PeerLost`` and ``PeerFailed``."""
        if self._has_ended:  # A task that goes on for a step may still ask.
            raise PeerLost("this worker is stopping")
        if worker not in self._links:
            assert self._nursery is not None
            link = self._links[worker] = worker_link(self._env, worker)
            self._nursery.start_soon(link.run)
        reply: ApiReply = await self._links[worker].request(part)
        return reply.reply


def worker_link(env: Environment, worker: int, **options: Any) -> Link:
    """Return a link to a worker, which registers this process there; ``options`` are `Link`'s."""

    async def connect() -> Channel:
        return await env.transport.connect(role_name(WORKER, worker))

    async def register(rpc: RpcConnection) -> None:
        await rpc.request(RegisterRole(env.role, env.index, env.incarnation))

    return Link(connect, register, **options)
