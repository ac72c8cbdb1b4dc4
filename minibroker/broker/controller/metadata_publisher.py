"""The processes that subscribe to the controller, and the updates that they have applied.

Owns the conversations with all roles, the order of updates, and the numbers that roles have
acknowledged. It must never know what an update means. Invariant: updates are sent one at a time, in
order, and ``publish`` returns when every connected process has applied the last one; a process that
reconnects starts with the complete image, so a dead one blocks nothing. A process that has not
applied an image of this incarnation of the controller may still serve with that of the previous
one, so nothing counts as published before. Like Kafka's controller, which waits for
``UpdateMetadata`` responses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import trio

from minibroker.broker.metadata.image import Image, Update
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import role_name
from minibroker.broker.process.messages import (
    ImageApplied,
    RegisterRole,
    RoleRegistered,
)
from minibroker.runtime.channel import Channel
from minibroker.runtime.rpc import PeerFailed, PeerLost, RpcConnection


class Publisher:
    """Numbers published by one controller, and what each subscriber has acknowledged."""

    def __init__(self, number: int = 0) -> None:
        """Begin after update ``number``, with no subscriber."""
        self.newest = number
        """The number of the newest update that was published."""
        self.acknowledged: dict[str, int] = {}
        """The number of the newest update that each subscriber has applied."""

    @property
    def complete(self) -> int:
        """The number up to which every subscriber has applied all updates. Never decreases."""
        return min(self.acknowledged.values(), default=self.newest)

    def join(self, subscriber: str) -> None:
        """Add a subscriber that gets the newest image, which counts as acknowledged."""
        self.acknowledged[subscriber] = self.newest

    def leave(self, subscriber: str) -> None:
        """Remove a subscriber, if it exists; nothing waits for it any more."""
        self.acknowledged.pop(subscriber, None)

    def publish(self, update: Update) -> tuple[str, ...]:
        """Count an update and return its recipients; updates must come in order."""
        if update.number != self.newest + 1:
            raise ValueError(f"update {update.number} cannot follow update {self.newest}")
        self.newest = update.number
        return tuple(self.acknowledged)

    def acknowledge(self, subscriber: str, number: int) -> None:
        """Note that a subscriber has the image of ``number`` or a later one."""
        known = self.acknowledged.get(subscriber)
        if known is None:
            return  # It left before its response arrived.
        if number > self.newest:
            raise ValueError(f"{subscriber} acknowledged {number}, the newest is {self.newest}")
        self.acknowledged[subscriber] = max(known, number)


RequestHandlerFunction = Callable[[Any], Any]


class MetadataPublisher:
    """The roles that are connected to the controller."""

    def __init__(
        self,
        image: Callable[[], Image],
        answer: RequestHandlerFunction,
        number: int,
        expected: Iterable[str] = (),
    ) -> None:
        """``answer`` handles requests that have no handler; ``number`` is that of the first image.

        ``expected`` are the names of all roles that subscribe.
        """
        self._image = image
        self._answer = answer
        self._publisher = Publisher(number)
        self._connections: dict[str, RpcConnection] = {}
        # Bounded by the requests that processors may have in flight, each with few updates.
        self._pending: deque[Update] = deque()
        self._more = trio.Event()
        self._completed = trio.Event()
        self._not_current = set(expected)
        """Roles that may serve with an image of another incarnation, or that missed an update."""
        self.further: list[Callable[[str], object | None]] = []
        """Return a request that a role must handle when it registers, or None; by the role."""
        self.handlers: dict[type, RequestHandlerFunction] = {}
        """Handle requests of roles, by their types."""
        self.observers: list[Callable[[Image], object]] = []
        """Are called with the new image before an update of it is sent."""
        self.before_sending: Callable[[Update], Awaitable[None]] | None = None
        """Awaited before an update is sent; the later ones wait behind it."""
        self._log = EventLog("controller")

    @property
    def complete(self) -> int:
        """Number of the last update that every role has applied."""
        return self._publisher.complete

    def names(self) -> list[str]:
        """Names of the connected roles, sorted."""
        return sorted(self._connections)

    async def serve_role(self, channel: Channel) -> None:
        """Serve the conversation with one role until it ends."""
        names: list[str] = []

        def answer(request: Any) -> Any:
            if isinstance(request, RegisterRole):
                name = role_name(request.role, request.number)
                names.append(name)
                return self._register(name, rpc, request.role)
            if isinstance(request, ImageApplied):
                self._not_current.difference_update(names)
                self._wake_publishers()
                return None
            return self.handlers.get(type(request), self._answer)(request)

        rpc = RpcConnection(channel, answer)
        try:
            await rpc.run()
        finally:
            for name in names:
                if self._connections.get(name) is rpc:
                    del self._connections[name]
                    self._publisher.leave(name)
                    self._wake_publishers()

    def _register(self, name: str, rpc: RpcConnection, role: str) -> RoleRegistered:
        former = self._connections.get(name)
        if former is not None:
            former.close()
        self._connections[name] = rpc
        self._publisher.join(name)
        further = [request for ask in self.further if (request := ask(role)) is not None]
        return RoleRegistered(self._image(), tuple(further))

    async def request(self, name: str, request: object) -> Any:
        """The answer of one role. Raises ``PeerLost``, also if it is not connected."""
        rpc = self._connections.get(name)
        if rpc is None:
            raise PeerLost(f"{name} is not connected")
        return await rpc.request(request)

    async def request_all(self, request: object, names: Sequence[str] = ()) -> dict[str, Any]:
        """The answers of all roles, or of ``names``; roles that disconnect are omitted."""
        answers: dict[str, Any] = {}

        async def request_one(name: str) -> None:
            try:
                answers[name] = await self.request(name, request)
            except PeerLost:
                return
            except PeerFailed as failed:
                self._log.error("a process could not answer", process=name, reason=failed)

        async with trio.open_nursery() as nursery:
            for name in names or self.names():
                nursery.start_soon(request_one, name)
        return {name: answers[name] for name in sorted(answers)}

    async def request_all_within(
        self, request: object, bound: Callable[[], Awaitable[None]]
    ) -> tuple[dict[str, Any], list[str]]:
        """The answers that arrive before ``bound`` returns, and the names of those missing."""
        answers: dict[str, Any] = {}
        names = self.names()
        async with trio.open_nursery() as nursery:

            async def cancel_at_bound() -> None:
                await bound()
                nursery.cancel_scope.cancel()

            async def request_each() -> None:
                async with trio.open_nursery() as requesting:
                    for name in names:
                        requesting.start_soon(request_one, name)
                nursery.cancel_scope.cancel()

            async def request_one(name: str) -> None:
                answers.update(await self.request_all(request, [name]))

            nursery.start_soon(cancel_at_bound)
            nursery.start_soon(request_each)
        missing = [name for name in names if name not in answers and name in self._connections]
        return {name: answers[name] for name in sorted(answers)}, missing

    async def publish(self, updates: Sequence[Update]) -> None:
        """Send updates; returns when every role has applied them."""
        if not updates:
            return
        for observe in self.observers:
            observe(self._image())
        self._pending.extend(updates)
        self._more.set()
        while self._not_current or self._publisher.complete < updates[-1].number:
            await self._completed.wait()

    async def run(self) -> None:
        """Send updates one after the other, until cancelled."""
        while True:
            while self._pending:
                update = self._pending.popleft()
                if self.before_sending is not None:
                    await self.before_sending(update)
                await self._send(update)
            self._more = trio.Event()
            await self._more.wait()

    async def _send(self, update: Update) -> None:
        async with trio.open_nursery() as nursery:
            for name in self._publisher.publish(update):
                nursery.start_soon(self._send_update, name, update)
        self._wake_publishers()

    async def _send_update(self, name: str, update: Update) -> None:
        rpc = self._connections.get(name)
        if rpc is None:
            return  # It has just disconnected; ``serve_role`` has removed it.
        try:
            await rpc.request(update)
        except PeerLost:
            return  # As above, or ``serve_role`` soon will.
        except PeerFailed as failed:
            # It may have applied a part of it: let it reconnect and get the complete image.
            self._log.error("an update was not applied", process=name, reason=failed)
            self._not_current.add(name)
            rpc.close()
            return
        if self._connections.get(name) is rpc:
            self._publisher.acknowledge(name, update.number)

    def _wake_publishers(self) -> None:
        self._completed.set()
        self._completed = trio.Event()
