"""The processes that follow the controller: who they are, and what they have taken over.

Owns the conversations with all roles and the order in which updates reach them, never what an
update means. Invariant: updates go out one at a time, in order, and ``publish`` returns when
everybody who is there has taken over the last of them; who is gone begins anew with a whole
image. Who has not taken over an image of this life of the controller may still serve with that
of the life before, so nothing counts as published until everybody has. The waiting half of
``cluster.publisher``, which keeps the books.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import trio

from minibroker.cluster.image import Image, Update
from minibroker.cluster.publisher import Publisher
from minibroker.observability.log import Log
from minibroker.roles.environment import role_name
from minibroker.roles.questions import Greeting, ImageTaken, Welcome
from minibroker.runtime.channel import Channel
from minibroker.runtime.link import Conversation, PeerFailed, PeerLost

Answerer = Callable[[Any], Any]


class Subscribers:
    """Everybody who has greeted the controller."""

    def __init__(
        self,
        image: Callable[[], Image],
        answer: Answerer,
        number: int,
        expected: Iterable[str] = (),
    ) -> None:
        """``answer`` takes the questions of roles; ``number`` is that of the first image.

        ``expected`` are the names of all roles that follow the controller.
        """
        self._image = image
        self._answer = answer
        self._publisher = Publisher(number)
        self._conversations: dict[str, Conversation] = {}
        # Bounded by the questions that processors may have under way, each with few updates.
        self._pending: deque[Update] = deque()
        self._more = trio.Event()
        self._completed = trio.Event()
        self._stale = set(expected)
        """Who may be serving with an image that this life did not give or can't carry on."""
        self._log = Log("controller")

    @property
    def complete(self) -> int:
        """Number of the last update that everybody has taken over."""
        return self._publisher.complete

    def names(self) -> list[str]:
        """Who is there, sorted."""
        return sorted(self._conversations)

    async def converse(self, channel: Channel) -> None:
        """One role's conversation, from its greeting to its end."""
        names: list[str] = []

        def answer(question: Any) -> Any:
            if isinstance(question, Greeting):
                name = role_name(question.role, question.number)
                names.append(name)
                return self._welcome(name, conversation)
            if isinstance(question, ImageTaken):
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
        """One role's answer. Raises ``PeerLost``, also when it is not there."""
        conversation = self._conversations.get(name)
        if conversation is None:
            raise PeerLost(f"{name} is not there")
        return await conversation.ask(question)

    async def ask_all(self, question: object, names: Sequence[str] = ()) -> dict[str, Any]:
        """The answers of everybody, or of ``names``; who goes away meanwhile is left out."""
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
        """Returns when everybody has taken over the updates."""
        if not updates:
            return
        self._pending.extend(updates)
        self._more.set()
        while self._stale or self._publisher.complete < updates[-1].number:
            await self._completed.wait()

    async def run(self) -> None:
        """Sends updates out, one after the other, until cancelled."""
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
            return  # It left just now; ``converse`` has taken it off the books.
        try:
            await conversation.ask(update)
        except PeerLost:
            return  # Likewise, or it soon will.
        except PeerFailed as failed:
            # It may have taken over half of it: let it begin anew with a whole image.
            self._log.error("an update was not taken over", process=name, why=failed)
            self._stale.add(name)
            conversation.close()
            return
        if self._conversations.get(name) is conversation:
            self._publisher.acknowledge(name, update.number)

    def _wake_publishers(self) -> None:
        self._completed.set()
        self._completed = trio.Event()
