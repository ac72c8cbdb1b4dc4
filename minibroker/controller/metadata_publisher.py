"""The processes that subscribe to the controller, and the updates that they have applied.

Owns the conversations with all roles and the order of updates. It must never know what an update
means. Invariant: updates are sent one at a time, in order, and ``publish`` returns when every
connected process has applied the last one; a process that reconnects starts with the complete
image. A process that has not applied an image of this incarnation of the controller may still serve
with that of the previous one, so nothing counts as published before. ``cluster.publisher`` keeps
the numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import trio

from minibroker.cluster.image import Image, Update
from minibroker.cluster.publisher import Publisher
from minibroker.observability.log import EventLog
from minibroker.process.environment import role_name
from minibroker.process.messages import Greeting, ImageApplied, Welcome
from minibroker.runtime.channel import Channel
from minibroker.runtime.rpc import Conversation, PeerFailed, PeerLost

Answerer = Callable[[Any], Any]


class MetadataPublisher:
    """The roles that are connected to the controller."""

    def __init__(
        self,
        image: Callable[[], Image],
        answer: Answerer,
        number: int,
        expected: Iterable[str] = (),
    ) -> None:
        """``answer`` handles the requests of roles; ``number`` is that of the first image.

        ``expected`` are the names of all roles that subscribe.
        """
        self._image = image
        self._answer = answer
        self._publisher = Publisher(number)
        self._conversations: dict[str, Conversation] = {}
        # Bounded by the requests that processors may have in flight, each with few updates.
        self._pending: deque[Update] = deque()
        self._more = trio.Event()
        self._completed = trio.Event()
        self._stale = set(expected)
        """Roles that may serve with an image of another incarnation, or that missed an update."""
        self._log = EventLog("controller")

    @property
    def complete(self) -> int:
        """Number of the last update that every role has applied."""
        return self._publisher.complete

    def names(self) -> list[str]:
        """Names of the connected roles, sorted."""
        return sorted(self._conversations)

    async def converse(self, channel: Channel) -> None:
        """Serve the conversation with one role until it ends."""
        names: list[str] = []

        def answer(question: Any) -> Any:
            if isinstance(question, Greeting):
                name = role_name(question.role, question.number)
                names.append(name)
                return self._welcome(name, conversation)
            if isinstance(question, ImageApplied):
                self._stale.difference_update(names)
                self._wake_publishers()
                return None
            return self._answer(question)

        conversation = Conversation(channel, answer)
        try:
            await conversation.run()
        finally:
            for name in names:
                if self._conversations.get(name) is conversation:
                    del self._conversations[name]
                    self._publisher.leave(name)
                    self._wake_publishers()

    def _welcome(self, name: str, conversation: Conversation) -> Welcome:
        former = self._conversations.get(name)
        if former is not None:
            former.close()
        self._conversations[name] = conversation
        self._publisher.join(name)
        return Welcome(self._image())

    async def ask(self, name: str, question: object) -> Any:
        """The answer of one role. Raises ``PeerLost``, also if it is not connected."""
        conversation = self._conversations.get(name)
        if conversation is None:
            raise PeerLost(f"{name} is not there")
        return await conversation.ask(question)

    async def ask_all(self, question: object, names: Sequence[str] = ()) -> dict[str, Any]:
        """The answers of all roles, or of ``names``; roles that disconnect are omitted."""
        answers: dict[str, Any] = {}

        async def ask_one(name: str) -> None:
            try:
                answers[name] = await self.ask(name, question)
            except PeerLost:
                return
            except PeerFailed as failed:
                self._log.error("a process could not answer", process=name, why=failed)

        async with trio.open_nursery() as nursery:
            for name in names or self.names():
                nursery.start_soon(ask_one, name)
        return {name: answers[name] for name in sorted(answers)}

    async def ask_all_within(
        self, question: object, bound: Callable[[], Awaitable[None]]
    ) -> tuple[dict[str, Any], list[str]]:
        """The answers that arrive before ``bound`` returns, and the names of those missing."""
        answers: dict[str, Any] = {}
        names = self.names()
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await bound()
                nursery.cancel_scope.cancel()

            async def ask_each() -> None:
                async with trio.open_nursery() as asking:
                    for name in names:
                        asking.start_soon(ask_one, name)
                nursery.cancel_scope.cancel()

            async def ask_one(name: str) -> None:
                answers.update(await self.ask_all(question, [name]))

            nursery.start_soon(give_up)
            nursery.start_soon(ask_each)
        missing = [name for name in names if name not in answers and name in self._conversations]
        return {name: answers[name] for name in sorted(answers)}, missing

    async def publish(self, updates: Sequence[Update]) -> None:
        """Send updates; returns when every role has applied them."""
        if not updates:
            return
        self._pending.extend(updates)
        self._more.set()
        while self._stale or self._publisher.complete < updates[-1].number:
            await self._completed.wait()

    async def run(self) -> None:
        """Send updates one after the other, until cancelled."""
        while True:
            while self._pending:
                await self._send(self._pending.popleft())
            self._more = trio.Event()
            await self._more.wait()

    async def _send(self, update: Update) -> None:
        async with trio.open_nursery() as nursery:
            for name in self._publisher.publish(update):
                nursery.start_soon(self._tell, name, update)
        self._wake_publishers()

    async def _tell(self, name: str, update: Update) -> None:
        conversation = self._conversations.get(name)
        if conversation is None:
            return  # It has just disconnected; ``converse`` has removed it.
        try:
            await conversation.ask(update)
        except PeerLost:
            return  # As above, or ``converse`` soon will.
        except PeerFailed as failed:
            # It may have applied a part of it: let it reconnect and get the complete image.
            self._log.error("an update was not taken over", process=name, why=failed)
            self._stale.add(name)
            conversation.close()
            return
        if self._conversations.get(name) is conversation:
            self._publisher.acknowledge(name, update.number)

    def _wake_publishers(self) -> None:
        self._completed.set()
        self._completed = trio.Event()
