"""Links from one I/O worker to the others, for parts that the owner of other partitions executes.

Owns the links, each opened at its first use. It must never know what is in a part. Invariant: a
worker only sends requests over its links and answers those of others over theirs, so two workers
that request from each other cannot block. Kafka's brokers send such requests through
``InterBrokerSendThread``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import trio

from minibroker.broker.process.environment import PROCESSOR, WORKER, Environment, role_name
from minibroker.broker.process.messages import ApiPart, ApiReply, RecordsAppend, RegisterRole
from minibroker.broker.settings import QUEUED_MAX_REQUESTS
from minibroker.runtime.rpc import Channel, Link, LocalPeer, PeerLost, RpcConnection


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

    async def request(self, worker: int, request: ApiPart | RecordsAppend) -> Any:
        """Return the reply to a request. Raises ``PeerLost`` and ``PeerFailed``."""
        if self._has_ended:  # A task that goes on for a step may still ask.
            raise PeerLost("this worker is stopping")
        if worker not in self._links:
            assert self._nursery is not None
            link = self._links[worker] = worker_link(self._env, worker)
            self._nursery.start_soon(link.run)
        reply = await self._links[worker].request(request)
        return reply.reply if isinstance(reply, ApiReply) else reply


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


# --------------------------------------------------------------------------------------------------
# The processors, recorder and workers that are connected to one I/O worker.
#
# Owns their connections. It must never know what they request. Invariant: when a role is
# registered, the connection of its former process is closed and none of its requests is executed.
# Kafka has no equivalent.

STOP_S: Final = 3.0
"""How long, in real time, processors and the recorder may take to stop after the broker: more than
they take to send the last responses and events."""


class _Connection:
    """One process of a role."""

    def __init__(self, channel: Channel, handle: Callable[[_Connection, Any], Any]) -> None:
        self.rpc = RpcConnection(channel, partial(handle, self))
        self.closed = trio.Event()


class ConnectedRoles:
    """The connections of one worker; ``run`` must be running."""

    def __init__(
        self,
        env: Environment,
        handle: Callable[[Any], Any],
        on_processor_lost: Callable[..., Awaitable[None]],
    ) -> None:
        """``handle`` executes a request and returns its reply, or an awaitable of it.

        ``on_processor_lost`` is started with the number of a processor when another process of it
        registers, which has to wait until the task is started.
        """
        self._env = env
        self._handle = handle
        self._on_processor_lost = on_processor_lost
        self._connections: dict[tuple[str, int], _Connection] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Accept and serve connections until cancelled."""
        listener = self._env.transport.listen(self._env.name)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            while True:
                nursery.start_soon(self._serve, await listener.accept())

    async def wait_disconnected(self) -> None:
        """Execute the last requests of processors and the recorder that stop at the same time."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_after_limit, nursery.cancel_scope)
            for (role, _), connection in list(self._connections.items()):
                if role != WORKER:  # Otherwise two workers would wait for each other.
                    await connection.closed.wait()
            nursery.cancel_scope.cancel()

    async def _cancel_after_limit(self, scope: trio.CancelScope) -> None:
        await self._env.clock.sleep_real(STOP_S)
        scope.cancel()

    async def _serve(self, channel: Channel) -> None:
        connection = _Connection(channel, self._handle_request)
        try:
            await connection.rpc.run()
        finally:
            connection.closed.set()

    def _handle_request(self, connection: _Connection, request: Any) -> Any:
        if isinstance(request, RegisterRole):
            return self._register(connection, request)
        return self._handle(request)

    async def _register(self, connection: _Connection, registration: RegisterRole) -> None:
        process = registration.role, registration.number
        previous = self._connections.get(process)
        self._connections[process] = connection
        if previous is not None:
            previous.rpc.close()
            await previous.closed.wait()
            if registration.role == PROCESSOR:
                assert self._nursery is not None
                await self._nursery.start(self._on_processor_lost, registration.number)
