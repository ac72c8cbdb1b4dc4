"""The requests of a capture, sent to a broker as load.

Owns the connections, the order and the pace. It must never know what a request means. Invariant: a
request is sent after the responses that its client may have known when it sent it: those that came
before it on its own connection, and those that teach ids on any. Kafka has no equivalent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from minibroker.lab.replay.capture import (
    TEACHING,
    Capture,
    Captured,
    IdMapping,
    SharedIds,
    learn_response,
    mapped_request,
)
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.framing import FrameDecoder

PATIENCE_S: Final = 30.0
"""Longest wait for a response that a request depends on; it is sent then without it."""

RECEIVE_BYTES: Final = 64 * 1024


@dataclass
class ReplayReport:
    """What became of the requests."""

    sent: int = 0
    answered: int = 0
    unanswered: int = 0
    """Requests whose connection ended, or whose response did not come in time."""
    differing: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    """API key, recorded and new error code of responses with another error than recorded."""
    seconds: float = 0.0


async def replay_load(
    capture: Capture, host: str, port: int, *, speed: float | None = 1.0
) -> ReplayReport:
    """Send all requests; ``speed`` 2 is twice as fast as recorded, None as fast as possible.

    Raises ``OSError`` if the broker cannot be reached.
    """
    report = ReplayReport()
    replay = _Replay(capture.requests, host, port, speed, report)
    await replay.run()
    return report


class _Replay:
    """One replay of all connections."""

    def __init__(
        self,
        requests: Sequence[Captured],
        host: str,
        port: int,
        speed: float | None,
        report: ReplayReport,
    ) -> None:
        self.address = host, port
        self.report = report
        self.shared = SharedIds()
        self.answers = {each.order: trio.Event() for each in requests}
        """Set when the response to a request has come, or will not come."""
        self._requests = requests
        self._speed = speed
        self._teaching = sorted(
            (each.answered_order, each.order)
            for each in requests
            if each.answered_order is not None and each.header.api_key in TEACHING
        )

    async def run(self) -> None:
        """Replay every connection in a task of its own."""
        by_connection: dict[str, list[Captured]] = {}
        for each in self._requests:
            by_connection.setdefault(each.connection, []).append(each)
        self._started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for requests in by_connection.values():
                nursery.start_soon(_Connection(self, requests).run)
        self.report.seconds = trio.current_time() - self._started

    async def wait_turn(self, request: Captured, own: list[Captured], known: int) -> int:
        """Wait until a request may be sent; return how many teaching responses were awaited.

        ``own`` are requests before it on its connection; those that were awaited are removed.
        """
        if self._speed is not None:
            after_s = (request.clock_ms - self._requests[0].clock_ms) / 1000 / self._speed
            await trio.sleep_until(self._started + after_s)
        with trio.move_on_after(PATIENCE_S):
            for each in [each for each in own if _order_of_answer(each) < request.order]:
                await self.answers[each.order].wait()
                own.remove(each)
            while known < len(self._teaching) and self._teaching[known][0] < request.order:
                await self.answers[self._teaching[known][1]].wait()
                known += 1
        return known


def _order_of_answer(request: Captured) -> int:
    assert request.answered_order is not None
    return request.answered_order


class _Connection:
    """The requests of one recorded connection, on a connection of their own."""

    def __init__(self, replay: _Replay, requests: Sequence[Captured]) -> None:
        self._replay = replay
        self._requests = requests
        self._mapping = IdMapping(replay.shared)
        self._waiting: dict[int, Captured] = {}
        """Requests whose responses have not come, by correlation id."""
        self._changed = trio.Event()

    async def run(self) -> None:
        """Send the requests, and wait for their responses."""
        known, own = 0, list[Captured]()
        await self._replay.wait_turn(self._requests[0], own, known)
        stream = await trio.open_tcp_stream(*self._replay.address)
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._receive, stream, nursery.cancel_scope)
            try:
                for request in self._requests:
                    known = await self._replay.wait_turn(request, own, known)
                    await self._send(stream, request)
                    if request.answered_order is not None:
                        own.append(request)
                with trio.move_on_after(PATIENCE_S):
                    while self._waiting:
                        await self._changed.wait()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # What was not answered is counted below.
            nursery.cancel_scope.cancel()
        for request in self._requests:
            event = self._replay.answers[request.order]
            if request.answered_order is not None and not event.is_set():
                self._replay.report.unanswered += 1
            event.set()

    async def _send(self, stream: trio.SocketStream, request: Captured) -> None:
        frame = mapped_request(request, self._mapping)
        if request.answered_order is not None:
            self._waiting[request.header.correlation_id] = request
        await stream.send_all(len(frame).to_bytes(4, "big") + frame)
        self._replay.report.sent += 1

    async def _receive(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        decoder = FrameDecoder()
        try:
            while data := await stream.receive_some(RECEIVE_BYTES):
                decoder.receive(data)
                while (frame := decoder.next_frame()) is not None:
                    self._received(frame)
        except (trio.BrokenResourceError, DecodeError):
            pass
        scope.cancel()

    def _received(self, frame: bytes) -> None:
        request = self._waiting.pop(int.from_bytes(frame[:4], "big", signed=True), None)
        if request is None:
            return
        report = self._replay.report
        report.answered += 1
        recorded, live = learn_response(request, frame, self._mapping)
        if recorded != live:
            report.differing[request.header.api_key, recorded, live] += 1
        self._replay.answers[request.order].set()
        self._changed.set()
        self._changed = trio.Event()
