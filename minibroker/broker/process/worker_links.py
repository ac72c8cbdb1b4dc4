"""Links from one I/O worker to the others, for parts that the owner of other partitions executes.

Owns the links, each opened at its first use. It must never know what is in a part. Invariant: a
worker only sends requests over its links and answers those of others over theirs, so two workers
that request from each other cannot block. Kafka's brokers send such requests through
``InterBrokerSendThread``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from minibroker.broker.process.environment import WORKER, Environment, role_name
from minibroker.broker.process.messages import ApiPart, ApiReply, RegisterRole
from minibroker.broker.settings import QUEUED_MAX_REQUESTS
from minibroker.runtime.channel import Channel
from minibroker.runtime.rpc import Link, LocalPeer, PeerLost, RpcConnection


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


# --------------------------------------------------------------------------------------------------
# How a network processor reaches the I/O workers: over links, and one of them directly.
#
# Owns the links of one processor. It must never know what is requested. Invariant: when
# ``wait_connected`` returns, no worker still executes requests of a former process of this
# processor, which refer to the shared memory that this one writes to.


class WorkerPeers:
    """The workers as one processor sees them."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._local = env.local_worker
        self._links = {
            index: worker_link(
                env,
                index,
                requests_max=env.settings[QUEUED_MAX_REQUESTS],
                on_polled=env.work_time.add_idle,
            )
            for index in range(env.workers)
            if self._local is None or index != env.index
        }

    def peers(self) -> Mapping[int, Link | LocalPeer]:
        """Return the workers by index."""
        local = {} if self._local is None else {self._env.index: LocalPeer(self._local.execute)}
        return {**self._links, **local}

    def start(self, nursery: trio.Nursery) -> None:
        """Connect to the workers of other processes, and reconnect until cancelled."""
        for link in self._links.values():
            nursery.start_soon(link.run)

    async def wait_connected(self) -> None:
        """Wait until all workers serve and have dropped requests of a former process."""
        for link in self._links.values():
            await link.wait_connected()
        if self._local is not None:
            await self._local.wait_serving()
