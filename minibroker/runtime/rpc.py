"""Requests over a channel, and links that survive the restart of a peer.

Owns the numbers of requests and the tasks that wait for answers. It must never know what is
requested. A request is answered exactly once: with the answer, with ``PeerFailed`` if the handler
failed, or with ``PeerLost`` if the peer is gone. Invariant: no task waits for an answer that cannot
arrive. ``Link`` connects again when its peer restarts; requests made meanwhile wait for it.

If both sides request, a side must answer from awaitables (which run as tasks): a reader that waits
for room to send while the peer's reader does the same would block both.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import trio

from minibroker.runtime.arena import StaleReferenceError
from minibroker.runtime.channel import Channel, ChannelClosed, ChannelStatistics

LOOK_NS: Final = 150_000
"""How long an answer is looked for before its asker sleeps. Two processes that hand one request
to and fro sleep and are woken at every hop, and waking an idle core costs more than the work
itself; most answers are there within this time."""

QUESTIONS_MAX: Final = 500
"""Unanswered questions of one side before the next one waits to be sent."""

WAITING_QUESTIONS_MAX: Final = 100_000
"""Bound of requests whose handlers may wait; they do not count for the bound above.

A connection has at most one, so it is never reached.
"""

_ASK: Final = 0
_ANSWER: Final = 1
_FAILED: Final = 2
_CANCEL: Final = 3

Handler = Callable[[Any], Any]
"""Takes a payload; returns the answer, or an awaitable of it that then runs as its own task."""

_log = logging.getLogger(__name__)


class PeerLost(Exception):
    """The peer died before it answered; whether it executed the request is unknown."""


class PeerFailed(Exception):
    """The peer's handler broke; the text says how. The peer itself lives."""


class _Wait:
    """A task that waits for several answers, and is woken once, by the last one."""

    __slots__ = ("missing", "task")

    def __init__(self, missing: int) -> None:
        self.missing = missing
        self.task: trio.lowlevel.Task | None = None

    def answered(self) -> None:
        self.missing -= 1
        if self.missing <= 0 and self.task is not None:
            trio.lowlevel.reschedule(self.task)
            self.task = None

    async def wait(self) -> None:
        """Wait until no answer is missing; after a cancellation, a late answer wakes no task."""
        if self.missing > 0:
            self.task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._let_go)

    def _let_go(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


class _Question:
    """A request in flight: its number, the waiting task, and later the answer."""

    __slots__ = ("answer", "answered", "failed", "number", "room", "wait")

    def __init__(self, number: int, wait: _Wait, room: trio.Semaphore | None = None) -> None:
        self.number = number
        self.wait = wait
        self.room = room
        self.answered = False
        self.answer: Any = None
        self.failed: Exception | None = None

    def settle(self, answer: Any, failed: Exception | None = None) -> None:
        self.answered = True
        self.answer = answer
        self.failed = failed
        self.wait.answered()

    def result(self) -> Any:
        if self.failed is not None:
            raise self.failed
        return self.answer


def _answers_nothing(payload: Any) -> Any:
    raise TypeError(f"this side answers no questions, got {type(payload).__name__}")


def _nothing() -> None:
    pass


def _nobody_counts(spent_ns: int) -> None:
    del spent_ns


class Conversation:
    """One side of a channel on which each side may ask the other; ``run`` must be running."""

    def __init__(
        self,
        channel: Channel,
        on_ask: Handler = _answers_nothing,
        *,
        questions_max: int = QUESTIONS_MAX,
        on_looked: Callable[[int], None] = _nobody_counts,
    ) -> None:
        self._channel = channel
        self._on_ask = on_ask
        self._on_looked = on_looked
        self._room = trio.Semaphore(questions_max, max_value=questions_max)
        self._waiting_room = trio.Semaphore(WAITING_QUESTIONS_MAX, max_value=WAITING_QUESTIONS_MAX)
        self._number = 0
        self._questions: dict[int, _Question] = {}
        self._answering: dict[int, trio.CancelScope] = {}
        self._over = False

    async def ask(
        self,
        payload: object,
        *,
        may_wait: bool = False,
        look: bool = False,
        meanwhile: Callable[[], None] = _nothing,
    ) -> Any:
        """Return the peer's answer. Raises ``PeerLost`` or ``PeerFailed``.

        With ``may_wait`` the handler may wait for long, and the request does not count for
        ``questions_max``.

        A cancelled request is withdrawn: the peer's handler is cancelled too. With ``look`` the
        answer is polled for without sleeping, for ``LOOK_NS`` at most: only if the peer makes no
        requests itself, and this process has nothing better to do. ``meanwhile`` is called once the
        peer can work.
        """
        wait = _Wait(1)
        question = await self._put(payload, wait, may_wait=may_wait)
        try:
            meanwhile()
            if look and self._channel.apart:
                self._look(question)
            await wait.wait()
        except trio.Cancelled:
            await self._withdraw(question)
            raise
        finally:
            self._forget(question)
        return question.result()

    async def _put(self, payload: object, wait: _Wait, *, may_wait: bool) -> _Question:
        """Sends a question; what goes wrong with that becomes its answer."""
        room = self._waiting_room if may_wait else self._room
        try:
            room.acquire_nowait()
        except trio.WouldBlock:
            await room.acquire()
        self._number += 1
        question = _Question(self._number, wait, room)
        self._questions[question.number] = question
        try:
            if self._over:
                question.settle(None, PeerLost("the conversation is over"))
            else:
                await self._channel.send((_ASK, question.number, payload))
        except ChannelClosed as closed:
            if not question.answered:
                question.settle(None, PeerLost(str(closed)))
        except BaseException:
            self._forget(question)
            raise
        return question

    def _look(self, question: _Question) -> None:
        assert self._on_ask is _answers_nothing  # A question could not be answered from here.
        began_ns = time.perf_counter_ns()
        spent_ns = 0
        with suppress(ChannelClosed):  # ``run`` notices by itself.
            while not (question.answered or spent_ns > LOOK_NS):
                self._settle_all_there_are()
                spent_ns = time.perf_counter_ns() - began_ns
        self._on_looked(spent_ns)

    def _settle_all_there_are(self) -> None:
        with suppress(trio.WouldBlock):
            while True:
                self._settle(*self._channel.receive_nowait())

    def _settle(self, kind: int, number: int, payload: Any) -> None:
        question = self._questions.get(number)
        if question is not None and not question.answered:
            question.settle(payload, PeerFailed(payload) if kind == _FAILED else None)

    def _forget(self, question: _Question) -> None:
        del self._questions[question.number]
        assert question.room is not None
        question.room.release()

    async def _withdraw(self, question: _Question) -> None:
        if not question.answered:
            # The peer is gone, so no answer can be sent.
            with trio.CancelScope(shield=True), suppress(ChannelClosed):
                await self._channel.send((_CANCEL, question.number, None))

    async def run(self) -> None:
        """Receives until the channel closes; then every open question gets ``PeerLost``."""
        try:
            async with trio.open_nursery() as nursery:
                try:
                    while True:
                        await self._handle(nursery, await self._channel.receive())
                except ChannelClosed:
                    nursery.cancel_scope.cancel()
        finally:
            self._over = True
            self._channel.close()
            for question in self._questions.values():
                if not question.answered:
                    question.settle(None, PeerLost("the peer is gone"))

    async def _handle(self, nursery: trio.Nursery, message: tuple[int, int, Any]) -> None:
        kind, number, payload = message
        if kind == _ASK:
            await self._answer(nursery, number, payload)
        elif kind == _CANCEL:
            if number in self._answering:
                self._answering[number].cancel()
        else:
            self._settle(kind, number, payload)

    async def _answer(self, nursery: trio.Nursery, number: int, payload: Any) -> None:
        try:
            answer = self._on_ask(payload)
            if not inspect.isawaitable(answer):
                await self._channel.send((_ANSWER, number, answer))
                return
        except ChannelClosed:
            raise
        except Exception as error:  # noqa: BLE001 - reported and logged
            await self._send_failure(number, error)
            return
        nursery.start_soon(self._answer_later, number, answer)

    async def _answer_later(self, number: int, answer: Awaitable[Any]) -> None:
        with trio.CancelScope() as scope:
            self._answering[number] = scope
            try:
                result = await answer
                await self._channel.send((_ANSWER, number, result))
            except ChannelClosed:
                pass  # ``run`` notices by itself.
            except Exception as error:  # noqa: BLE001 - reported and logged
                await self._send_failure(number, error)
            finally:
                del self._answering[number]

    async def _send_failure(self, number: int, error: Exception) -> None:
        # The memory that a dead process sent with its request is gone, which is no error of the
        # handler; a living process should still have it.
        is_expected = isinstance(error, StaleReferenceError)
        if not is_expected:
            _log.exception("a handler broke", exc_info=error)
        with suppress(ChannelClosed):  # ``run`` notices by itself.
            await self._channel.send((_FAILED, number, f"{type(error).__name__}: {error}"))
            if is_expected:
                _log.exception("a handler broke", exc_info=error)

    def close(self) -> None:
        self._channel.close()

    def statistics(self) -> ChannelStatistics:
        return self._channel.statistics()


class Link:
    """A conversation with a peer that may restart; ``run`` must be running.

    ``dial`` opens a channel and waits until the peer listens. ``greet`` introduces this process,
    before any other request; if the peer dies meanwhile, the link connects again.
    """

    def __init__(
        self,
        dial: Callable[[], Awaitable[Channel]],
        greet: Callable[[Conversation], Awaitable[None]],
        on_ask: Handler = _answers_nothing,
        *,
        questions_max: int = QUESTIONS_MAX,
        on_looked: Callable[[int], None] = _nobody_counts,
    ) -> None:
        """``on_looked`` is called with the nanoseconds spent polling for an answer."""
        self._dial = dial
        self._greet = greet
        self._on_ask = on_ask
        self._questions_max = questions_max
        self._on_looked = on_looked
        self._conversation: Conversation | None = None
        self._connected = trio.Event()
        self._over = False

    async def ask(
        self,
        payload: object,
        *,
        may_wait: bool = False,
        look: bool = False,
        meanwhile: Callable[[], None] = _nothing,
    ) -> Any:
        """As ``Conversation.ask``; waits first while the peer is being reborn."""
        conversation = await self.conversation()
        return await conversation.ask(payload, may_wait=may_wait, look=look, meanwhile=meanwhile)

    async def conversation(self) -> Conversation:
        """Return the conversation with the peer's current process, after the greeting.

        Raises ``PeerLost`` if the link has ended.
        """
        while self._conversation is None:
            if self._over:
                raise PeerLost("nobody dials the peer any more")
            await self._connected.wait()
        return self._conversation

    async def wait_connected(self) -> None:
        """Returns when the peer has been greeted."""
        await self._connected.wait()

    async def run(self) -> None:
        """Dials, greets and converses, again and again, until cancelled."""
        try:
            await self._run()
        finally:
            # Tasks that wait for a restart of the peer, possibly shielded, would wait forever.
            self._over = True
            self._conversation = None
            self._connected.set()

    async def _run(self) -> None:
        while True:
            conversation = Conversation(
                await self._dial(),
                self._on_ask,
                questions_max=self._questions_max,
                on_looked=self._on_looked,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._begin, conversation)
                await conversation.run()
                self._conversation = None
                if self._connected.is_set():
                    self._connected = trio.Event()
                nursery.cancel_scope.cancel()

    async def _begin(self, conversation: Conversation) -> None:
        try:
            await self._greet(conversation)
        except PeerLost:
            return
        self._conversation = conversation
        self._connected.set()

    def statistics(self) -> ChannelStatistics | None:
        """Counts of the present channel; None while the peer is away."""
        return None if self._conversation is None else self._conversation.statistics()


async def ask_together(
    asked: Sequence[tuple[Link, object]],
    *,
    may_wait: bool = False,
    first_only: bool = False,
    meanwhile: Callable[[], None] = _nothing,
) -> list[Any]:
    """Send one request to each of several peers and wait for all; return the answers in order.

    Raises as ``Conversation.ask``, but only when every peer has answered or is lost. With
    ``first_only`` one answer is sufficient: the other requests are withdrawn, and their answers are
    None. Use the same order of peers everywhere: otherwise two tasks could wait for each other's
    room at two peers.
    """
    wait = _Wait(1 if first_only else len(asked))
    put: list[tuple[Conversation, _Question]] = []
    questions: list[_Question] = []
    try:
        for link, payload in asked:
            try:
                conversation = await link.conversation()
            except PeerLost as lost:
                question = _Question(0, wait)
                question.settle(None, lost)
            else:
                question = await conversation._put(payload, wait, may_wait=may_wait)  # noqa: SLF001
                put.append((conversation, question))
            questions.append(question)
        meanwhile()
        await wait.wait()
    finally:
        for conversation, question in put:
            await conversation._withdraw(question)  # noqa: SLF001
            conversation._forget(question)  # noqa: SLF001
    return [question.result() for question in questions]
